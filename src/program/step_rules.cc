// Rules of serving a step (program/step_rules.h).
#include "program/step_rules.h"

#include <algorithm>
#include <bit>
#include <string>

#include "base/check.h"
#include "program/layout.h"

namespace monostep::program {
namespace {

Error refuse(std::string text) { return {Code::kInvalidArgument, std::move(text), "step"}; }

Status check_request(const StepRequest& request, const model::Geometry& geometry, const StepLimits& limits) {
  const int end = request.first_position + request.num_rows;
  if (request.first_position < 0 || end > limits.max_context) {
    return refuse("position " + std::to_string(end - 1) + " is beyond the context of " +
                  std::to_string(limits.max_context));
  }
  if (request.state_slot < 0 || request.state_slot >= limits.num_slots) return refuse("no such state slot");
  if (static_cast<int>(request.pages.size()) * kPageTokens < end) return refuse("the page table is too short");
  if (request.num_drafts >= request.num_rows || request.num_drafts > geometry.dspark_block_size)
    return refuse("too many drafts");
  if (request.draft && (!request.sample || !request.context || geometry.num_nextn_predict_layers == 0)) {
    return refuse("a draft needs a sampled token, context rows and draft layers");
  }
  for (const int32_t page : request.pages) {
    if (page < 0 || page >= limits.num_pages) return refuse("no such page");
  }
  return {};
}

// Words of kVerdictOut of a request: accepted drafts, emitted ids, last position, then the ids (draft_length + 1).
void read_verdict(std::span<const float> words, RequestOutput& output) {
  output.num_accepted = std::bit_cast<int32_t>(words[0]);
  const auto num_tokens = static_cast<size_t>(std::bit_cast<int32_t>(words[1]));
  CHECK(num_tokens <= words.size() - 3, "a verdict of at most the drafts and one more token");
  for (const float word : words.subspan(3, num_tokens)) output.tokens.push_back(std::bit_cast<int32_t>(word));
}

}  // namespace

Status check_step(const StepInputs& inputs, const model::Geometry& geometry, const StepLimits& limits) {
  if (inputs.requests.empty() || inputs.requests.size() > kMaxRequests)
    return refuse("between 1 and 8 requests are served");
  if (inputs.rows.empty() || inputs.rows.size() > kMaxBand) return refuse("between 1 and 48 rows are served");
  int next_row = 0;
  std::vector<int> slots;
  for (const StepRequest& request : inputs.requests) {
    if (request.first_row != next_row || request.num_rows < 1)
      return refuse("rows of the requests do not follow each other");
    next_row += request.num_rows;
    TRY(check_request(request, geometry, limits));
    if (std::find(slots.begin(), slots.end(), request.state_slot) != slots.end())
      return refuse("two requests on one state slot");
    slots.push_back(request.state_slot);
  }
  if (next_row != static_cast<int>(inputs.rows.size())) return refuse("rows that belong to no request");
  for (const StepRow& row : inputs.rows) {
    if (row.token < 0 || row.token >= geometry.vocab_size)
      return refuse("token " + std::to_string(row.token) + " is not in the vocabulary");
  }
  const auto num_images =
      std::count_if(inputs.rows.begin(), inputs.rows.end(), [](const StepRow& row) { return row.image; });
  if (static_cast<int64_t>(inputs.image_rows.size()) != num_images * geometry.hidden_size)
    return refuse("the embeddings are not those of the image rows");
  return {};
}

bool wants_head(const StepInputs& inputs) {
  return std::any_of(inputs.rows.begin(), inputs.rows.end(), [](const StepRow& row) { return row.needs_logits; });
}

std::vector<CallRange> needed_calls(const Program& program, const StepInputs& inputs) {
  const int context = program.section_begin(Section::kContext);
  const int last = inputs.any_draft()     ? static_cast<int>(program.calls.size())
                   : inputs.any_context() ? program.section_begin(Section::kDraft)
                                          : context;
  if (wants_head(inputs)) return {{0, last}};
  std::vector<CallRange> ranges = {{0, program.section_begin(Section::kHead)}};
  if (context < last) ranges.push_back({context, last});
  return ranges;
}

StepOutputs read_outputs(const StepInputs& inputs, int draft_length, std::span<const float> verdict,
                         std::span<const float> draft) {
  StepOutputs out;
  const auto length = static_cast<size_t>(draft_length);
  for (size_t idx = 0; idx < inputs.requests.size(); ++idx) {
    RequestOutput& output = out.requests.emplace_back();
    if (inputs.requests[idx].sample) read_verdict(verdict.subspan(idx * (length + 4), length + 4), output);
    if (!inputs.requests[idx].draft) continue;
    const std::span<const float> words = draft.subspan(idx * 2 * length, 2 * length);
    for (const float word : words.first(length)) output.drafts.push_back(std::bit_cast<int32_t>(word));
    output.confidence.assign(words.begin() + draft_length, words.end());
  }
  return out;
}

}  // namespace monostep::program
