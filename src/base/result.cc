// Names and exit codes of the error codes (base/result.h).
#include "base/result.h"

namespace monostep {

std::string_view code_name(Code code) {
  switch (code) {
    case Code::kInvalidArgument: return "invalid_argument";
    case Code::kNotFound: return "not_found";
    case Code::kUnsupported: return "unsupported";
    case Code::kExhausted: return "exhausted";
    case Code::kUnavailable: return "unavailable";
    case Code::kCorrupt: return "corrupt";
    case Code::kTimeout: return "timeout";
    case Code::kCancelled: return "cancelled";
    case Code::kDeviceFailed: return "device_failed";
    case Code::kInternal: return "internal";
  }
  return "internal";
}

int exit_code(Code code) {
  switch (code) {
    case Code::kInvalidArgument: return 2;
    case Code::kNotFound:
    case Code::kUnsupported:
    case Code::kCorrupt: return 3;
    case Code::kUnavailable: return 4;
    default: return 1;
  }
}

std::string Error::message() const {
  std::string out = place.empty() ? text : place + ": " + text;
  return out + " (" + std::string(code_name(code)) + ")";
}

}  // namespace monostep
