// The two kinds of error that reach a user. A UserError names the thing that is wrong (key, file,
// line, argument) and what to do about it; an InternalError is a bug in Onefold.
#pragma once

#include <stdexcept>

namespace onefold {

class UserError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

class InternalError : public std::logic_error {
 public:
  using std::logic_error::logic_error;
};

}  // namespace onefold
