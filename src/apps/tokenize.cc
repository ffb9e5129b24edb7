// `monostep tokenize`: reads JSON lines from standard input and answers each with one line (text/tokenize_line.h). A
// bad line is answered with {"error": ...} and does not end the program. Reads tokenizer.json, alone or in a
// checkpoint's folder.
#include <cstdio>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "apps/commands.h"
#include "text/tokenize_line.h"
#include "text/tokenizer.h"

namespace monostep::apps {
namespace {

// Room for a million tokens of text in the longest escapes; more on one line is answered with an error.
constexpr size_t kMaxLineBytes = 32 << 20;

struct TokenizeOptions {
  std::string model_dir;
  std::string tokenizer_path;
};

struct Line {
  std::string text;
  bool too_long = false;  // `text` is only its start
};

// The next line without its newline; nothing at the end of the input. The last line needs no newline.
std::optional<Line> read_line() {
  Line line;
  int byte = std::getc(stdin);
  if (byte == EOF) return std::nullopt;
  for (; byte != EOF && byte != '\n'; byte = std::getc(stdin)) {
    line.too_long = line.text.size() == kMaxLineBytes;
    if (!line.too_long) line.text.push_back(static_cast<char>(byte));
  }
  return line;
}

std::string answer(const text::Tokenizer& tokenizer, const Line& line) {
  if (line.too_long) return "{\"error\":\"the line has more than " + std::to_string(kMaxLineBytes) + " bytes\"}";
  return text::answer_tokenize_line(tokenizer, line.text);
}

Status answer_lines(const text::Tokenizer& tokenizer) {
  while (const auto line = read_line()) {
    const std::string out = answer(tokenizer, *line) + "\n";
    // Flushed, so that a program at the other end of a pipe gets its answer before it asks again.
    if (std::fwrite(out.data(), 1, out.size(), stdout) != out.size() || std::fflush(stdout) != 0) {
      return Error{Code::kExhausted, "cannot write", "standard output"};
    }
  }
  return {};
}

Status run(const TokenizeOptions& options) {
  const std::string path = options.tokenizer_path.empty()
                               ? (std::filesystem::path(options.model_dir) / "tokenizer.json").string()
                               : options.tokenizer_path;
  TRY_ASSIGN(const text::Tokenizer tokenizer, text::Tokenizer::load(path));
  return answer_lines(tokenizer);
}

}  // namespace

void add_tokenize(CLI::App& root, int* status) {
  auto options = std::make_shared<TokenizeOptions>();
  CLI::App* command = root.add_subcommand("tokenize", "text to token ids and back, as JSON lines on standard input");
  CLI::Option_group* source = command->add_option_group("source", "where the tokenizer is");
  source->add_option("--model", options->model_dir, "checkpoint folder with a tokenizer.json");
  source->add_option("--tokenizer", options->tokenizer_path, "a tokenizer.json");
  source->require_option(1);
  command->callback([options, status] {
    const Status done = run(*options);
    *status = done.ok() ? 0 : report(done.error());
  });
}

}  // namespace monostep::apps
