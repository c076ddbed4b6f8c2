// Rows of a mixture of experts: gathered, weighed, combined; products of groups of rows; and the
// noise of a router's input.
#include <fmt/ranges.h>

#include <cmath>
#include <limits>
#include <set>

#include "kernel_cases/families.h"
#include "kernel_cases/oracle.h"
#include "kernel_cases/routing.h"

namespace onefold::cases {
namespace {

struct RowShape {
  RouterRule rule;
  int64_t cols;
  DType dtype = DType::f32;
  int64_t rows() const { return rule.tokens * rule.choices; }
};

RoutingOracle oracle_of(const RowShape& s) {
  return routing_of(s.rule, normals(s.rule.tokens, s.rule.experts, 21).doubles());
}

size_t at(int64_t row, int64_t cols, int64_t col) { return static_cast<size_t>(row * cols + col); }

Case gather_case(RowShape s) {
  Case c;
  const RoutingOracle o = oracle_of(s);
  const int x = c.input("x", normals(s.rule.tokens, s.cols, 1, 3).as(s.dtype));
  const RoutingTensors to = read_routing(c, s.rule, o);
  const int dst = c.output("dst", HostTensor(s.rows(), s.cols, 2, s.dtype).clear());
  c.run = [=](Call& call) { call.kernels().gather_rows(call[x], to.of(call), call[dst]); };
  c.expected = [=](const Case& in) {
    Doubles rows(static_cast<size_t>(s.rows() * s.cols));
    for (int64_t row = 0; row < s.rows(); ++row)
      if (const int64_t choice = o.sources[static_cast<size_t>(row)]; choice >= 0)
        for (int64_t col = 0; col < s.cols; ++col)
          rows[at(row, s.cols, col)] = in[x].number(choice / s.rule.choices, col);
    return std::vector{exactly(dst, rows)};
  };
  return c;
}

Case combine_case(RowShape s, bool weighted, bool with_base, float scale) {
  Case c;
  const RoutingOracle o = oracle_of(s);
  const int rows = c.input("rows", normals(s.rows(), s.cols, 2, 1, scale).as(s.dtype));
  const RoutingTensors to = read_routing(c, s.rule, o);
  const int base =
      with_base ? c.input("base", normals(s.rule.tokens, s.cols, 3, 5).as(s.dtype)) : -1;
  const int dst = c.output("dst", HostTensor(s.rule.tokens, s.cols, 2, s.dtype).clear());
  c.run = [=](Call& call) {
    call.kernels().combine_rows(call[rows], to.of(call), weighted,
                                with_base ? call[base] : Tensor{}, call[dst]);
  };
  c.expected = [=](const Case& in) {
    Doubles values, magnitudes;
    for (int64_t token = 0; token < s.rule.tokens; ++token)
      for (int64_t col = 0; col < s.cols; ++col) {
        double sum = with_base ? in[base].number(token, col) : 0, magnitude = std::abs(sum);
        for (int64_t j = 0; j < s.rule.choices; ++j) {
          const int64_t place = o.places[at(token, s.rule.choices, j)];
          if (place < 0) continue;
          const double term =
              in[rows].number(place, col) * (weighted ? in[to.weights].number(token, j) : 1);
          sum += term;
          magnitude += std::abs(term);
        }
        values.push_back(sum);
        magnitudes.push_back(magnitude);
      }
    const double relative = static_cast<double>(2 * s.rule.choices) * kUnit;
    return std::vector{stored(s.dtype, within(dst, values, magnitudes, relative))};
  };
  return c;
}

Case weigh_case(RowShape s, bool with_gradient) {
  Case c;
  const RoutingOracle o = oracle_of(s);
  const int x = c.output("x", normals(s.rows(), s.cols, 4, 1).as(s.dtype));
  const int dy = with_gradient ? c.output("dy", normals(s.rows(), s.cols, 5, 2).as(s.dtype)) : -1;
  const RoutingTensors to = read_routing(c, s.rule, o);
  const int dweights =
      with_gradient ? c.output("dweights", HostTensor(s.rule.tokens, s.rule.choices).clear()) : -1;
  c.run = [=](Call& call) {
    call.kernels().weigh_rows(to.of(call), with_gradient ? call[dy] : Tensor{}, call[x],
                              with_gradient ? call[dweights] : Tensor{});
  };
  c.expected = [=](const Case& in) {
    const Doubles xs = in[x].doubles(), dys = with_gradient ? in[dy].doubles() : Doubles();
    Doubles weighed = xs, dweighed = dys, products(static_cast<size_t>(s.rows())),
            magnitudes(products.size());
    for (int64_t row = 0; row < s.rows(); ++row) {
      const int64_t choice = o.sources[static_cast<size_t>(row)];
      if (choice < 0) continue;
      const double weight = in[to.weights].number(choice / s.rule.choices, choice % s.rule.choices);
      for (int64_t col = 0; col < s.cols; ++col) {
        const size_t i = at(row, s.cols, col);
        weighed[i] *= weight;
        if (!with_gradient) continue;
        dweighed[i] *= weight;
        products[static_cast<size_t>(choice)] += xs[i] * dys[i];
        magnitudes[static_cast<size_t>(choice)] += std::abs(xs[i] * dys[i]);
      }
    }
    std::vector<Expected> all = {stored(s.dtype, close(x, weighed, 0, kUnit))};
    if (with_gradient) {
      all.push_back(stored(s.dtype, close(dy, dweighed, 0, kUnit)));
      all.push_back(within(dweights, products, magnitudes, sum_error(s.cols)));
    }
    return all;
  };
  return c;
}

// As they travel to holders of an equal run of experts each: in blocks, with rows to spare or too
// few. What has no room weighs NaN, and lies on rows of its block; the most that a block needs is
// said beside the rows that it has.
Case spread_case(RouterRule r, int64_t blocks, int64_t rows) {
  Case c;
  const RoutingOracle o = routing_of(r, normals(r.tokens, r.experts, 21).doubles());
  RoutingTensors from = read_routing(c, r, o);
  HostTensor given(r.tokens, r.choices);
  for (int64_t i = 0; i < given.elems(); ++i)
    given.set(i / r.choices, i % r.choices, static_cast<float>(o.weights[static_cast<size_t>(i)]));
  from.weights = c.output("weights that may change", given);
  const int needed = c.output("needed", row_of(std::vector<int32_t>{0, 0}));
  const auto written = [&](const char* name, int64_t many, int64_t cols, int64_t gap) {
    return c.output(name, HostTensor(many, cols, gap, DType::i32).clear());
  };
  const int places = written("sent places", r.tokens, r.choices, 0);
  const int sources = written("sent sources", 1, blocks * rows, 0);
  const int numbers = written("numbers", blocks * rows, 1, 3);
  c.run = [=](Call& call) {
    call.kernels().spread_rows(
        {from.of(call), blocks, call[places], call[sources], call[numbers], call[needed]});
  };
  c.expected = [=](const Case& in) {
    Doubles weights = in[from.weights].doubles(), most = {0, 0};
    Doubles at(o.experts.size(), -1), choices(static_cast<size_t>(blocks * rows), -1),
        experts(choices.size(), -1);
    std::vector<int64_t> used(static_cast<size_t>(blocks));
    for (const int64_t choice : o.sources) {
      if (choice < 0) continue;
      const int64_t expert = o.experts[static_cast<size_t>(choice)], each = r.experts / blocks,
                    block = expert / each, number = used[static_cast<size_t>(block)]++,
                    row = block * rows + number % rows;
      at[static_cast<size_t>(choice)] = static_cast<double>(row);
      if (number >= rows) {
        weights[static_cast<size_t>(choice)] = std::numeric_limits<double>::quiet_NaN();
        most = {std::max(most[0], static_cast<double>(number + 1)), static_cast<double>(rows)};
        continue;
      }
      choices[static_cast<size_t>(row)] = static_cast<double>(choice);
      experts[static_cast<size_t>(row)] = static_cast<double>(expert % each);
    }
    return std::vector{exactly(places, at), exactly(sources, choices), exactly(numbers, experts),
                       exactly(from.weights, weights), exactly(needed, most)};
  };
  return c;
}

// Rows as they have come: some are empty, wherever they are.
Case sort_case(int64_t rows, int64_t experts) {
  Case c;
  HostTensor given(rows, 1, 2, DType::i32);
  std::vector<int64_t> of;
  for (int64_t row = 0; row < rows; ++row) {
    of.push_back((row * 7 + row / 3) % (experts + 1) - 1);
    const auto number = static_cast<int32_t>(of.back());
    std::memcpy(given.bytes().data() + row * 3 * 4, &number, sizeof(number));
  }
  const int numbers = c.input("numbers", given);
  const RoutingTensors to = written_routing(c, {rows, experts, 1});
  c.run = [=](Call& call) { call.kernels().sort_rows(call[numbers], to.of(call)); };
  c.expected = [=](const Case&) {
    Doubles places(of.size(), -1), sources, offsets = {0}, counts;
    for (int64_t expert = 0; expert < experts; ++expert) {
      for (size_t row = 0; row < of.size(); ++row) {
        if (of[row] != expert) continue;
        places[row] = static_cast<double>(sources.size());
        sources.push_back(static_cast<double>(row));
      }
      counts.push_back(static_cast<double>(sources.size()) - offsets.back());
      offsets.push_back(static_cast<double>(sources.size()));
    }
    sources.resize(of.size(), -1);
    return std::vector{exactly(to.experts, Doubles(of.begin(), of.end())),
                       exactly(to.places, places), exactly(to.sources, sources),
                       exactly(to.offsets, offsets), exactly(to.counts, counts)};
  };
  return c;
}

// With `places`, rows are parts of longer sequences, in an order of their own.
Case jitter_case(int64_t batch, int64_t length, int64_t cols, float rate, DType dtype,
                 std::vector<int32_t> places = {}) {
  Case c;
  const PhiloxKey key{123, 456};
  std::vector<int64_t> ids;
  for (int64_t i = 0; i < batch; ++i) ids.push_back(7 * i + (int64_t{1} << 33));
  const int x = c.input("x", normals(batch * length, cols, 6, 1).as(dtype));
  const int samples = c.input("samples", row_of(ids));
  const int at = places.empty() ? -1 : c.input("places", row_of(places));
  const int dst = c.output("dst", HostTensor(batch * length, cols, 2, dtype).clear());
  c.run = [=](Call& call) {
    call.kernels().jitter(call[x],
                          {.rate = rate,
                           .key = key,
                           .samples = call[samples],
                           .places = at < 0 ? Tensor{} : call[at]},
                          length, call[dst]);
  };
  c.expected = [=](const Case& in) {
    Doubles values, sizes;
    for (int64_t row = 0; row < batch * length; ++row)
      for (int64_t col = 0; col < cols; ++col) {
        const int64_t place = at < 0 ? row % length : places[static_cast<size_t>(row)];
        const auto element = static_cast<uint64_t>(place * cols + col);
        const auto sample = static_cast<uint64_t>(ids[static_cast<size_t>(row / length)]);
        const PhiloxWords words =
            philox(key, {static_cast<uint32_t>(element / 4), static_cast<uint32_t>(element >> 34),
                         static_cast<uint32_t>(sample), static_cast<uint32_t>(sample >> 32)});
        const double u = 2.0 * double{philox_uniform(words[element % 4])} - 1;
        values.push_back(in[x].number(row, col) * (1 + double{rate} * u));
        sizes.push_back(std::abs(in[x].number(row, col)));
      }
    // A factor of up to 2 is rounded twice, and may be near 0; then the product is.
    return std::vector{stored(dtype, within(dst, values, sizes, 5 * kUnit))};
  };
  return c;
}

// Groups of so many rows, and rows behind them.
struct GroupShape {
  std::vector<int64_t> groups;
  int64_t behind = 0, k = 0, n = 0;
  DType type = DType::f32, dst = DType::f32;
  bool a_transposed = false, b_transposed = false, accumulate = false;
  float scale = 1;
  bool vectors = false;  // rows begin at multiples of 16 bytes
  bool hostile =
      false;  // values that are not finite in the first group: others see nothing of them

