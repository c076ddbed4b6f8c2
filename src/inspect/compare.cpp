// How two models differ: the second half of describe.h.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <set>

#include "base/error.h"
#include "base/text.h"
#include "inspect/blocks.h"
#include "inspect/describe.h"
#include "inspect/hf_export.h"

namespace onefold {
namespace {

// One of the two, as a list of named tensors.
class Side {
 public:
  virtual ~Side() = default;
  virtual std::vector<std::string> names() const = 0;
  virtual bool contains(const std::string& name) const = 0;
  virtual std::string dtype(const std::string& name) const = 0;
  virtual std::vector<int64_t> shape(const std::string& name) const = 0;
  virtual int64_t elems(const std::string& name) const = 0;
  virtual void read(const std::string& name, int64_t first, std::span<double> dst) const = 0;
  // The bytes of the values, one after the other; empty if there are none of this type.
  virtual std::span<const std::byte> raw(const std::string& name) const = 0;
  virtual void release(const std::string& name) const = 0;
};

class FileSide final : public Side {
 public:
  explicit FileSide(const TensorFiles& tensors) : tensors_(tensors) {}
  std::vector<std::string> names() const override { return tensors_.names(); }
  bool contains(const std::string& name) const override { return tensors_.contains(name); }
  std::string dtype(const std::string& name) const override { return tensors_.entry(name).dtype; }
  std::vector<int64_t> shape(const std::string& name) const override {
    return tensors_.entry(name).shape;
  }
  int64_t elems(const std::string& name) const override { return tensors_.entry(name).elems(); }
  void read(const std::string& name, int64_t first, std::span<double> dst) const override {
    if (tensors_.has_numbers(name)) return tensors_.read(name, first, dst);
    // What it holds is not known, only that it differs.
    std::ranges::fill(dst, std::numeric_limits<double>::quiet_NaN());
  }
  std::span<const std::byte> raw(const std::string& name) const override {
    const bool blocks = safetensors_dtype_bits(tensors_.entry(name).dtype) == 0;
    return blocks ? std::span<const std::byte>() : tensors_.bytes(name);
  }
  void release(const std::string& name) const override { tensors_.release(name); }

 private:
  const TensorFiles& tensors_;
};

class ParameterSide final : public Side {
 public:
  explicit ParameterSide(const std::string& path) : source_(open_model(path).source) {
    for (ParamSpec& param : parameters_of(source_->model())) {
      names_.push_back(param.name);
      params_.emplace(names_.back(), std::move(param));
    }
  }
  std::vector<std::string> names() const override { return names_; }
  bool contains(const std::string& name) const override { return params_.contains(name); }
  std::string dtype(const std::string&) const override { return "F32"; }
  std::vector<int64_t> shape(const std::string& name) const override {
    return file_shape(params_.at(name));
  }
  int64_t elems(const std::string& name) const override { return params_.at(name).elems(); }
  void read(const std::string& name, int64_t first, std::span<double> dst) const override {
    std::vector<float> values(dst.size());
    source_->read(params_.at(name), first, values);
    std::copy(values.begin(), values.end(), dst.begin());
  }
  std::span<const std::byte> raw(const std::string&) const override { return {}; }
  void release(const std::string& name) const override { source_->release(params_.at(name)); }

 private:
  std::shared_ptr<const ParameterSource> source_;
  std::vector<std::string> names_;
  std::map<std::string, ParamSpec> params_;
};

struct ValueDifferences {
  int64_t unequal = 0;
  double absolute = 0, relative = 0;

