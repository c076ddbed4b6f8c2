#include "io/safetensors.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <set>
#include <utility>

#include "base/error.h"
#include "base/json.h"
#include "base/text.h"

namespace onefold {
namespace {

static_assert(std::endian::native == std::endian::little, "safetensors are mapped as they lie");

constexpr size_t kLengthBytes = 8;
constexpr uint64_t kLongestHeader = 100'000'000;  // the reference implementation's limit
constexpr size_t kHeaderAlignment = 8;            // so that mapped tensors of 8 bytes are aligned

struct DTypeBits {
  std::string_view name;
  int64_t bits;
};
constexpr std::array<DTypeBits, 22> kDTypes = {
    {{"F64", 64},        {"F32", 32},        {"F16", 16},    {"BF16", 16},   {"I64", 64},
     {"I32", 32},        {"I16", 16},        {"I8", 8},      {"U64", 64},    {"U32", 32},
     {"U16", 16},        {"U8", 8},          {"BOOL", 8},    {"F8_E4M3", 8}, {"F8_E5M2", 8},
     {"F8_E4M3FNUZ", 8}, {"F8_E5M2FNUZ", 8}, {"F8_E8M0", 8}, {"F6_E2M3", 6}, {"F6_E3M2", 6},
     {"F4", 4},          {"C64", 64}}};

// The number of bits of a shape, or -1 if it does not fit in int64 or a size is negative.
int64_t shape_bits(std::span<const int64_t> shape, int64_t element_bits) {
  int64_t bits = element_bits;
  for (const int64_t size : shape)
    if (size < 0 || __builtin_mul_overflow(bits, size, &bits)) return -1;
  return bits;
}

}  // namespace

std::string shape_text(std::span<const int64_t> shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

int64_t SafetensorsEntry::elems() const {
  int64_t elems = 1;
  for (const int64_t size : shape) elems *= size;
  return elems;
}

int64_t safetensors_dtype_bits(const std::string& dtype) {
  for (const DTypeBits& known : kDTypes)
    if (known.name == dtype) return known.bits;
  return 0;
}

int64_t safetensors_dtype_bytes(const std::string& dtype) {
  const int64_t bits = safetensors_dtype_bits(dtype);
  return bits % 8 == 0 ? bits / 8 : 0;
}

SafetensorsFile::SafetensorsFile(const std::string& path) : file_(path) {
  const std::span<const std::byte> all = file_.bytes();
  if (all.size() < kLengthBytes)
    fail(fmt::format("it has {} bytes, too few for the header's length", all.size()));
  uint64_t length = 0;
  std::memcpy(&length, all.data(), kLengthBytes);
  if (length > kLongestHeader)
    fail(fmt::format("its header would have {} bytes, more than the format allows", length));
  if (length > all.size() - kLengthBytes)
    fail(fmt::format("its header should have {} bytes, but the file ends after {}; it is cut off",
                     length, all.size() - kLengthBytes));
  data_start_ = kLengthBytes + length;
  read_header({reinterpret_cast<const char*>(all.data()) + kLengthBytes, length});
  check_layout();
  for (size_t i = 0; i < entries_.size(); ++i) index_.emplace(entries_[i].name, i);
}

void SafetensorsFile::fail(const std::string& message) const {
  user_error("{} is not a valid safetensors file: {}", path(), message);
}

void SafetensorsFile::read_header(std::string_view text) {
  const Json header = parse_json(text, fmt::format("{} (header)", path()));
  if (!header.is_object()) fail(fmt::format("its header is {}, not an object", json_kind(header)));
  for (const auto& item : header.items()) {
    const std::string& name = item.key();
    const Json& value = item.value();
    JsonObject in(value, fmt::format("{} (header): {}", path(), name));
    if (name == "__metadata__") {
      for (const auto& [key, ignored] : value.items())
        metadata_[key] = in.require<std::string>(key);
      continue;
    }
    SafetensorsEntry entry;
    entry.name = name;
    entry.dtype = in.require<std::string>("dtype");
    const int64_t element_bits = safetensors_dtype_bits(entry.dtype);
    if (element_bits == 0)
      fail(fmt::format("tensor {} has the unknown dtype \"{}\"", name, entry.dtype));
    const auto integers = [&](const char* key) {
      const Json list = in.require<Json>(key);
      std::vector<int64_t> numbers;
      if (!list.is_array()) fail(fmt::format("tensor {}: {} is not a list", name, key));
      for (const Json& number : list) {
        if (!number.is_number_unsigned() || number.get<uint64_t>() > uint64_t{INT64_MAX})
          fail(fmt::format("tensor {}: {} has the entry {}", name, key, brief_json(number)));
        numbers.push_back(number.get<int64_t>());
      }
      return numbers;
    };
    entry.shape = integers("shape");
    const std::vector<int64_t> offsets = integers("data_offsets");
    if (offsets.size() != 2 || offsets[0] > offsets[1])
      fail(fmt::format("tensor {}: data_offsets {} are not a begin and an end", name,
                       shape_text(offsets)));
    entry.begin_bytes = offsets[0];
    entry.end_bytes = offsets[1];
    const int64_t bits = shape_bits(entry.shape, element_bits);
    if (bits < 0)
      fail(fmt::format("tensor {}: the shape {} is too large", name, shape_text(entry.shape)));
    if (bits % 8 != 0)
      fail(fmt::format("tensor {}: {} {} takes {} bits, no whole number of bytes", name,
                       entry.dtype, shape_text(entry.shape), bits));
    if (bits / 8 != entry.bytes())
      fail(fmt::format("tensor {}: {} {} takes {} bytes, but its offsets span {}", name,
                       entry.dtype, shape_text(entry.shape), bits / 8, entry.bytes()));
    in.finish();
    entries_.push_back(std::move(entry));
  }
}

void SafetensorsFile::check_layout() {
  std::stable_sort(
      entries_.begin(), entries_.end(), [](const SafetensorsEntry& a, const SafetensorsEntry& b) {
        return std::pair(a.begin_bytes, a.end_bytes) < std::pair(b.begin_bytes, b.end_bytes);
      });
  const auto data_bytes = static_cast<int64_t>(file_.bytes().size() - data_start_);
  int64_t expected = 0;
  for (const SafetensorsEntry& entry : entries_) {
    if (entry.end_bytes > data_bytes)
      fail(fmt::format("tensor {} ends at byte {}, but there are only {}; the file is cut off",
                       entry.name, entry.end_bytes, data_bytes));
    if (entry.begin_bytes < expected)
      fail(fmt::format("tensor {} overlaps the one before it", entry.name));
    if (entry.begin_bytes > expected)
      fail(fmt::format("there is a hole of {} bytes before tensor {}", entry.begin_bytes - expected,
                       entry.name));
    expected = entry.end_bytes;
  }
  if (expected != data_bytes)
    fail(fmt::format("{} bytes at its end belong to no tensor", data_bytes - expected));
}

const SafetensorsEntry& SafetensorsFile::entry(const std::string& name) const {
  const auto found = index_.find(name);
  if (found != index_.end()) return entries_[found->second];
  std::vector<std::string> names;
  for (const SafetensorsEntry& entry : entries_) names.push_back(entry.name);
  user_error("{} has no tensor \"{}\"{}", path(), name, did_you_mean(name, names));
}

std::span<const std::byte> SafetensorsFile::bytes(const SafetensorsEntry& entry) const {
  return file_.bytes().subspan(data_start_ + static_cast<size_t>(entry.begin_bytes),
                               static_cast<size_t>(entry.bytes()));
}

void TensorFile::release(const SafetensorsEntry& entry) const {
  // Whole pages inside the tensor: its neighbours may be in use. Dropping a page of a shared
  // mapping of a file loses nothing; a kernel that refuses keeps it, which is only a matter of
  // memory.
  const auto page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
  const std::span<const std::byte> all = bytes(entry);
  const auto first = reinterpret_cast<uintptr_t>(all.data());
  const uintptr_t begin = (first + page - 1) / page * page;
  const uintptr_t end = (first + all.size()) / page * page;
  if (begin < end)
    (void)::madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);  // NOLINT
}

void SafetensorsFile::copy(const std::string& name, const char* dtype, void* dst,
                           size_t elems) const {
  const SafetensorsEntry& found = entry(name);
  if (found.dtype != dtype)
    user_error("{}: tensor {} is {}, where {} is expected", path(), name, found.dtype, dtype);
  if (static_cast<size_t>(found.elems()) != elems)
    user_error("{}: tensor {} has the shape {}, where {} elements are expected", path(), name,
               shape_text(found.shape), elems);
  if (elems > 0) std::memcpy(dst, bytes(found).data(), static_cast<size_t>(found.bytes()));
}

void SafetensorsFile::read(const std::string& name, std::span<float> dst) const {
  copy(name, "F32", dst.data(), dst.size());
}
void SafetensorsFile::read(const std::string& name, std::span<int32_t> dst) const {
  copy(name, "I32", dst.data(), dst.size());
}
void SafetensorsFile::read(const std::string& name, std::span<int64_t> dst) const {
  copy(name, "I64", dst.data(), dst.size());
}

SafetensorsWriter::SafetensorsWriter(std::string path, std::vector<SafetensorsEntry> entries,
                                     const std::map<std::string, std::string>& metadata)
    : entries_(std::move(entries)), file_(std::move(path)) {
  Json header = Json::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  std::set<std::string> names = {"__metadata__"};
  int64_t offset = 0;
  for (SafetensorsEntry& entry : entries_) {
    require(names.insert(entry.name).second, "two tensors named {}", entry.name);
    const int64_t element_bits = safetensors_dtype_bits(entry.dtype);
    const int64_t bits = shape_bits(entry.shape, element_bits);
    require(element_bits > 0 && bits >= 0 && bits % 8 == 0, "tensor {}: {} {}", entry.name,
            entry.dtype, shape_text(entry.shape));
    entry.begin_bytes = offset;
    entry.end_bytes = offset += bits / 8;
    // push_back, not operator[]: the header's object is searched linearly, and the names are
    // distinct already.
    Json description;
    description["dtype"] = entry.dtype;
    description["shape"] = entry.shape;
    description["data_offsets"] = {entry.begin_bytes, entry.end_bytes};
    header.get_ref<Json::object_t&>().push_back({entry.name, std::move(description)});
  }
  std::string text = header.dump();
  text.append((kHeaderAlignment - text.size() % kHeaderAlignment) % kHeaderAlignment, ' ');

  const uint64_t length = text.size();
  append(std::as_bytes(std::span(&length, 1)));
  append(std::as_bytes(std::span(text)));
}

void SafetensorsWriter::write(const std::string& name, std::span<const std::byte> piece) {
  require(!file_.committed(), "write to {} after commit", file_.path());
  while (current_ < entries_.size() && entries_[current_].name != name) {
    require(current_bytes_ == entries_[current_].bytes(), "{}: tensor {} begins before {} is whole",
            file_.path(), name, entries_[current_].name);
    ++current_;
    current_bytes_ = 0;
  }
  require(current_ < entries_.size(), "{}: tensor {} is out of turn", file_.path(), name);
  current_bytes_ += static_cast<int64_t>(piece.size());
  require(current_bytes_ <= entries_[current_].bytes(), "{}: tensor {} has more bytes than {}",
          file_.path(), name, entries_[current_].bytes());
  append(piece);
}

void SafetensorsWriter::append(std::span<const std::byte> piece) {
  bytes_ += static_cast<int64_t>(piece.size());
  // In blocks that a cache holds: what was summed up is written without coming from memory again.
  constexpr size_t kBlockBytes = size_t{1} << 19;
  while (!piece.empty()) {
    const std::span<const std::byte> block = piece.first(std::min(kBlockBytes, piece.size()));
    checksum_.add(block);
    file_.append(block);
    piece = piece.subspan(block.size());
  }
}

void SafetensorsWriter::commit() {
  for (; current_ < entries_.size(); ++current_, current_bytes_ = 0)
    require(current_bytes_ == entries_[current_].bytes(), "{}: tensor {} is not whole",
            file_.path(), entries_[current_].name);
  file_.commit();
}

}  // namespace onefold
