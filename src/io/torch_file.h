// PyTorch's weights (pytorch_model.bin): a zip archive of torch.save, whose members lie in it as
// they are. data.pkl describes the tensors (torch_pickle.h), data/0, data/1, ... are their
// elements.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "io/safetensors.h"

namespace onefold {

class TorchFile final : public TensorFile {
 public:
  // UserError for what is no such archive, or holds anything but a dictionary of tensors.
  explicit TorchFile(const std::string& path);

  const std::string& path() const override { return file_.path(); }
  // Offsets count from the beginning of the file; tensors may share elements.
  const std::vector<SafetensorsEntry>& entries() const override { return entries_; }
  const std::map<std::string, std::string>& metadata() const override { return metadata_; }
  // UserError if the archive's CRC-32 is not that of the tensor's elements. The first call for a
  // storage reads it whole; threads that come for it meanwhile share that work.
  std::span<const std::byte> bytes(const SafetensorsEntry& entry) const override;

 private:
  struct Check {
    enum State { kUnknown, kGood, kBad };
    std::atomic<size_t> next{0}, done{0};  // blocks
    std::vector<uint32_t> sums;            // of the blocks
    std::atomic<State> state{kUnknown};
  };
  struct Member {
    size_t begin = 0, bytes = 0;
    uint32_t crc = 0;  // 0: its writer was told to compute none
    std::string name = "";
    std::unique_ptr<Check> check = nullptr;
  };
  [[noreturn]] void fail(const std::string& message) const;
  uint64_t number_at(size_t at, size_t bytes) const;
  void read_directory();
  void read_member(size_t at, size_t& next);
  const Member& member(const std::string& name) const;
  void read_tensors();
  void verify(const Member& member) const;

  MappedFile file_;
  std::string root_;  // the folder within the archive
  std::map<std::string, Member> members_;
  std::map<int64_t, const Member*> storages_;  // by their first byte
  std::vector<SafetensorsEntry> entries_;
  std::map<std::string, std::string> metadata_;
};

}  // namespace onefold
