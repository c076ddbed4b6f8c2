#include "base/gguf.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <set>

#include "base/error.h"

namespace onefold {
namespace {

static_assert(std::endian::native == std::endian::little, "GGUF files are mapped as they lie");

constexpr std::string_view kMagic = "GGUF";
constexpr uint64_t kMostEntries = uint64_t{1}
                                  << 24;  // of a list: eight times the largest vocabulary
constexpr uint64_t kMostValues = uint64_t{1} << 16;
constexpr uint64_t kMostTensors = uint64_t{1} << 20;
constexpr uint32_t kMostDimensions = 4;
constexpr size_t kLongestName = 64;  // llama.cpp's limit

constexpr std::array<GgmlType, 32> kTypes = {{
    {0, "F32", 1, 4},         {1, "F16", 1, 2},         {2, "Q4_0", 32, 18},
    {3, "Q4_1", 32, 20},      {6, "Q5_0", 32, 22},      {7, "Q5_1", 32, 24},
    {8, "Q8_0", 32, 34},      {9, "Q8_1", 32, 36},      {10, "Q2_K", 256, 84},
    {11, "Q3_K", 256, 110},   {12, "Q4_K", 256, 144},   {13, "Q5_K", 256, 176},
    {14, "Q6_K", 256, 210},   {15, "Q8_K", 256, 292},   {16, "IQ2_XXS", 256, 66},
    {17, "IQ2_XS", 256, 74},  {18, "IQ3_XXS", 256, 98}, {19, "IQ1_S", 256, 50},
    {20, "IQ4_NL", 32, 18},   {21, "IQ3_S", 256, 110},  {22, "IQ2_S", 256, 82},
    {23, "IQ4_XS", 256, 136}, {24, "I8", 1, 1},         {25, "I16", 1, 2},
    {26, "I32", 1, 4},        {27, "I64", 1, 8},        {28, "F64", 1, 8},
    {29, "IQ1_M", 256, 56},   {30, "BF16", 1, 2},       {34, "TQ1_0", 256, 54},
    {35, "TQ2_0", 256, 66},   {39, "MXFP4", 32, 17},
}};

enum ValueType : uint32_t {
  kUint8,
  kInt8,
  kUint16,
  kInt16,
  kUint32,
  kInt32,
  kFloat32,
  kBool,
  kString,
  kList,
  kUint64,
  kInt64,
  kFloat64
};

// Bytes that an entry takes at least; 0 for a type there is not.
size_t least_bytes(uint32_t type) {
  constexpr std::array<size_t, 13> kBytes = {1, 1, 2, 2, 4, 4, 4, 1, 8, 0, 8, 8, 8};
  return type < kBytes.size() ? kBytes[type] : 0;
}

template <typename T>
void put(std::string& bytes, T value) {
  bytes.append(reinterpret_cast<const char*>(&value), sizeof(value));
}
void put(std::string& bytes, std::string_view text) {
  put(bytes, uint64_t{text.size()});
  bytes.append(text);
}

// The bytes of a shape in blocks along its rows, or -1 if they are not whole or too many.
int64_t shape_bytes(std::span<const int64_t> shape, const GgmlType& type) {
  const int64_t row = shape.empty() ? 1 : shape.back();
  if (row % type.elems != 0) return -1;
  int64_t bytes = row / type.elems;
  if (__builtin_mul_overflow(bytes, type.bytes, &bytes)) return -1;
  for (size_t i = 0; i + 1 < shape.size(); ++i)
    if (__builtin_mul_overflow(bytes, shape[i], &bytes)) return -1;
  return bytes;
}

}  // namespace

const GgmlType* ggml_type_named(std::string_view name) {
  const auto found = std::ranges::find(kTypes, name, &GgmlType::name);
  return found == kTypes.end() ? nullptr : &*found;
}
const GgmlType* ggml_type_numbered(uint32_t number) {
  const auto found = std::ranges::find(kTypes, number, &GgmlType::number);
  return found == kTypes.end() ? nullptr : &*found;
}

// Takes numbers and strings from the front, and never more than there is.
class GgufFile::Reader {
 public:
  explicit Reader(const GgufFile& file) : file_(file), all_(file.file_.bytes()) {}

  size_t at() const { return at_; }
  size_t left() const { return all_.size() - at_; }

