// The tensors of a GGUF file (base/gguf.h), like those of any other file.
#pragma once

#include <map>
#include <span>
#include <string>
#include <vector>

#include "base/gguf.h"
#include "io/safetensors.h"

namespace onefold {

class GgufTensors final : public TensorFile {
 public:
  explicit GgufTensors(const std::string& path);

  const std::string& path() const override { return file_.path(); }
  // Types are named as GGUF does; offsets count from the beginning of the file.
  const std::vector<SafetensorsEntry>& entries() const override { return entries_; }
  // Texts and numbers; no lists.
  const std::map<std::string, std::string>& metadata() const override { return metadata_; }
  std::span<const std::byte> bytes(const SafetensorsEntry& entry) const override;

 private:
  GgufFile file_;
  std::vector<SafetensorsEntry> entries_;
  std::map<std::string, std::string> metadata_;
};

}  // namespace onefold
