// One run at a time in a folder. The lock is the kernel's: it goes with the process that holds it,
// however that ends, so a killed run can be resumed at once. What the file says, host and process,
// only explains a refusal.
#pragma once

#include <string>

namespace onefold {

class RunLock {
 public:
  // UserError if another run holds the folder, which must be there. A file system that has no locks
  // gives one that holds nothing, with a warning.
  explicit RunLock(const std::string& folder);
  ~RunLock();
  RunLock(RunLock&& other) noexcept;
  RunLock& operator=(RunLock&&) = delete;

 private:
  int fd_ = -1;
};

}  // namespace onefold