  template <typename T>
  T take() {
    T value;
    std::memcpy(&value, take_bytes(sizeof(T)), sizeof(T));
    return value;
  }
  std::string take_text() {
    const auto length = take<uint64_t>();
    if (length > left()) cut_off();
    return {reinterpret_cast<const char*>(take_bytes(length)), length};
  }
  Json take_value(uint32_t type) {
    switch (type) {
      case kUint8:
        return take<uint8_t>();
      case kInt8:
        return take<int8_t>();
      case kUint16:
        return take<uint16_t>();
      case kInt16:
        return take<int16_t>();
      case kUint32:
        return take<uint32_t>();
      case kInt32:
        return take<int32_t>();
      case kFloat32:
        return take<float>();
      case kBool:
        return take<uint8_t>() != 0;
      case kString:
        return take_text();
      case kUint64:
        return take<uint64_t>();
      case kInt64:
        return take<int64_t>();
      case kFloat64:
        return take<double>();
      default:
        file_.fail(fmt::format("a value has the type {}, which there is not", type));
    }
  }
  Json take_list() {
    const auto type = take<uint32_t>();
    const auto count = take<uint64_t>();
    const size_t least = least_bytes(type);
    if (least == 0) file_.fail(fmt::format("a list's entries have the type {}", type));
    if (count > left() / least) cut_off();
    if (count > kMostEntries)
      file_.fail(fmt::format("a list has {} entries; at most {} are read", count, kMostEntries));
    Json list = Json::array();
    list.get_ref<Json::array_t&>().reserve(count);
    for (uint64_t i = 0; i < count; ++i) list.push_back(take_value(type));
    return list;
  }

 private:
  [[noreturn]] void cut_off() const { file_.fail("it ends within its header: it is cut off"); }
  const std::byte* take_bytes(size_t count) {
    if (count > left()) cut_off();
    at_ += count;
    return all_.data() + at_ - count;
  }

