// The description in a PyTorch weights file (data.pkl of a torch.save archive): a dictionary of
// names and tensors, written as a Python pickle. A pickle is a program for a stack machine, which
// in Python may call anything. This one calls nothing: it knows the instructions that descriptions
// of tensors are made of, and the names of tensors, storages and dictionaries, and refuses all
// others.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace onefold {

struct TorchTensor {
  std::string name;
  std::string dtype;    // as safetensors spells it
  std::string storage;  // the archive's file data/<storage>
  int64_t storage_elems = 0;
  int64_t first_elem = 0;  // in its storage
  std::vector<int64_t> shape, strides;
};

// In the file's order. UserError, naming `source`, for whatever is no dictionary of tensors.
// Dictionaries within it have their names joined by dots; other values are left out.
std::vector<TorchTensor> read_torch_pickle(std::string_view pickle, const std::string& source);

}  // namespace onefold
