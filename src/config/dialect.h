// What DeepSpeed's reader takes beyond JSON and its // and /* */ comments: a comma after the last
// item of a list or object, and comments from # to the end of the line.
#pragma once

#include <string>

namespace onefold {

// The same text with these made blank, so that positions in errors still hold. Text in strings and
// comments stays as it is.
std::string without_dialect(std::string text);

}  // namespace onefold