  const GgufFile& file_;
  std::span<const std::byte> all_;
  size_t at_ = 0;
};

GgufFile::GgufFile(const std::string& path) : file_(path) {
  const std::span<const std::byte> all = file_.bytes();
  if (all.size() < kMagic.size() || std::memcmp(all.data(), kMagic.data(), kMagic.size()) != 0)
    fail("it does not begin with GGUF");
  Reader in(*this);
  in.take<uint32_t>();
  const auto version = in.take<uint32_t>();
  if (version < 2 || version > 3)
    fail(fmt::format(
        "it is of version {}; 2 and 3 are read{}", version,
        (version & 0xFFFF) == 0 && version != 0 ? ", and this one's numbers are big-endian" : ""));
  const auto tensors = in.take<uint64_t>(), values = in.take<uint64_t>();
  read_values(in, values);
  read_tensors(in, tensors);
  place_tensors(in.at());
}

void GgufFile::fail(const std::string& message) const {
  user_error("{} is not a valid GGUF file: {}", path(), message);
}

void GgufFile::read_values(Reader& in, uint64_t count) {
  if (count > kMostValues) fail(fmt::format("it would have {} values", count));
  std::set<std::string> keys;
  for (uint64_t i = 0; i < count; ++i) {
    std::string key = in.take_text();
    if (!keys.insert(key).second) fail("a key appears twice");
    const auto type = in.take<uint32_t>();
    Json value = type == kList ? in.take_list() : in.take_value(type);
    // push_back, not operator[]: the object is searched linearly, and the keys are distinct.
    values_.get_ref<Json::object_t&>().push_back({std::move(key), std::move(value)});
  }
}

void GgufFile::read_tensors(Reader& in, uint64_t count) {
  if (count > kMostTensors) fail(fmt::format("it would have {} tensors", count));
  std::set<std::string> names;
  for (uint64_t i = 0; i < count; ++i) {
    GgufTensor tensor;
    tensor.name = in.take_text();
    if (tensor.name.size() >= kLongestName) fail("a tensor's name is too long");
    if (!names.insert(tensor.name).second) fail(fmt::format("it has two tensors {}", tensor.name));
    const auto dimensions = in.take<uint32_t>();
    if (dimensions > kMostDimensions)
      fail(fmt::format("tensor {} has {} dimensions", tensor.name, dimensions));
    for (uint32_t d = 0; d < dimensions; ++d) {
      const auto size = in.take<uint64_t>();
      if (size > uint64_t{INT64_MAX})
        fail(fmt::format("tensor {} has a size of {}", tensor.name, size));
      tensor.shape.insert(tensor.shape.begin(), static_cast<int64_t>(size));
    }
    const auto type = in.take<uint32_t>();
    tensor.type = ggml_type_numbered(type);
    if (!tensor.type)
      fail(fmt::format("tensor {} has the type {}, which is not known", tensor.name, type));
    const int64_t bytes = shape_bytes(tensor.shape, *tensor.type);
    if (bytes < 0)
      fail(fmt::format("tensor {}: {} [{}] is too large, or its rows are not whole blocks of {}",
                       tensor.name, tensor.type->name, fmt::join(tensor.shape, ", "),
                       tensor.type->elems));
    tensor.bytes = static_cast<size_t>(bytes);
    const auto place = in.take<uint64_t>();
    if (place > file_.bytes().size())
      fail(fmt::format("tensor {} begins beyond the file's end; it is cut off", tensor.name));
    tensor.begin_bytes = place;
    tensors_.push_back(std::move(tensor));
  }
}

// From places among the tensors to places in the file.
void GgufFile::place_tensors(size_t header_bytes) {
  uint64_t alignment = GgufHeader::kAlignment;
  if (const auto given = values_.find("general.alignment"); given != values_.end()) {
    if (!given->is_number_unsigned()) fail("general.alignment is not a number");
    alignment = given->get<uint64_t>();
  }
  if (alignment == 0 || alignment > (1u << 20) || !std::has_single_bit(alignment))
    fail(fmt::format("general.alignment is {}", alignment));
  const uint64_t begin = (header_bytes + alignment - 1) / alignment * alignment;
  const size_t all = file_.bytes().size();
  std::vector<const GgufTensor*> by_place;
  for (GgufTensor& tensor : tensors_) {
    if (tensor.begin_bytes % alignment != 0)
      fail(fmt::format("tensor {} does not begin at a multiple of {}", tensor.name, alignment));
    tensor.begin_bytes += begin;
    if (tensor.begin_bytes > all || tensor.bytes > all - tensor.begin_bytes)
      fail(fmt::format("tensor {} ends at byte {}, but there are only {}; the file is cut off",
                       tensor.name, tensor.begin_bytes + tensor.bytes, all));
    by_place.push_back(&tensor);
  }
  std::ranges::stable_sort(by_place, {}, &GgufTensor::begin_bytes);
  for (size_t i = 1; i < by_place.size(); ++i)
    if (by_place[i - 1]->begin_bytes + by_place[i - 1]->bytes > by_place[i]->begin_bytes)
      fail(fmt::format("tensor {} overlaps {}", by_place[i]->name, by_place[i - 1]->name));
}

const GgufTensor* GgufFile::tensor(std::string_view name) const {
  const auto found = std::ranges::find(tensors_, name, &GgufTensor::name);
  return found == tensors_.end() ? nullptr : &*found;
}

const Json& GgufFile::value(const std::string& key) const {
  const auto found = values_.find(key);
  if (found == values_.end()) user_error("{} has no value {}", path(), key);
  return *found;
}
int64_t GgufFile::integer(const std::string& key) const {
  const Json& found = value(key);
  const bool fits = found.is_number_integer() &&
                    (!found.is_number_unsigned() || found.get<uint64_t>() <= uint64_t{INT64_MAX});
  if (!fits) user_error("{}: {} is not a whole number", path(), key);
  return found.get<int64_t>();
}
double GgufFile::number(const std::string& key) const {
  const Json& found = value(key);
  if (!found.is_number()) user_error("{}: {} is not a number", path(), key);
  return found.get<double>();
}
std::string GgufFile::text(const std::string& key) const {
  const Json& found = value(key);
  if (!found.is_string()) user_error("{}: {} is not a text", path(), key);
  return found.get<std::string>();
}

std::string& GgufHeader::begin(const std::string& key, uint32_t type) {
  put(values_, std::string_view(key));
  put(values_, type);
  ++value_count_;
  return values_;
}
void GgufHeader::add(const std::string& key, std::string_view text) {
  put(begin(key, kString), text);
}
void GgufHeader::add(const std::string& key, uint32_t number) { put(begin(key, kUint32), number); }
void GgufHeader::add(const std::string& key, float number) { put(begin(key, kFloat32), number); }
void GgufHeader::add(const std::string& key, bool truth) {
  put(begin(key, kBool), static_cast<uint8_t>(truth));
}
void GgufHeader::add(const std::string& key, std::span<const std::string> texts) {
  std::string& bytes = begin(key, kList);
  put(bytes, uint32_t{kString});
  put(bytes, uint64_t{texts.size()});
  for (const std::string& text : texts) put(bytes, std::string_view(text));
}
void GgufHeader::add(const std::string& key, std::span<const float> numbers) {
  std::string& bytes = begin(key, kList);
  put(bytes, uint32_t{kFloat32});
  put(bytes, uint64_t{numbers.size()});
  for (const float number : numbers) put(bytes, number);
}
void GgufHeader::add(const std::string& key, std::span<const int32_t> numbers) {
  std::string& bytes = begin(key, kList);
  put(bytes, uint32_t{kInt32});
  put(bytes, uint64_t{numbers.size()});
  for (const int32_t number : numbers) put(bytes, number);
}

void GgufHeader::add_tensor(const std::string& name, const GgmlType& type,
                            std::span<const int64_t> shape) {
  const int64_t bytes = shape_bytes(shape, type);
  require(bytes >= 0 && name.size() < kLongestName, "tensor {}: {} [{}]", name, type.name,
          fmt::join(shape, ", "));
  put(tensors_, std::string_view(name));
  put(tensors_, static_cast<uint32_t>(shape.size()));
  for (size_t d = shape.size(); d-- > 0;) put(tensors_, static_cast<uint64_t>(shape[d]));
  put(tensors_, type.number);
  put(tensors_, uint64_t{next_});
  next_ += static_cast<size_t>(bytes);
  next_ += padding(next_);
  ++tensor_count_;
}

std::string GgufHeader::bytes() const {
  std::string all(kMagic);
  put(all, uint32_t{3});
  put(all, tensor_count_);
  put(all, value_count_);
  all += values_ + tensors_;
  all.append(padding(all.size()), '\0');
  return all;
}

}  // namespace onefold
