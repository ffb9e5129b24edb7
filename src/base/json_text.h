// JSON text out: strings (UTF-8 or ASCII with \u escapes) and numbers, appended to a string. The callers write the
// punctuation themselves. Used by config, checkpoint, trace and server output.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace monostep {

// Appends `utf8` as a quoted JSON string. With `ascii` every code point above 0x7e is written as \uXXXX (a surrogate
// pair above U+FFFF), as Python's json.dumps does. Each maximal ill-formed part of the input becomes U+FFFD.
void append_json_string(std::string& out, std::string_view utf8, bool ascii);

void append_json_integer(std::string& out, int64_t value);

// The shortest text that reads back to the same value, with a point or an exponent (as Python's repr). JSON has no
// infinities and no NaN: both become null.
void append_json_number(std::string& out, double value);

}  // namespace monostep
