// One list of cases for all kernels, which every device runs through `Kernels&`. A case makes its
// tensors in host memory, calls a kernel on their copies in a device's memory, and says in double
// what must come out. Tests run all of them; `onefold bench kernels` times a few of realistic size,
// made by the same functions.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "kernel_cases/host_tensor.h"
#include "kernels/kernels.h"

namespace onefold::cases {

// A case's tensors in a device's memory, numbered as in the case.
class Call {
 public:
  virtual ~Call() = default;
  virtual Kernels& kernels() = 0;
  virtual Tensor operator[](int tensor) const = 0;
  // Of exactly this size, holding no number; empty for 0.
  virtual Tensor scratch(int64_t bytes) = 0;
};

// |actual - values| <= bounds for each element; where a value is not a number, or infinite, so is
// the actual one.
struct Expected {
  int tensor;
  Doubles values, bounds;
  bool not_finite = false;  // instead: each element is infinite or no number
};

struct Case;

// Another way to the same results: tensors of the same names must have the same bits in both.
struct Twin {
  struct Part {  // a block of a tensor; an end of -1 is the tensor's
    std::string tensor;
    int64_t row_begin = 0, row_end = -1, col_begin = 0, col_end = -1;
  };
  std::function<Case()> make;
  std::vector<Part> parts;
  bool every_device = true;  // false: promised by the CPU alone
};

struct Case {
  struct Member {
    std::string name;
    HostTensor values;
    bool written;
  };
  std::vector<Member> tensors;
  std::function<void(Call&)> prepare;  // or null: what must happen first, and is not timed
  std::function<void(Call&)> run;
  using Oracle = std::function<std::vector<Expected>(const Case&)>;
  Oracle expected;  // made only when wanted
  // The same with the bounds of a device whose kernels are a library's, where that rounds more
  // often than ours (kernels.h); null: there is no difference.
  Oracle expected_of_library;
  std::optional<Twin> twin;

  // An input comes back with the bits it had. An output is written where it has elements; what it
  // held before may count (accumulate), or be cleared.
  int input(std::string name, HostTensor values);
  int output(std::string name, HostTensor values);
  const HostTensor& operator[](int tensor) const {
    return tensors[static_cast<size_t>(tensor)].values;
  }
  HostTensor& operator[](int tensor) { return tensors[static_cast<size_t>(tensor)].values; }
  // The number of a tensor; -1 if there is none of this name.
  int find(const std::string& name) const;
};

struct CaseEntry {
  std::string family, name;
  std::function<Case()> make;
};
using CaseList = std::vector<CaseEntry>;

// Ways to write Expected.
Expected exactly(int tensor, Doubles values);
Expected close(int tensor, Doubles values, double absolute, double relative = 0);
// Within `relative` of a magnitude for each element, such as the sum of magnitudes of its terms.
Expected within(int tensor, Doubles values, const Doubles& magnitudes, double relative,
                double absolute = 0);

// What a kernel computes in f32 and stores in `dtype`: every number within the bounds, rounded.
// That is at most one rounding more than the bounds say, and nothing for f32. Infinite where all of
// them round to infinity; bounds around the largest number of a type decide nothing, and are
// refused.
Expected stored(DType dtype, Expected expected);

// The types of 16 bits, which every family has cases of.
inline constexpr DType kHalfTypes[] = {DType::bf16, DType::f16};
// What names of cases end with: nothing for f32.
std::string type_suffix(DType dtype);

// By family, in the order of kernels.h.
std::vector<std::string> case_families();
CaseList cases_of(const std::string& family);
CaseList benchmarks_of(const std::string& family);

}  // namespace onefold::cases
