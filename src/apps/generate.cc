// `monostep generate`: continues one to eight prompts on the checkpoint of --model. Text (streamed for one prompt) or
// JSON goes to standard output; progress, the closing table and errors to standard error. Everything refusable is
// refused before the weights are read.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <memory>

#include "apps/commands.h"
#include "apps/generate_backend.h"
#include "apps/generate_options.h"
#include "apps/generate_report.h"
#include "apps/gpu_start.h"
#include "base/integer.h"
#include "base/mapped_file.h"
#include "engine/engine.h"
#include "kv/allocator.h"
#include "model/geometry.h"
#include "model/shard.h"
#include "program/layout.h"
#include "text/detokenizer.h"
#include "text/tokenizer.h"
#include "weights/checkpoint.h"

namespace monostep::apps {
namespace {

using std::filesystem::path;

constexpr size_t kMaxPromptBytes = size_t{64} << 20;

struct Job {  // settled before the weights are read
  path model_dir;
  model::Geometry geometry;
  std::optional<text::Tokenizer> tokenizer;  // none: the checkpoint has no tokenizer.json
  std::vector<engine::Request> requests;
  engine::Limits limits;
};

// Progress on standard error: one line that is rewritten on a terminal, else only its last state.
class Progress {
 public:
  void show(const std::string& words) {
    if (terminal_) fmt::print(stderr, "\r\033[K{}", words);
  }
  void done(const std::string& words) { fmt::print(stderr, "{}{}\n", terminal_ ? "\r\033[K" : "", words); }

 private:
  bool terminal_ = isatty(STDERR_FILENO) != 0;
};

Status write_out(std::string_view text) {
  if (std::fwrite(text.data(), 1, text.size(), stdout) == text.size() && std::fflush(stdout) == 0) return {};
  return Error{Code::kExhausted, "cannot write", "standard output"};
}

std::optional<path> find_above(path start) {
  for (;; start = start.parent_path()) {
    std::error_code ignored;
    const path candidate = start / "models" / "default";
    if (std::filesystem::is_directory(candidate, ignored)) return candidate;
    if (start == start.parent_path()) return std::nullopt;
  }
}

// --model, else models/default in a folder above the program, else above the working directory.
Result<path> model_directory(const GenerateOptions& options) {
  if (!options.model.empty()) return path(options.model);
  std::error_code ignored;
  const path program = std::filesystem::read_symlink("/proc/self/exe", ignored);
  if (const auto found = find_above(program.parent_path())) return *found;
  if (const auto found = find_above(std::filesystem::current_path(ignored))) return *found;
  return Error{Code::kNotFound, "not given, and there is no models/default above the program or the working directory",
               "--model"};
}

Status load_tokenizer(const GenerateOptions& options, Job& job) {
  const path file = job.model_dir / "tokenizer.json";
  std::error_code ignored;
  if (std::filesystem::exists(file, ignored)) {
    TRY_ASSIGN(job.tokenizer, text::Tokenizer::load(file.string()));
    if (job.tokenizer->num_ids() > job.geometry.vocab_size) {
      return Error{Code::kCorrupt,
                   fmt::format("has the token id {}, but the config's vocab_size is {}", job.tokenizer->num_ids() - 1,
                               job.geometry.vocab_size),
                   file.string()};
    }
  } else if (options.token_ids.empty()) {
    return Error{Code::kNotFound, "the checkpoint has none, so prompts must be given as --token-ids", file.string()};
  }
  return {};
}

Result<std::vector<std::vector<int32_t>>> read_prompts(const GenerateOptions& options, const Job& job) {
  std::vector<std::vector<int32_t>> prompts;
  for (const std::string& ids : options.token_ids) {
    TRY_ASSIGN(std::vector<int32_t> prompt, parse_token_ids(ids));
    prompts.push_back(std::move(prompt));
  }
  std::vector<std::string> texts = options.prompts;
  for (const std::string& file : options.prompt_files) {
    Result<std::string> text = read_text_file(file, kMaxPromptBytes);
    if (!text.ok()) return Error{Code::kInvalidArgument, text.error().text, "--prompt-file " + file};
    texts.push_back(std::move(text).value());
  }
  for (const std::string& text : texts) {
    prompts.push_back(job.tokenizer->encode(text, true));
    if (prompts.back().empty()) prompts.back() = {job.geometry.bos_token_id};  // a text starts from nothing
  }
  return prompts;
}

int64_t positions_of(const engine::Request& request) {
  return static_cast<int64_t>(request.prompt.size()) + request.max_tokens;
}

// The context: as asked, else what the longest request needs, within the model's.
Result<int> settle_context(const GenerateOptions& options, const std::vector<engine::Request>& requests, int most) {
  if (options.max_model_len) {
    if (*options.max_model_len <= most) return *options.max_model_len;
    return Error{Code::kInvalidArgument, fmt::format("{} exceeds the model's {}", *options.max_model_len, most),
                 "--max-model-len"};
  }
  int64_t needed = 0;
  for (const engine::Request& request : requests) {
    needed = std::max(needed, positions_of(request));
  }
  return static_cast<int>(std::min<int64_t>(round_up<int64_t>(needed, program::kPageTokens), most));
}

Status settle_limits(const GenerateOptions& options, Job& job) {
  const model::Geometry& geometry = job.geometry;
  engine::Limits& limits = job.limits;
  limits.vocab_size = geometry.vocab_size;
  limits.max_spec = geometry.dspark_block_size;
  limits.num_slots = static_cast<int>(job.requests.size());
  limits.chunk = options.chunk;
  TRY_ASSIGN(limits.max_context, settle_context(options, job.requests, geometry.max_position_embeddings));
  for (const engine::Request& request : job.requests) {
    const auto num_positions = std::min<int64_t>(positions_of(request), limits.max_context);
    limits.num_pages += kv::PageAllocator::pages_for(static_cast<int>(num_positions));
  }
  for (const engine::Request& request : job.requests) {
    const Status fits = engine::check_fits(request, limits);
    if (!fits.ok()) return name_option(fits.error(), options);
  }
  return {};
}

Result<Job> prepare(GenerateOptions& options) {
  TRY(check_options(options));
  Job job;
  TRY_ASSIGN(job.model_dir, model_directory(options));
  TRY_ASSIGN(job.geometry, model::load_geometry(job.model_dir));
  if (const auto shard = model::make_shard(job.geometry, options.tp); !shard.ok()) {
    return name_option(shard.error(), options);
  }
  engine::Request shared = options.request;
  if (options.spec.empty()) shared.spec = job.geometry.dspark_block_size;
  if (!options.ignore_eos) shared.stop_tokens = {job.geometry.eos_token_id};
  TRY(load_tokenizer(options, job));
  TRY_ASSIGN(const std::vector<std::vector<int32_t>> prompts, read_prompts(options, job));
  for (const std::vector<int32_t>& prompt : prompts) {
    job.requests.push_back(shared);
    job.requests.back().prompt = prompt;
  }
  TRY(settle_limits(options, job));
  return job;
}

// Collects one request's answer and streams its text where asked.
class Collector {
 public:
  Collector(const text::Tokenizer* tokenizer, bool stream, Progress& progress) : stream_(stream), progress_(progress) {
    if (tokenizer != nullptr) detokenizer_.emplace(*tokenizer, text::SpecialTokens::kSkip);
  }

