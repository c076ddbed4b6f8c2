// Rotary position embedding, forward and backward, with and without documents.
#include <cmath>

#include "kernel_cases/families.h"
#include "kernel_cases/oracle.h"

namespace onefold::cases {
namespace {

struct Params {
  int64_t batch, length, heads, head_dim, first, gap;
  std::vector<int64_t> documents = {};  // their lengths; empty: no starts
  DType dtype = DType::f32;
  float scale = 1;
  int64_t turned = head_dim;  // of each head

  int64_t rows() const { return batch * length; }
  int64_t cols() const { return heads * head_dim; }
};

// [positions, turned]: cosines then sines, as the kernel reads them.
HostTensor angles(int64_t positions, int64_t head_dim, int64_t gap) {
  HostTensor table(positions, head_dim, gap);
  for (int64_t p = 0; p < positions; ++p)
    for (int64_t i = 0; i < head_dim / 2; ++i) {
      const double angle =
          static_cast<double>(p) *
          std::pow(10000.0, -2.0 * static_cast<double>(i) / static_cast<double>(head_dim));
      table.set(p, i, static_cast<float>(std::cos(angle)));
      table.set(p, i + head_dim / 2, static_cast<float>(std::sin(angle)));
    }
  return table;
}

std::vector<int64_t> positions_of(const Params& p) {
  std::vector<int64_t> positions;
  for (int64_t row = 0; row < p.rows(); ++row) positions.push_back(p.first + row % p.length);
  if (p.documents.empty()) return positions;
  // Each document on its own.
  for (const DocumentRows& document :
       documents_of(document_starts(p.batch, p.length, p.documents), p.length))
    for (int64_t row = document.begin; row < document.end; ++row)
      positions[static_cast<size_t>(row)] = row - document.begin;
  return positions;
}

// sign -1 turns back: the transposed of a rotation, and so its gradient.
Doubles rotated(const Params& p, const Doubles& x, const HostTensor& table, double sign) {
  const auto half = static_cast<size_t>(p.turned / 2);
  const std::vector<int64_t> positions = positions_of(p);
  Doubles y(x.size());
  for (size_t e = 0; e < x.size(); ++e) {
    const int64_t position = positions[e / static_cast<size_t>(p.cols())];
    const size_t i = e % static_cast<size_t>(p.head_dim);
    if (i >= 2 * half) {
      y[e] = x[e];
      continue;
    }
    const auto angle = static_cast<int64_t>(i % half);
    const double c = table.at(position, angle), s = sign * table.at(position, angle + p.turned / 2);
    y[e] = i < half ? x[e] * c - x[e + half] * s : x[e] * c + x[e - half] * s;
  }
  return y;
}

// How the documents of a case are told to the kernel.
enum class By { starts, calls };  // one call with starts, or one call for each document

Case rope_case(Params p, bool inverse, By by = By::starts) {
  Case c;
  const int x =
      c.output("x", normals(p.rows(), p.cols(), inverse ? 2 : 1, p.gap, p.scale).as(p.dtype));
  const int table = c.input("table", angles(p.first + p.length, p.turned, 1));
  const std::vector<int32_t> begins = p.documents.empty()
                                          ? std::vector<int32_t>{}
                                          : document_starts(p.batch, p.length, p.documents);
  const int starts = begins.empty() ? -1 : c.input("starts", row_of(begins));
  c.run = [=](Call& call) {
    if (by == By::starts)
      return call.kernels().rope(call[x], p.heads, call[table],
                                 {p.first, p.length, starts < 0 ? Tensor{} : call[starts]},
                                 inverse);
    for (const DocumentRows& d : documents_of(begins, p.length))
      call.kernels().rope(call[x].row_range(d.begin, d.end - d.begin), p.heads, call[table],
                          {0, d.end - d.begin}, inverse);
  };
  c.expected = [=](const Case& in) {
    const Doubles xs = in[x].doubles();
    const double error = 3 * 5 * kUnit * p.scale;  // two products of |x| <= 5 and their sum
    std::vector<Expected> all = {
        stored(p.dtype, close(x, rotated(p, xs, in[table], inverse ? -1 : 1), error))};
    // Here x holds the gradient of what was rotated.
    if (inverse && xs.size() <= 2000 && p.scale == 1) {
      const auto loss = [&](const Doubles& v) { return dot(xs, rotated(p, v, in[table], 1)); };
      all.push_back(stored(p.dtype, close(x, gradient_of(loss, xs), error + kDifferenceError)));
    }
    return all;
  };
  if (!begins.empty() && by == By::starts) {
    c.twin = Twin{[=] { return rope_case(p, inverse, By::calls); }, {{"x"}}};
    // A whole sequence as one document is no document at all.
    if (p.documents == std::vector{p.length})
      c.twin->make = [=] {
        Params plain = p;
        plain.documents.clear();
        return rope_case(plain, inverse);
      };
  }
  return c;
}

void add(CaseList& list, const Params& p) {
  const std::string name = fmt::format(
      "{}x{}, {} head{} of {}{}, from {}{}{}{}{}", p.batch, p.length, p.heads,
      p.heads == 1 ? "" : "s", p.head_dim,
      p.turned < p.head_dim ? fmt::format(", {} of them turned", p.turned) : "", p.first,
      p.gap > 0 ? " strided" : "",
      p.documents.empty() ? "" : fmt::format(" documents {}", fmt::join(p.documents, ",")),
      type_suffix(p.dtype), p.scale == 1 ? "" : fmt::format(" times {}", p.scale));
  list.push_back({"rope", name, [=] { return rope_case(p, false); }});
  list.push_back({"rope", name + " inverse", [=] { return rope_case(p, true); }});
}

}  // namespace

void add_rope_cases(CaseList& list) {
  add(list, {1, 1, 1, 2, 0, 0});
  add(list, {2, 3, 3, 10, 2, 7});
  add(list, {2, 7, 2, 64, 5, 0});
  add(list, {1, 5, 1, 34, 0, 6});
  add(list, {4, 67, 5, 48, 0, 0});  // many chunks
  add(list, {0, 5, 1, 8, 0, 0});
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    add(list, {2, 3, 3, 10, 2, 7, {}, dtype, 1, 4});
    add(list, {4, 67, 5, 48, 0, 0, {}, dtype, 1, 16});
    add(list, {2, 7, 2, 21, 0, 3, {3, 4}, dtype, 1, 6});
  }
  add(list, {2, 7, 2, 6, 0, 3, {7}});
  add(list, {3, 11, 2, 10, 0, 3, {1, 2, 4}});
  add(list, {2, 300, 2, 16, 0, 0, {128, 57, 1, 200}});
  for (const DType dtype : kHalfTypes) {
    add(list, {1, 1, 1, 2, 0, 0, {}, dtype});
    add(list, {2, 3, 3, 10, 2, 7, {}, dtype});
    add(list, {4, 67, 5, 48, 0, 0, {}, dtype});
    add(list, {3, 11, 2, 10, 0, 3, {1, 2, 4}, dtype});
    // Pairs whose sum is infinite, and pairs of subnormals of f16.
    add(list, {2, 7, 2, 64, 5, 0, {}, dtype, dtype == DType::f16 ? 0x1p14f : 0x1p125f});
    add(list, {2, 7, 2, 64, 5, 0, {}, dtype, 0x1p-20f});
  }
}

void add_rope_benchmarks(CaseList& list) {
  for (const DType dtype : {DType::f32, DType::bf16})
    list.push_back({"rope", "forward 1024x768, 12 heads" + type_suffix(dtype), [=] {
                      return rope_case({1, 1024, 12, 64, 0, 0, {}, dtype}, false);
                    }});
}

}  // namespace onefold::cases
