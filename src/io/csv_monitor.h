// Metrics as DeepSpeed's csv_monitor leaves them: one file for each metric, in a folder, with the
// lines "samples,value" below a header.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <map>
#include <string>
#include <string_view>
#include <utility>

#include "base/file.h"

namespace onefold {

class CsvMonitor {
 public:
  // The folder is created if need be. Files that are there are continued; a run that goes on after
  // `samples` drops what it will write again (0: a new run, which drops nothing).
  explicit CsvMonitor(std::string folder, int64_t samples = 0);

  // "Train/Samples/lr" is the file Train_Samples_lr.csv with the column lr.
  void write(int64_t samples, std::initializer_list<std::pair<std::string_view, double>> values);

 private:
  GrowingFile& file(std::string_view name);

  const std::string folder_;
  const int64_t samples_;
  std::map<std::string, GrowingFile, std::less<>> files_;
};

}  // namespace onefold
