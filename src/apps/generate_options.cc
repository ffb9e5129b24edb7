// Options of `monostep generate` (apps/generate_options.h).
#include "apps/generate_options.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "apps/gpu_start.h"
#include "gpu/gate.h"

namespace monostep::apps {
namespace {

constexpr int kMaxThreads = 256;

// A text that may be given several times, taken as it stands (CLI11 would read [a,b] and {} as lists).
CLI::Option* declare_texts(CLI::App& command, const char* name, std::vector<std::string>& texts, const char* words) {
  CLI::Option* option = command.add_option(
      name,
      [&texts](const CLI::results_t& results) {
        texts = results;
        return true;
      },
      words);
  return option->type_name("TEXT")->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)->allow_extra_args(false);
}

void declare_inputs(CLI::App& command, GenerateOptions& options) {
  command.add_option("-m,--model", options.model, "checkpoint folder (default: models/default of the repository)");
  declare_texts(command, "-p,--prompt", options.prompts, "text to continue; 2 to 8 of them are served together");
  declare_texts(command, "--prompt-file", options.prompt_files, "file with the text to continue");
  declare_texts(command, "--token-ids", options.token_ids,
                "prompt as ids, separated by spaces or commas; 2 to 8 of them are served together");
}

// CLI11 takes -1 and 2^64 for the largest unsigned number.
std::string check_seed(const std::string& text) {
  uint64_t seed = 0;
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), seed);
  const bool whole = code == std::errc() && end == text.data() + text.size();
  return whole ? "" : fmt::format("\"{}\" is not a number from 0 to 2^64 - 1", text);
}

void declare_sampling(CLI::App& command, engine::Request& request) {
  command.add_option("-n,--max-tokens", request.max_tokens, "tokens to generate")->capture_default_str();
  command.add_option("--temperature,--temp", request.sampling.temperature, "0: the most likely token")
      ->capture_default_str();
  command.add_option("--top-k", request.sampling.top_k, "draw from the k most likely tokens; 0: off")
      ->capture_default_str();
  command.add_option("--top-p", request.sampling.top_p, "draw from the most likely tokens that hold this mass")
      ->capture_default_str();
  command
      .add_option("--min-p", request.sampling.min_p, "draw from tokens at least this likely beside the best; 0: off")
      ->capture_default_str();
  command.add_option("-s,--seed", request.sampling.seed, "of the noise")->check(check_seed)->capture_default_str();
}

Error refusal(const char* option, std::string text) { return Error{Code::kInvalidArgument, std::move(text), option}; }

Result<int> parse_spec(const std::string& text) {
  if (text == "off") return 0;
  int value = 0;
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (code != std::errc() || end != text.data() + text.size() || value < 1) {
    return refusal("--spec", fmt::format("\"{}\" is neither off nor a number of at least 1", text));
  }
  return value;
}

Status check_prompts(const GenerateOptions& options) {
  const int num_kinds = !options.prompts.empty() + !options.prompt_files.empty() + !options.token_ids.empty();
  if (num_kinds != 1) {
    return refusal("--prompt", fmt::format("give one of --prompt, --prompt-file and --token-ids, not {}",
                                           num_kinds == 0 ? "none" : "several"));
  }
  if (options.prompt_files.size() > 1) return refusal("--prompt-file", "may be given once");
  if (options.num_prompts() > program::kMaxRequests) {
    return refusal(options.prompt_flag(),
                   fmt::format("{} prompts, at most {}", options.num_prompts(), program::kMaxRequests));
  }
  for (const std::string& text : options.token_ids) TRY(parse_token_ids(text));
  return {};
}