  void add_unequal(double a, double b) {
    ++unequal;
    if (!std::isfinite(a) || !std::isfinite(b)) {
      absolute = relative = std::numeric_limits<double>::infinity();
    } else if (a != b) {  // the two zeros have other bits and are equal
      absolute = std::max(absolute, std::abs(a - b));
      relative = std::max(relative, std::abs(a - b) / std::max(std::abs(a), std::abs(b)));
    }
  }
  void add(const ValueDifferences& other) {
    unequal += other.unequal;
    absolute = std::max(absolute, other.absolute);
    relative = std::max(relative, other.relative);
  }
};

// Whether elements [first, first + count) of so many bits are the same. Where elements share a byte
// it is all of the byte that counts.
bool same_bytes(std::span<const std::byte> a, std::span<const std::byte> b, int64_t bits,
                int64_t first, int64_t count) {
  const auto begin = static_cast<size_t>(first * bits / 8),
             end = static_cast<size_t>(((first + count) * bits + 7) / 8);
  return std::memcmp(&a[begin], &b[begin], end - begin) == 0;
}

// Elements [first, first + count). Where both sides have bytes of one type these decide: what a
// double rounds, and the two zeros, are told apart. Blocks are mostly equal, and then not
// converted.
ValueDifferences compare_block(const Side& a, const Side& b, const std::string& name, bool by_bytes,
                               int64_t first, int64_t count) {
  ValueDifferences part;
  const auto size = static_cast<size_t>(count);
  const int64_t bits = by_bytes ? safetensors_dtype_bits(a.dtype(name)) : 0;
  if (by_bytes && same_bytes(a.raw(name), b.raw(name), bits, first, count)) return part;
  const std::span<const std::byte> left_bytes = a.raw(name), right_bytes = b.raw(name);
  std::vector<double> left(size), right(size);
  a.read(name, first, left);
  b.read(name, first, right);
  for (size_t i = 0; i < size; ++i) {
    const bool same =
        by_bytes ? same_bytes(left_bytes, right_bytes, bits, first + static_cast<int64_t>(i), 1)
                 : std::bit_cast<uint64_t>(left[i]) == std::bit_cast<uint64_t>(right[i]);
    if (!same) part.add_unequal(left[i], right[i]);
  }
  return part;
}

void compare_values(const Side& a, const Side& b, const std::string& name, ThreadPool& pool,
                    TensorDifference& difference) {
  const bool by_bytes =
      a.dtype(name) == b.dtype(name) && !a.raw(name).empty() && !b.raw(name).empty();
  ValueDifferences whole;
  const int64_t elems = a.elems(name);
  for (int64_t start = 0; start < elems; start += kReleaseElems) {
    const int64_t count = std::min(kReleaseElems, elems - start);
    std::vector<ValueDifferences> parts(
        static_cast<size_t>((count + kBlockElems - 1) / kBlockElems));
    pool.run(static_cast<int64_t>(parts.size()), [&](int64_t block, int) {
      const int64_t done = block * kBlockElems;
      parts[static_cast<size_t>(block)] =
          compare_block(a, b, name, by_bytes, start + done, std::min(kBlockElems, count - done));
    });
    for (const ValueDifferences& part : parts) whole.add(part);
    a.release(name);
    b.release(name);
  }
  difference.unequal = whole.unequal;
  difference.max_absolute = whole.absolute;
  difference.max_relative = whole.relative;
}

void compare_sides(const Side& a, const Side& b, ThreadPool& pool, Difference& result) {
  for (const std::string& name : b.names())
    if (!a.contains(name)) result.only_b.push_back(name);
  for (const std::string& name : a.names()) {
    if (!b.contains(name)) {
      result.only_a.push_back(name);
      continue;
    }
    TensorDifference difference;
    difference.name = name;
    difference.dtype_a = a.dtype(name);
    difference.dtype_b = b.dtype(name);
    difference.shape_a = a.shape(name);
    difference.shape_b = b.shape(name);
    if (difference.same_shape()) compare_values(a, b, name, pool, difference);
    result.common.push_back(std::move(difference));
  }
}

std::string lines(std::string_view title, const std::string& path,
                  const std::vector<std::string>& names) {
  if (names.empty()) return "";
  std::string text = fmt::format("{} {}: {}\n", title, path, names.size());
  for (const std::string& name : names) text += fmt::format("  {}\n", printable(name));
  return text;
}

std::string difference_line(const TensorDifference& d) {
  std::string text = fmt::format("  {}  ", printable(d.name));
  if (!d.same_shape())
    return text + fmt::format("{} {} and {} {}\n", d.dtype_a, shape_text(d.shape_a), d.dtype_b,
                              shape_text(d.shape_b));
  int64_t elems = 1;
  for (const int64_t size : d.shape_a) elems *= size;
  text += d.dtype_a == d.dtype_b ? d.dtype_a : fmt::format("{} and {}", d.dtype_a, d.dtype_b);
  text += fmt::format(" {}  ", shape_text(d.shape_a));
  if (d.unequal == 0) return text + "all values are equal\n";
  return text + fmt::format("{} of {} values, by at most {:.3g} (relative {:.3g})\n", d.unequal,
                            elems, d.max_absolute, d.max_relative);
}

}  // namespace

bool Difference::equal() const {
  return only_a.empty() && only_b.empty() &&
         std::all_of(common.begin(), common.end(),
                     [](const TensorDifference& d) { return d.equal(); });
}

Difference compare(const std::string& a, const std::string& b, ThreadPool& pool) {
  Difference result;
  result.a = a;
  result.b = b;
  const Located left = locate(a), right = locate(b);
  result.as_parameters = (left.kind != right.kind || left.checkpoint) && left.model && right.model;
  if (!result.as_parameters && (left.checkpoint || right.checkpoint))
    user_error(
        "{} is a checkpoint, and {} does not say what model it is of; name a folder that does",
        left.checkpoint ? a : b, left.checkpoint ? b : a);
  if (result.as_parameters)
    compare_sides(ParameterSide(a), ParameterSide(b), pool, result);
  else
    compare_sides(FileSide(*left.tensors), FileSide(*right.tensors), pool, result);
  return result;
}

Json difference_json(const Difference& difference) {
  Json json = {{"a", difference.a},           {"b", difference.b},
               {"equal", difference.equal()}, {"as_parameters", difference.as_parameters},
               {"only_a", difference.only_a}, {"only_b", difference.only_b}};
  json["different"] = Json::array();
  int64_t equal = 0;
  for (const TensorDifference& d : difference.common) {
    equal += d.equal();
    if (d.equal()) continue;
    Json item = {{"name", d.name}, {"dtypes", {d.dtype_a, d.dtype_b}}};
    item["shapes"] = {d.shape_a, d.shape_b};
    if (d.same_shape())
      item.update({{"unequal", d.unequal},
                   {"max_absolute", d.max_absolute},
                   {"max_relative", d.max_relative}});
    json["different"].push_back(std::move(item));
  }
  json["equal_tensors"] = equal;
  return json;
}

std::string difference_text(const Difference& difference) {
  std::string text = lines("only in", difference.a, difference.only_a) +
                     lines("only in", difference.b, difference.only_b);
  std::string changed;
  size_t equal = 0;
  for (const TensorDifference& d : difference.common) {
    equal += d.equal();
    if (!d.equal()) changed += difference_line(d);
  }
  if (!changed.empty())
    text += fmt::format("different: {}\n{}", difference.common.size() - equal, changed);
  const char* what = difference.as_parameters ? "parameters" : "tensors";
  if (difference.equal()) return text + fmt::format("equal: all {} {}, bit by bit\n", equal, what);
  return text + fmt::format("equal: {} of the {} {} that both have\n", equal,
                            difference.common.size(), what);
}

}  // namespace onefold
