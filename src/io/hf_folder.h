// The tensors of a model that lies in one or more files, under one list of names. A Hugging Face
// folder has model.safetensors, or shards named by model.safetensors.index.json; or, saved by
// PyTorch (torch_file.h), pytorch_model.bin or shards of it, named likewise:
//   {"metadata": {...}, "weight_map": {"tensor": "model-00001-of-00002.safetensors", ...}}
// A GGUF file (gguf_tensors.h) is one file with a model of its own.
// Files are mapped, not read: tensors that are not read take no memory. Nothing in the index is
// trusted: it is checked against the shards before any tensor is handed out.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "io/safetensors.h"

namespace onefold {

class TensorFiles {
 public:
  static TensorFiles open_file(const std::string& path);
  static TensorFiles open_hf_folder(const std::string& folder);
  // Whether the folder has weights that open_hf_folder would look at.
  static bool in_folder(const std::string& folder);
  // If not: files in it that hold weights by their names, of other formats, or shards without an
  // index.
  static std::vector<std::string> unreadable_in_folder(const std::string& folder);

  const std::string& path() const { return path_; }                 // what was opened
  const std::vector<std::string>& names() const { return names_; }  // file by file, by offset
  const std::vector<std::string>& files() const { return files_; }  // paths
  const std::map<std::string, std::string>& metadata() const;       // the first file's

  bool contains(const std::string& name) const { return places_.contains(name); }
  const SafetensorsEntry& entry(const std::string& name) const;  // UserError with the nearest name
  const std::string& file_of(const std::string& name) const;
  std::span<const std::byte> bytes(const std::string& name) const;
  void release(const std::string& name) const;

  // Elements [first, first + dst.size()) of a tensor of floating-point numbers, in the file's
  // order.
  void read(const std::string& name, int64_t first, std::span<float> dst) const;
  // The same of any numbers, for looking at them; has_numbers() says whether a tensor has such.
  bool has_numbers(const std::string& name) const;
  void read(const std::string& name, int64_t first, std::span<double> dst) const;

 private:
  struct Place {
    const TensorFile* file;
    const SafetensorsEntry* entry;
  };
  explicit TensorFiles(std::string path) : path_(std::move(path)) {}
  void add(const std::string& path);
  void open_index(const std::string& folder, const std::string& index);
  const Place& place(const std::string& name) const;

  std::string path_;
  std::vector<std::unique_ptr<TensorFile>> mapped_;
  std::vector<std::string> names_, files_;
  std::map<std::string, Place> places_;
};

inline constexpr const char* kHfWeights = "model.safetensors";
inline constexpr const char* kHfIndex = "model.safetensors.index.json";

}  // namespace onefold