Status check_machine(const GenerateOptions& options) {
  if (options.chunk < 1 || options.chunk > program::kMaxBand) {
    return refusal("--chunk", fmt::format("{} is not between 1 and {}", options.chunk, program::kMaxBand));
  }
  if (options.max_model_len && *options.max_model_len < 1) {
    return refusal("--max-model-len", fmt::format("{} is not at least 1", *options.max_model_len));
  }
  if (options.threads && (*options.threads < 1 || *options.threads > kMaxThreads)) {
    return refusal("--threads", fmt::format("{} is not between 1 and {}", *options.threads, kMaxThreads));
  }
  if (options.backend != "auto" && options.backend != "cpu" && options.backend != "gpu") {
    return refusal("--backend", fmt::format("\"{}\" is not auto, cpu or gpu", options.backend));
  }
  TRY(gpu::parse_mono(options.mono));
  if (options.backend == "cpu" && options.mono == "on") return refusal("--mono", "on needs the gpu, not --backend cpu");
  return {};
}

}  // namespace

const char* GenerateOptions::prompt_flag() const {
  return !token_ids.empty() ? "--token-ids" : !prompt_files.empty() ? "--prompt-file" : "--prompt";
}

void declare_options(CLI::App& command, GenerateOptions& options) {
  options.request.max_tokens = 128;
  declare_inputs(command, options);
  declare_sampling(command, options.request);
  command.add_option("--spec", options.spec,
                     "drafts verified a step: off or 1 to the model's draft length (the default)");
  command.add_option("--acceptance-length", options.request.acceptance_length,
                     "forced mean tokens a step, for benchmarks: the text means nothing");
  command
      .add_option("--confidence-threshold", options.request.confidence_threshold,
                  "verify only leading drafts at least this likely; 0: off")
      ->capture_default_str();
  command.add_flag("--ignore-eos", options.ignore_eos, "go on behind the stop token");
  command.add_option("--chunk", options.chunk, "prompt tokens a step")->capture_default_str();
  command.add_option("--max-model-len", options.max_model_len, "context (default: prompt and generated tokens)");
  command.add_option("--tp,--tensor-parallel-size", options.tp, "ranks, simulated on the cpu")->capture_default_str();
  command.add_option("--threads", options.threads, "threads of the cpu backend (default: the machine's)");
  command.add_option("--backend", options.backend, "auto (the gpu where there is one), cpu or gpu")
      ->capture_default_str();
  command
      .add_option("--mono", options.mono,
                  "one launch a step on the gpu: auto (where it can), on, or off (one launch a stage)")
      ->envname("MONOSTEP_MONO")
      ->capture_default_str();
  command
      .add_option(
          "--packed-cache", options.packed_cache,
          "folder where weights packed for the gpu are kept for the next start, or off (default: packed, in the "
          "folder of compiled programs)")
      ->envname(kPackedCacheVariable);
  command.add_flag("--json", options.json, "print one JSON object a request instead of the text");
}

Status check_options(GenerateOptions& options) {
  TRY(check_prompts(options));
  if (!options.spec.empty()) {
    TRY_ASSIGN(options.request.spec, parse_spec(options.spec));
  }
  const Status parameters = engine::check_parameters(options.request);
  if (!parameters.ok()) return name_option(parameters.error(), options);
  return check_machine(options);
}

Result<std::vector<int32_t>> parse_token_ids(const std::string& text) {
  constexpr const char* kSeparators = " ,\t\r\n";
  std::vector<int32_t> ids;
  size_t begin = text.find_first_not_of(kSeparators);
  while (begin != std::string::npos) {
    const size_t end = std::min(text.find_first_of(kSeparators, begin), text.size());
    int32_t id = 0;
    const auto [rest, code] = std::from_chars(text.data() + begin, text.data() + end, id);
    if (code != std::errc() || rest != text.data() + end || id < 0) {
      return refusal("--token-ids", fmt::format("\"{}\" is not a token id", text.substr(begin, end - begin)));
    }
    ids.push_back(id);
    begin = text.find_first_not_of(kSeparators, end);
  }
  if (ids.empty()) return refusal("--token-ids", "has no ids");
  return ids;
}

Error name_option(Error error, const GenerateOptions& options) {
  if (error.place == "prompt") {
    error.place = options.prompt_flag();
    return error;
  }
  std::replace(error.place.begin(), error.place.end(), '_', '-');
  error.place = "--" + error.place;
  return error;
}

}  // namespace monostep::apps
