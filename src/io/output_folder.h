// A folder that appears under its name whole or not at all: filled beside it and renamed by
// commit(). Without commit() nothing is left behind.
#pragma once

#include <functional>
#include <string>

namespace onefold {

class OutputFolder {
 public:
  // Whether a file of this name may be replaced, together with the folder it is in.
  using Replaceable = std::function<bool(const std::string& name)>;

  // UserError if `path` exists and is not an empty folder, unless `overwrite`; and in any case if
  // it holds something that is not replaceable: a mistyped name must not delete other files.
  OutputFolder(const std::string& path, bool overwrite, const Replaceable& replaceable);
  ~OutputFolder();
  OutputFolder(const OutputFolder&) = delete;
  OutputFolder& operator=(const OutputFolder&) = delete;

  std::string file(const std::string& name) const { return temporary_ + "/" + name; }
  void commit();

 private:
  std::string path_, temporary_;
  bool committed_ = false;
};

}  // namespace onefold