  int64_t gap(int64_t cols, int64_t odd) const { return vectors ? 16 - cols % 8 : odd; }
  int64_t rows() const {
    int64_t sum = behind;
    for (const int64_t count : groups) sum += count;
    return sum;
  }
  int64_t count() const { return static_cast<int64_t>(groups.size()); }
};

Case grouped_case(GroupShape s) {
  Case c;
  const bool weights = s.a_transposed;
  HostTensor left = normals(s.rows(), s.k, 1, s.gap(s.k, 2), s.scale);
  const int64_t right_gap = s.gap(s.b_transposed ? s.k : s.n, 1);
  HostTensor right = weights          ? normals(s.rows(), s.n, 2, right_gap)
                     : s.b_transposed ? normals(s.count() * s.n, s.k, 2, right_gap)
                                      : normals(s.count() * s.k, s.n, 2, right_gap);
  if (s.hostile) {
    left.set(s.groups[0] - 1, s.k - 1, std::numeric_limits<float>::infinity());
    left.set(0, 0, std::numeric_limits<float>::quiet_NaN());
    right.set(0, s.b_transposed ? s.k - 1 : s.n - 1, -std::numeric_limits<float>::infinity());
  }
  const int a = c.input("a", left.as(s.type)), b = c.input("b", right.as(s.type));
  const int64_t rows = weights ? s.count() * s.k : s.rows(), dst_gap = s.gap(s.n, 3);
  const int dst = c.output("dst", s.accumulate ? normals(rows, s.n, 3, dst_gap).as(s.dst)
                                               : HostTensor(rows, s.n, dst_gap, s.dst).clear());
  std::vector<int32_t> ends = {0};
  for (const int64_t count : s.groups) ends.push_back(ends.back() + static_cast<int32_t>(count));
  const int offsets = c.input("offsets", row_of(ends));
  c.run = [=](Call& call) {
    GroupedGemm product{.a = call[a],
                        .b = call[b],
                        .dst = call[dst],
                        .offsets = call[offsets],
                        .a_transposed = s.a_transposed,
                        .b_transposed = s.b_transposed,
                        .accumulate = s.accumulate};
    product.scratch = call.scratch(call.kernels().grouped_gemm_scratch_bytes(product));
    call.kernels().grouped_gemm(product);
  };
  c.expected = [=](const Case& in) {
    Doubles values(static_cast<size_t>(rows * s.n)), magnitudes(values.size());
    const auto add = [&](int64_t row, int64_t col, double term) {
      values[at(row, s.n, col)] += term;
      magnitudes[at(row, s.n, col)] += std::abs(term);
    };
    const Doubles as = in[a].doubles(), bs = in[b].doubles();
    for (int64_t g = 0; g < s.count(); ++g)
      for (int64_t row = ends[static_cast<size_t>(g)]; row < ends[static_cast<size_t>(g) + 1];
           ++row)
        for (int64_t i = 0; i < s.k; ++i) {
          const double left = as[at(row, s.k, i)];
          for (int64_t col = 0; col < s.n; ++col)
            if (weights)
              add(g * s.k + i, col, left * bs[at(row, s.n, col)]);
            else
              add(row, col,
                  left * (s.b_transposed ? bs[at(g * s.n + col, s.k, i)]
                                         : bs[at(g * s.k + i, s.n, col)]));
        }
    if (s.accumulate)
      for (int64_t row = 0; row < rows; ++row)
        for (int64_t col = 0; col < s.n; ++col) add(row, col, in[dst].number(row, col));
    const double relative = static_cast<double>((weights ? s.rows() : s.k) + 4) * kUnit;
    return std::vector{stored(s.dst, within(dst, values, magnitudes, relative))};
  };
  return c;
}

void add_grouped(CaseList& list, const GroupShape& s) {
  const bool equal = std::set<int64_t>(s.groups.begin(), s.groups.end()).size() == 1;
  const std::string groups = equal ? fmt::format("{}x{}", s.count(), s.groups[0])
                                   : fmt::format("{}", fmt::join(s.groups, "+"));
  const char* kind = s.a_transposed ? "TN" : s.b_transposed ? "NT" : "NN";
  list.push_back({"experts",
                  fmt::format("grouped {} {}, {} behind, {}x{}{}{}{}{}{}", kind, groups, s.behind,
                              s.k, s.n, s.accumulate ? " added" : "", s.vectors ? " vectors" : "",
                              s.hostile ? " hostile" : "", type_suffix(s.type),
                              s.dst == s.type ? "" : " to f32"),
                  [=] { return grouped_case(s); }});
}

}  // namespace

void add_row_cases(CaseList& list) {
  const auto add = [&](const std::string& what, const RowShape& s, std::function<Case()> make) {
    list.push_back(
        {"experts",
         fmt::format("{} {}x{} top {} of {}{}{}", what, s.rule.tokens, s.cols, s.rule.choices,
                     s.rule.experts,
                     s.rule.capacity > 0 ? fmt::format(" capacity {}", s.rule.capacity) : "",
                     type_suffix(s.dtype)),
         std::move(make)});
  };
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16})
    for (const int64_t capacity : {0, 2})
      for (const int64_t cols : {1, 37, 300}) {
        const RowShape s{{13, 5, 3, RouterScores::softmax, true, capacity}, cols, dtype};
        add("gather rows", s, [=] { return gather_case(s); });
        add("combine rows", s, [=] { return combine_case(s, true, true, 1); });
        add("combine rows without base", s, [=] { return combine_case(s, true, false, 1); });
        add("combine rows unweighted", s, [=] { return combine_case(s, false, true, 1); });
        add("weigh rows", s, [=] { return weigh_case(s, false); });
        add("weigh rows with gradient", s, [=] { return weigh_case(s, true); });
      }
  for (const int64_t capacity : {0, 2})
    for (const int64_t blocks : {1, 2, 3, 6}) {
      const RouterRule rule{13, 6, 3, RouterScores::softmax, true, capacity};
      const int64_t most = 13 * std::min<int64_t>(3, 6 / blocks);
      for (const int64_t rows : {most, int64_t{9}, int64_t{1}})
        list.push_back({"experts",
                        fmt::format("spread rows 13 top 3 of 6{} in {} blocks of {}",
                                    capacity > 0 ? " capacity 2" : "", blocks, rows),
                        [=] { return spread_case(rule, blocks, rows); }});
    }
  for (const auto& [rows, experts] : {std::pair<int64_t, int64_t>{37, 4}, {5, 9}, {11, 1}})
    list.push_back({"experts", fmt::format("sort rows {} of {}", rows, experts),
                    [=, rows = rows, experts = experts] { return sort_case(rows, experts); }});
  const RowShape large{{9, 4, 2, RouterScores::softmax, true, 0}, 65};
  add("combine huge rows", large, [=] { return combine_case(large, true, true, 1e30f); });
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16})
    for (const float rate : {0.01f, 0.9f})
      list.push_back({"experts", fmt::format("jitter 2x3x1031 {}{}", rate, type_suffix(dtype)),
                      [=] { return jitter_case(2, 3, 1031, rate, dtype); }});
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16})
    list.push_back(
        {"experts", fmt::format("jitter of parts 2x3x1031{}", type_suffix(dtype)), [=] {
           return jitter_case(2, 3, 1031, 0.3f, dtype, {9, 4, 1'000'003, 0, 70'000'001, 5});
         }});
}

