#include "io/gguf_tensors.h"

#include "base/error.h"

namespace onefold {

GgufTensors::GgufTensors(const std::string& path) : file_(path) {
  if (file_.tensors().empty()) user_error("{} holds no tensors", path);
  for (const GgufTensor& tensor : file_.tensors())
    entries_.push_back({tensor.name, std::string(tensor.type->name), tensor.shape,
                        static_cast<int64_t>(tensor.begin_bytes),
                        static_cast<int64_t>(tensor.begin_bytes + tensor.bytes)});
  for (const auto& [key, value] : file_.values().items())
    if (!value.is_array())
      metadata_[key] = value.is_string() ? value.get<std::string>() : value.dump();
}

std::span<const std::byte> GgufTensors::bytes(const SafetensorsEntry& entry) const {
  return file_.bytes().subspan(static_cast<size_t>(entry.begin_bytes),
                               static_cast<size_t>(entry.bytes()));
}

}  // namespace onefold
