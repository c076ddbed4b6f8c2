#include "kernel_cases/host_tensor.h"

#include <algorithm>
#include <map>

#include "base/philox.h"
#include "tensor/convert.h"

namespace onefold::cases {
namespace {

template <class T>
HostTensor row_of_type(const std::vector<T>& values, DType dtype) {
  HostTensor row(1, static_cast<int64_t>(values.size()), 0, dtype);
  if (!values.empty()) std::memcpy(row.bytes().data(), values.data(), row.bytes().size());
  return row;
}

template <class T>
double number_at(const std::byte* from) {
  T value;
  std::memcpy(&value, from, sizeof(T));
  return static_cast<double>(value);
}

constexpr int64_t kPeriod = 1 << 20;

// At least `count` of a stream, which are kept: a thousand cases begin with the same ones.
const std::vector<float>& standard_normals(uint64_t seed, int64_t count) {
  static std::map<uint64_t, std::vector<float>> streams;
  std::vector<float>& stream = streams[seed];
  const PhiloxKey key = philox_key(seed, Draw::test, 1);
  for (size_t i = stream.size(); i < static_cast<size_t>(count); ++i)
    stream.push_back(philox_normal(key, i));
  return stream;
}

}  // namespace

HostTensor::HostTensor(int64_t rows, int64_t cols, int64_t gap, DType dtype)
    : rows_(rows), cols_(cols), stride_(cols + gap), dtype_(dtype) {
  const int64_t elems = rows == 0 || cols == 0 ? 0 : (rows - 1) * stride_ + cols;
  bytes_.assign(static_cast<size_t>(elems * dtype_bytes(dtype)), kNothing);
  const auto row_bytes = static_cast<size_t>(cols * dtype_bytes(dtype));
  for (int64_t row = 0; elems > 0 && row < rows; ++row)
    std::fill_n(bytes_.data() + row * stride_ * dtype_bytes(dtype), row_bytes, std::byte{0});
}

void HostTensor::fill(float value) {
  for (int64_t row = 0; row < rows_; ++row)
    for (int64_t col = 0; col < cols_; ++col) set(row, col, value);
}

void HostTensor::set(int64_t row, int64_t col, float value) {
  const auto width = static_cast<size_t>(dtype_bytes(dtype_));
  narrow(dtype_, {&value, 1}, std::span(bytes_).subspan(at_(row, col) * width, width));
}

HostTensor HostTensor::as(DType dtype) const {
  if (dtype == dtype_) return *this;
  HostTensor other(rows_, cols_, stride_ - cols_, dtype);
  for (int64_t row = 0; row < rows_; ++row)
    for (int64_t col = 0; col < cols_; ++col) other.set(row, col, at(row, col));
  return other;
}

HostTensor& HostTensor::clear() {
  std::fill(bytes_.begin(), bytes_.end(), kNothing);
  return *this;
}

std::span<const std::byte> HostTensor::bits(int64_t row, int64_t col) const {
  const auto width = static_cast<size_t>(dtype_bytes(dtype_));
  return std::span(bytes_).subspan(at_(row, col) * width, width);
}

double HostTensor::number(int64_t row, int64_t col) const {
  const std::byte* from = bits(row, col).data();
  switch (dtype_) {
    case DType::f32:
      return number_at<float>(from);
    case DType::f64:
      return number_at<double>(from);
    case DType::i32:
      return number_at<int32_t>(from);
    case DType::i64:
      return number_at<int64_t>(from);
    case DType::u8:
      return number_at<uint8_t>(from);
    case DType::bf16:
    case DType::f16: {
      float value;
      widen(dtype_, bits(row, col), {&value, 1});
      return value;
    }
  }
  return 0;
}

Doubles HostTensor::doubles() const {
  Doubles values;
  values.reserve(static_cast<size_t>(elems()));
  for (int64_t row = 0; row < rows_; ++row)
    for (int64_t col = 0; col < cols_; ++col) values.push_back(number(row, col));
  return values;
}

bool HostTensor::gaps_untouched() const {
  const int64_t width = dtype_bytes(dtype_);
  for (int64_t row = 0; row + 1 < rows_ && cols_ > 0; ++row)
    for (int64_t i = (row * stride_ + cols_) * width; i < (row + 1) * stride_ * width; ++i)
      if (bytes_[static_cast<size_t>(i)] != kNothing) return false;
  return true;
}

HostTensor row_of(const std::vector<float>& values) { return row_of_type(values, DType::f32); }
HostTensor row_of(const std::vector<double>& values) { return row_of_type(values, DType::f64); }
HostTensor row_of(const std::vector<int32_t>& values) { return row_of_type(values, DType::i32); }
HostTensor row_of(const std::vector<int64_t>& values) { return row_of_type(values, DType::i64); }

float rounded(DType dtype, float value) {
  HostTensor one(1, 1, 0, dtype);
  one.set(0, 0, value);
  return one.at(0, 0);
}

HostTensor normals(int64_t rows, int64_t cols, uint64_t seed, int64_t gap, float scale,
                   float mean) {
  const int64_t count = std::min(kPeriod, rows * cols);
  const std::vector<float>& values = standard_normals(seed, count);
  HostTensor tensor(rows, cols, gap);
  for (int64_t row = 0; row < rows; ++row)
    for (int64_t col = 0; col < cols; ++col)
      tensor.set(row, col,
                 mean + scale * values[static_cast<size_t>((row * cols + col) % kPeriod)]);
  return tensor;
}

HostTensor random_ints(int64_t count, int64_t limit, uint64_t seed) {
  const PhiloxKey key = philox_key(seed, Draw::test, 2);
  std::vector<int32_t> values;
  for (int64_t i = 0; i < count; ++i)
    values.push_back(static_cast<int32_t>(philox(key, {static_cast<uint32_t>(i), 0, 0, 0})[0] %
                                          static_cast<uint32_t>(limit)));
  return row_of(values);
}

}  // namespace onefold::cases
