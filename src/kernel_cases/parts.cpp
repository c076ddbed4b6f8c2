// Kernels on rows that are a part of their sequences, by the places of these: dropout, rotary and
// learned positions.
#include <algorithm>
#include <array>
#include <cmath>

#include "kernel_cases/families.h"
#include "kernel_cases/oracle.h"

namespace onefold::cases {
namespace {

constexpr PhiloxKey kPartKey = {0x12345678u, 0x9abcdef0u};
constexpr float kPartRate = 0.3f;

struct Part {
  int64_t batch, whole, length, cols;  // sequences, their rows, those that are here, columns
  DType dtype = DType::f32;
  bool documents = false;               // two in each sequence
  int64_t first_col = 0, all_cols = 0;  // of dropout, as Dropout's

  int64_t rows() const { return batch * length; }
  // Runs from both ends of a sequence, and not in order: a kernel may take no order for granted.
  std::vector<int32_t> places() const {
    std::vector<int32_t> list;
    for (int64_t row = 0; row < rows(); ++row) {
      const int64_t i = row % length, head = length / 2;
      list.push_back(static_cast<int32_t>(i < head ? i + 1 : whole - 1 - (i - head)));
    }
    return list;
  }
  std::vector<int32_t> starts() const {
    std::vector<int32_t> list;
    for (const int32_t place : places())
      list.push_back(!documents || place < whole / 2 ? 0 : static_cast<int32_t>(whole / 2));
    return list;
  }
  // Of each row in its document.
  std::vector<int64_t> positions() const {
    std::vector<int64_t> list;
    for (size_t row = 0; row < static_cast<size_t>(rows()); ++row)
      list.push_back(places()[row] - starts()[row]);
    return list;
  }
};

RowPositions positions_in(Call& call, const Part& p, int places, int starts) {
  return {
      .length = p.length, .starts = p.documents ? call[starts] : Tensor{}, .places = call[places]};
}

// Of ones: the mask itself, which is exact.
Case dropped_part(const Part& p) {
  Case c;
  HostTensor ones(p.rows(), p.cols, 2, p.dtype);
  ones.fill(1);
  std::vector<int64_t> ids;
  for (int64_t i = 0; i < p.batch; ++i) ids.push_back(7 + 3 * i);
  const int x = c.input("x", ones), samples = c.input("samples", row_of(ids)),
            places = c.input("places", row_of(p.places())),
            dst = c.output("dst", HostTensor(p.rows(), p.cols, 1, p.dtype).clear());
  c.run = [=](Call& call) {
    Dropout dropout{kPartRate, kPartKey, call[samples], {}, p.first_col, p.all_cols};
    if (p.whole != p.length) dropout.places = call[places];
    call.kernels().dropout(call[x], dropout, p.length, {}, call[dst]);
  };
  c.expected = [=](const Case&) {
    Doubles values;
    for (int64_t row = 0; row < p.rows(); ++row)
      for (int64_t col = 0; col < p.cols; ++col) {
        const int64_t place =
            p.whole == p.length ? row % p.length : p.places()[static_cast<size_t>(row)];
        const int64_t element = place * std::max(p.cols, p.all_cols) + p.first_col + col;
        values.push_back(dropout_multiplier(
            kPartKey, static_cast<uint64_t>(ids[static_cast<size_t>(row / p.length)]),
            static_cast<uint64_t>(element), kPartRate));
      }
    return std::vector{stored(p.dtype, exactly(dst, values))};
  };
  return c;
}

// A table whose angles are all different, and need not be those of positions.
Case rotated_part(const Part& p, bool inverse) {
  Case c;
  const int x = c.output("x", normals(p.rows(), p.cols, 1, 3).as(p.dtype)),
            table = c.input("table", normals(p.whole, p.cols, 2, 1)),
            places = c.input("places", row_of(p.places())),
            starts = c.input("starts", row_of(p.starts()));
  c.run = [=](Call& call) {
    call.kernels().rope(call[x], 1, call[table], positions_in(call, p, places, starts), inverse);
  };
  c.expected = [=](const Case& in) {
    const int64_t half = p.cols / 2;
    const std::vector<int64_t> positions = p.positions();
    Doubles values;
    for (int64_t row = 0; row < p.rows(); ++row)
      for (int64_t col = 0; col < p.cols; ++col) {
        const int64_t at = positions[static_cast<size_t>(row)], i = col % half;
        const double cosine = in[table].at(at, i), sine = in[table].at(at, i + half),
                     a = in[x].at(row, i), b = in[x].at(row, i + half), turn = inverse ? -1 : 1;
        values.push_back(col < half ? a * cosine - turn * b * sine : b * cosine + turn * a * sine);
      }
    // Two products of numbers up to 5, and their sum.
    return std::vector{stored(p.dtype, close(x, values, 3 * 25 * kUnit))};
  };
  return c;
}

// Positions alone: every token is the first, whose row is zeros.
Case looked_up_part(const Part& p) {
  Case c;
  const int tokens = c.input("tokens", row_of(std::vector<int32_t>(static_cast<size_t>(p.rows())))),
            table = c.input("table", HostTensor(1, p.cols, 0, p.dtype)),
            positions = c.input("positions", normals(p.whole, p.cols, 2, 1).as(p.dtype)),
            places = c.input("places", row_of(p.places())),
            starts = c.input("starts", row_of(p.starts())),
            dst = c.output("dst", HostTensor(p.rows(), p.cols, 1, p.dtype).clear());
  c.run = [=](Call& call) {
    call.kernels().embedding_forward(call[tokens], call[table], call[positions],
                                     positions_in(call, p, places, starts), call[dst]);
  };
  c.expected = [=](const Case& in) {
    Doubles values;
    for (const int64_t at : p.positions())
      for (int64_t col = 0; col < p.cols; ++col) values.push_back(in[positions].at(at, col));
    return std::vector{exactly(dst, values)};
  };
  return c;
}

// Rows of one position are added in their order; rows without one get nothing.
Case positions_gradient_part(const Part& p, bool accumulate) {
  Case c;
  const auto gradient = [&](const char* name, int64_t rows, uint64_t seed) {
    HostTensor old = normals(rows, p.cols, seed, 1);
    return c.output(name, accumulate ? old : old.clear());
  };
  const int tokens = c.input("tokens", row_of(std::vector<int32_t>(static_cast<size_t>(p.rows())))),
            dx = c.input("dx", normals(p.rows(), p.cols, 1, 2).as(p.dtype)),
            places = c.input("places", row_of(p.places())),
            starts = c.input("starts", row_of(p.starts())), dtable = gradient("dtable", 1, 3),
            dpositions = gradient("dpositions", p.whole, 4);
  c.run = [=](Call& call) {
    Kernels& k = call.kernels();
    k.embedding_backward(call[tokens], call[dx], positions_in(call, p, places, starts),
                         call[dtable], accumulate, call[dpositions], accumulate,
                         call.scratch(k.embedding_backward_scratch_bytes(p.rows(), p.whole)));
  };
  c.expected = [=](const Case& in) {
    Doubles sums =
        accumulate ? in[dpositions].doubles() : Doubles(static_cast<size_t>(p.whole * p.cols));
    Doubles of_table = accumulate ? in[dtable].doubles() : Doubles(static_cast<size_t>(p.cols));
    const std::vector<int64_t> positions = p.positions();
    for (int64_t row = 0; row < p.rows(); ++row)
      for (int64_t col = 0; col < p.cols; ++col) {
        const double value = in[dx].at(row, col);
        const int64_t at = positions[static_cast<size_t>(row)];
        sums[static_cast<size_t>(at * p.cols + col)] += value;
        of_table[static_cast<size_t>(col)] += value;
      }
    // A chain of sums of numbers up to 5.
    const auto terms = static_cast<double>(p.rows() + 1);
    return std::vector{close(dtable, of_table, 5 * terms * terms * kUnit),
                       close(dpositions, sums, 5 * terms * terms * kUnit)};
  };
  return c;
}

// Two results of attention over different keys, and their logarithms of sums: the weights of the
// two are shares of all.
Case merged_parts(int64_t rows, int64_t heads, int64_t dim, float spread, DType dtype) {
  Case c;
  const auto lses = [&](uint64_t seed) { return normals(heads, rows, seed, 2, spread); };
  const int out = c.output("out", normals(rows, heads * dim, 1, 3).as(dtype)),
            lse = c.output("lse", lses(2)),
            more = c.input("more", normals(rows, heads * dim, 3, 1).as(dtype)),
            more_lse = c.input("more_lse", lses(4));
  c.run = [=](Call& call) {
    call.kernels().merge_attention(call[out], call[lse], call[more], call[more_lse]);
  };
  c.expected = [=](const Case& in) {
    Doubles values, sums;
    for (int64_t row = 0; row < rows; ++row)
      for (int64_t col = 0; col < heads * dim; ++col) {
        const double a = in[lse].at(col / dim, row), b = in[more_lse].at(col / dim, row);
        const double share = 1 / (1 + std::exp(b - a));
        values.push_back(share * in[out].at(row, col) + (1 - share) * in[more].at(row, col));
      }
    for (int64_t head = 0; head < heads; ++head)
      for (int64_t row = 0; row < rows; ++row) {
        const double a = in[lse].at(head, row), b = in[more_lse].at(head, row);
        sums.push_back(std::max(a, b) + std::log1p(std::exp(-std::abs(a - b))));
      }
    // Logarithms up to 5 * spread, whose differences are exponents of the weights of numbers up to
    // 5; exponentials and logarithms of the library within 2 units.
    const double error = (4 * 5 * spread + 12) * kUnit;
    return std::vector{stored(dtype, close(out, values, 2 * 5 * error)), close(lse, sums, error)};
  };
  return c;
}

void add_part(CaseList& list, const Part& p) {
  const std::string shape =
      fmt::format("{} x {} of {} rows, {} columns{}{}", p.batch, p.length, p.whole, p.cols,
                  p.documents ? " documents" : "", type_suffix(p.dtype));
  const auto add = [&](const char* what, std::function<Case()> make) {
    list.push_back({"parts", fmt::format("{} {}", what, shape), std::move(make)});
  };
  if (!p.documents) add("dropout", [=] { return dropped_part(p); });
  add("rope", [=] { return rotated_part(p, false); });
  add("rope inverse", [=] { return rotated_part(p, true); });
  add("embedding", [=] { return looked_up_part(p); });
  add("embedding backward", [=] { return positions_gradient_part(p, false); });
  add("embedding backward accumulate", [=] { return positions_gradient_part(p, true); });
}

}  // namespace

void add_part_cases(CaseList& list) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16})
    for (const bool documents : {false, true}) {
      add_part(list, {1, 9, 3, 6, dtype, documents});
      add_part(list, {3, 28, 7, 34, dtype, documents});
      add_part(list, {2, 400, 100, 66, dtype, documents});
    }
  // Columns that are a part of rows, at any alignment to the blocks of four that words are drawn
  // for; of whole sequences, and of parts of them.
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16})
    for (const int64_t length : {9, 5})
      for (const auto [cols, first, all] :
           {std::array<int64_t, 3>{6, 0, 12}, {6, 6, 12}, {7, 3, 11}, {8, 16, 24}, {32, 4, 40}}) {
        const Part p{2, 9, length, cols, dtype, false, first, all};
        list.push_back({"parts",
                        fmt::format("dropout of {} rows of 9, {} columns from {} of {}{}", length,
                                    cols, first, all, type_suffix(dtype)),
                        [=] { return dropped_part(p); }});
      }
  add_full_attention_cases(list);
  add_joined_attention_cases(list);
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16})
    for (const float spread : {1.0f, 30.0f})
      list.push_back({"parts",
                      fmt::format("merged 37 rows, spread {}{}", spread, type_suffix(dtype)),
                      [=] { return merged_parts(37, 3, 7, spread, dtype); }});
}

void add_part_benchmarks(CaseList& list) { add_part(list, {1, 4096, 1024, 768}); }

}  // namespace onefold::cases