void add_grouped_gemm_cases(CaseList& list) {
  const std::vector<std::vector<int64_t>> kGroups = {
      {3, 5, 1}, {0, 17, 0}, {0, 0}, {300, 2}, {1, 1, 1, 1, 1, 1, 1}};
  for (const std::vector<int64_t>& groups : kGroups)
    for (const int64_t behind : {0, 4})
      for (const auto& [type, dst] : {std::pair{DType::f32, DType::f32},
                                      {DType::bf16, DType::bf16},
                                      {DType::f16, DType::f16},
                                      {DType::bf16, DType::f32}}) {
        GroupShape s{
            .groups = groups, .behind = behind, .k = 19, .n = 53, .type = type, .dst = dst};
        if (dst == type) {
          add_grouped(list, s);
          s.b_transposed = true;
          add_grouped(list, s);
          s.b_transposed = false;
        }
        s.a_transposed = true;
        add_grouped(list, s);
        s.accumulate = true;
        add_grouped(list, s);
      }
  // Rows of whole vectors, in 16 bits, are what tensor cores take.
  for (const DType type : kHalfTypes)
    for (const auto& [k, n] : {std::pair<int64_t, int64_t>{64, 256}, {72, 8}, {200, 264}})
      for (const std::vector<int64_t>& groups : std::vector<std::vector<int64_t>>{
               {3, 5, 1}, {0, 130, 0, 77}, {64, 128, 256}, {300, 2}, {0, 0}}) {
        GroupShape s{.groups = groups,
                     .behind = groups.size() == 3 ? 0 : 70,
                     .k = k,
                     .n = n,
                     .type = type,
                     .dst = type,
                     .vectors = true};
        s.hostile = groups[0] > 64 && k == 200;
        add_grouped(list, s);
        s.b_transposed = true;
        add_grouped(list, s);
        s.b_transposed = false;
        s.a_transposed = true;
        for (const DType dst : {type, DType::f32})
          for (const bool added : {false, true}) {
            s.dst = dst;
            s.accumulate = added;
            add_grouped(list, s);
          }
      }
  // More tiles than a card has processors, in bands; and more groups than one looks at at once.
  for (const bool b_transposed : {false, true})
    add_grouped(list, {.groups = {500, 0, 413, 287},
                       .k = 16,
                       .n = 3592,
                       .type = DType::bf16,
                       .dst = DType::bf16,
                       .b_transposed = b_transposed,
                       .vectors = true});
  add_grouped(list, {.groups = {3, 0, 70, 1, 2},
                     .k = 1032,
                     .n = 520,
                     .type = DType::bf16,
                     .dst = DType::bf16,
                     .a_transposed = true,
                     .vectors = true});
  add_grouped(list, {.groups = std::vector<int64_t>(300, 1),
                     .k = 8,
                     .n = 16,
                     .type = DType::bf16,
                     .dst = DType::bf16,
                     .vectors = true});
  // More than a tile, and than the terms that are widened at once.
  for (const DType type : {DType::f32, DType::bf16}) {
    add_grouped(list, {.groups = {290, 1}, .k = 270, .n = 200, .type = type, .dst = type});
    add_grouped(list, {.groups = {270, 3}, .k = 260, .n = 200, .type = type, .a_transposed = true});
  }
}

void add_grouped_gemm_benchmarks(CaseList& list) {
  for (const DType type : {DType::f32, DType::bf16})
    for (const bool weights : {false, true})
      add_grouped(list, {.groups = std::vector<int64_t>(8, 256),
                         .k = 768,
                         .n = 1536,
                         .type = type,
                         .dst = type,
                         .a_transposed = weights,
                         .b_transposed = !weights});
}

}  // namespace onefold::cases