  void take(const engine::Sequence& sequence, std::span<const int32_t> tokens) {
    generation.last_token = Clock::now();
    if (generation.token_ids.empty()) start();
    std::string piece;
    for (const int32_t token : tokens) {
      generation.token_ids.push_back(token);
      if (!detokenizer_) continue;
      const Result<std::string> text = detokenizer_->append(token);
      if (text.ok()) piece += *text;  // a model's vocabulary may hold ids that the tokenizer has no text for
    }
    if (detokenizer_ && sequence.finish) piece += detokenizer_->finish();
    generation.text += piece;
    generation.num_steps = sequence.num_sampled_steps;
    generation.draft_positions = sequence.draft_positions;
    generation.finish = sequence.finish;
    if (stream_ && written.ok()) written = write_out(piece);
  }

  uint64_t id = 0;
  Generation generation;
  Status written;  // of the stream

 private:
  void start() {
    generation.first_token = generation.last_token;
    progress_.done(fmt::format("prompt of {} tokens read after {:.1f} s", generation.num_prompt_tokens,
                               generation.time_to_first_token_ms() / 1000));
  }

  bool stream_;
  Progress& progress_;
  std::optional<text::Detokenizer> detokenizer_;
};

using Collectors = std::vector<std::unique_ptr<Collector>>;

Result<Collectors> submit_all(engine::Engine& engine, const Job& job, bool stream, Progress& progress) {
  Collectors collectors;
  for (engine::Request request : job.requests) {
    collectors.push_back(std::make_unique<Collector>(job.tokenizer ? &*job.tokenizer : nullptr, stream, progress));
    Collector* collector = collectors.back().get();
    collector->generation.num_prompt_tokens = static_cast<int>(request.prompt.size());
    collector->generation.submitted = Clock::now();
    request.on_tokens = [collector](const engine::Sequence& sequence, std::span<const int32_t> tokens) {
      collector->take(sequence, tokens);
    };
    TRY_ASSIGN(collector->id, engine.submit(std::move(request)));
  }
  return collectors;
}

void show_prompts(const engine::Engine& engine, const Collectors& collectors, Progress& progress) {
  int num_waiting = 0, num_known = 0, num_done = 0;
  for (const auto& collector : collectors) {
    const engine::Sequence* sequence = engine.find(collector->id);
    if (sequence == nullptr || !collector->generation.token_ids.empty()) continue;
    ++num_waiting;
    num_known += collector->generation.num_prompt_tokens;
    num_done += sequence->num_committed;
  }
  if (num_waiting > 0) progress.show(fmt::format("prompt: {} of {} tokens", num_done, num_known));
}

Status run_to_end(engine::Engine& engine, const Collectors& collectors, Progress& progress) {
  while (engine.has_work()) {
    show_prompts(engine, collectors, progress);
    TRY(engine.step());
    for (const auto& collector : collectors) TRY(collector->written);
  }
  return {};
}

Status print_answers(const GenerateOptions& options, const Collectors& collectors,
                     const std::optional<StartReport>& start) {
  const bool single = collectors.size() == 1;
  for (size_t request_idx = 0; request_idx < collectors.size(); ++request_idx) {
    const Generation& generation = collectors[request_idx]->generation;
    if (options.json) {
      TRY(write_out(to_json(generation, start) + "\n"));
      continue;
    }
    const std::string header = fmt::format("--- request {} ---\n", request_idx + 1);
    TRY(write_out(single ? "\n" : header + generation.text + "\n"));  // the text of a single one is there already
    fmt::print(stderr, "\n{}{}", single ? "" : header, to_table(generation));
  }
  return {};
}

BackendOptions backend_options_of(const GenerateOptions& options, const Job& job) {
  BackendOptions out;
  out.backend = options.backend;
  out.mono = options.mono;
  out.packed_cache = packed_cache_dir(options.packed_cache);
  out.tp = options.tp;
  out.threads = options.threads;
  out.num_slots = job.limits.num_slots;
  out.num_pages = job.limits.num_pages;
  out.max_context = job.limits.max_context;
  for (const engine::Request& request : job.requests) {
    out.prompt_rows += static_cast<int>(std::min<size_t>(request.prompt.size(), program::kMaxBand));
    out.decode_rows += 1 + request.spec;
  }
  out.prompt_rows = std::min(out.prompt_rows, job.limits.chunk);
  return out;
}

void show_start(const StartReport& start, Progress& progress) {
  if (!start.load.weights.warning.empty()) progress.done(start.load.weights.warning);
  progress.done("start: " + start_words(start));
  progress.done("memory: " + memory_words(start));
}

Status run(GenerateOptions& options) {
  TRY_ASSIGN(const Job job, prepare(options));
  const BackendOptions backend_options = backend_options_of(options, job);
  TRY_ASSIGN(BackendChoice choice, choose_backend(backend_options, job.geometry));
  Progress progress;
  const Clock::time_point start = Clock::now();
  progress.show("loading " + job.model_dir.string());
  TRY_ASSIGN(const weights::Checkpoint checkpoint, weights::Checkpoint::open(job.model_dir));
  TRY_ASSIGN(const ServingBackend serving, make_backend(std::move(choice), backend_options, checkpoint));
  progress.done(fmt::format("loaded {} in {:.1f} s, backend {}", job.model_dir.string(),
                            std::chrono::duration<double>(Clock::now() - start).count(), serving.words));
  if (serving.start) show_start(*serving.start, progress);
  if (!job.tokenizer && !options.json)
    progress.done("the checkpoint has no tokenizer.json: no text, --json prints ids");
  engine::Engine engine(job.limits, *serving.backend);
  TRY_ASSIGN(const Collectors collectors, submit_all(engine, job, !options.json && job.requests.size() == 1, progress));
  TRY(run_to_end(engine, collectors, progress));
  return print_answers(options, collectors, serving.start);
}

}  // namespace

void add_generate(CLI::App& root, int* status) {
  auto options = std::make_shared<GenerateOptions>();
  CLI::App* command = root.add_subcommand("generate", "continue prompts with a checkpoint");
  declare_options(*command, *options);
  command->callback([options, status] {
    const Status done = run(*options);
    *status = done.ok() ? 0 : report(done.error());
  });
}

}  // namespace monostep::apps
