// Token and position embeddings, with and without documents.
#include <cmath>

#include "kernel_cases/families.h"
#include "kernel_cases/oracle.h"

namespace onefold::cases {
namespace {

struct Params {
  int64_t batch, length, vocabulary, cols, first, gap;
  bool positions = true;
  std::vector<int64_t> documents = {};              // their lengths; empty: no starts
  DType type = DType::f32, gradients = DType::f32;  // of gradients: those of the tables
  float scale = 1;
  bool others = false;  // the last token is that of other shares' tables, with no gradient here

  int64_t rows() const { return batch * length; }
  int64_t table_rows() const { return vocabulary - (others ? 1 : 0); }
  int64_t position_rows() const { return first + length + 1; }
};

std::vector<int32_t> starts_of(const Params& p) {
  return p.documents.empty() ? std::vector<int32_t>{}
                             : document_starts(p.batch, p.length, p.documents);
}

std::vector<int64_t> positions_of(const Params& p) {
  std::vector<int64_t> positions;
  for (int64_t row = 0; row < p.rows(); ++row) positions.push_back(p.first + row % p.length);
  if (p.documents.empty()) return positions;
  // Each document on its own.
  for (const DocumentRows& document : documents_of(starts_of(p), p.length))
    for (int64_t row = document.begin; row < document.end; ++row)
      positions[static_cast<size_t>(row)] = row - document.begin;
  return positions;
}

// One call with starts, or one call for each document.
enum class By { starts, calls };

// What a case with documents must agree with, bit by bit.
Twin twin_of(const Params& p, const std::function<Case(const Params&, By)>& make,
             std::vector<Twin::Part> parts) {
  // A whole sequence as one document is no document at all.
  if (p.documents == std::vector{p.length})
    return {[=] {
              Params plain = p;
              plain.documents.clear();
              return make(plain, By::starts);
            },
            std::move(parts)};
  return {[=] { return make(p, By::calls); }, std::move(parts)};
}

HostTensor values_of(const Params& p, int64_t rows, uint64_t seed) {
  return normals(rows, p.cols, seed, p.gap, p.scale).as(p.type);
}

Case forward_case(const Params& p, By by = By::starts) {
  Case c;
  const std::vector<int32_t> begins = starts_of(p);
  const int tokens = c.input("tokens", random_ints(p.rows(), p.vocabulary, 1)),
            table = c.input("table", values_of(p, p.vocabulary, 2)),
            positions = p.positions ? c.input("positions", values_of(p, p.position_rows(), 3)) : -1,
            starts = begins.empty() ? -1 : c.input("starts", row_of(begins)),
            dst = c.output("dst", HostTensor(p.rows(), p.cols, p.gap, p.type).clear());
  c.run = [=](Call& call) {
    const Tensor places = p.positions ? call[positions] : Tensor{};
    if (by == By::starts)
      return call.kernels().embedding_forward(
          call[tokens], call[table], places,
          {p.first, p.length, starts < 0 ? Tensor{} : call[starts]}, call[dst]);
    for (const DocumentRows& d : documents_of(begins, p.length)) {
      const int64_t count = d.end - d.begin;
      call.kernels().embedding_forward(call[tokens].col_range(d.begin, count), call[table], places,
                                       {0, count}, call[dst].row_range(d.begin, count));
    }
  };
  c.expected = [=](const Case& in) {
    const std::vector<int64_t> places = positions_of(p);
    Doubles values;
    for (int64_t row = 0; row < p.rows(); ++row)
      for (int64_t col = 0; col < p.cols; ++col) {
        const auto token = static_cast<int64_t>(in[tokens].number(0, row));
        const int64_t place = places[static_cast<size_t>(row)];
        values.push_back(static_cast<double>(in[table].at(token, col)) +
                         (p.positions ? in[positions].at(place, col) : 0.0f));
      }
    return std::vector{stored(p.type, close(dst, values, 0, p.positions ? kUnit : 0))};
  };
  if (!begins.empty() && by == By::starts) c.twin = twin_of(p, forward_case, {{"dst"}});
  return c;
}

// The sum over rows of x for each of `indices`, which say where each row goes: as a table, with the
// sums of magnitudes times the number of terms.
struct Scattered {
  Doubles sums, chains;
};
Scattered scattered(const HostTensor& x, const std::vector<int64_t>& indices, int64_t rows,
                    const Doubles& old) {
  const auto cols = static_cast<size_t>(x.cols());
  Scattered s{old.empty() ? Doubles(static_cast<size_t>(rows) * cols) : old, {}};
  s.chains = magnitudes(s.sums);
  std::vector<double> terms(static_cast<size_t>(rows));
  for (size_t row = 0; row < indices.size(); ++row) {
    const auto target = static_cast<size_t>(indices[row]);
    terms[target] += 1;
    for (size_t col = 0; col < cols; ++col) {
      const double value = x.at(static_cast<int64_t>(row), static_cast<int64_t>(col));
      s.sums[target * cols + col] += value;
      s.chains[target * cols + col] += std::abs(value);
    }
  }
  for (size_t i = 0; i < s.chains.size(); ++i) s.chains[i] *= terms[i / cols];
  return s;
}

Case backward_case(const Params& p, bool accumulate, By by = By::starts) {
  Case c;
  const std::vector<int32_t> begins = starts_of(p);
  const auto gradient = [&](const char* name, int64_t rows, uint64_t seed) {
    HostTensor old = normals(rows, p.cols, seed, p.gap).as(p.gradients);
    return c.output(name, accumulate ? old : old.clear());
  };
  const int tokens = c.input("tokens", random_ints(p.rows(), p.vocabulary, 1)),
            dx = c.input("dx", values_of(p, p.rows(), 4)),
            starts = begins.empty() ? -1 : c.input("starts", row_of(begins)),
            dtable = gradient("dtable", p.table_rows(), 5),
            dpositions = p.positions ? gradient("dpositions", p.position_rows(), 6) : -1;
  c.run = [=](Call& call) {
    Kernels& k = call.kernels();
    const Tensor places = p.positions ? call[dpositions] : Tensor{};
    const Tensor scratch = call.scratch(k.embedding_backward_scratch_bytes(p.rows(), p.vocabulary));
    if (by == By::starts)
      return k.embedding_backward(call[tokens], call[dx],
                                  {p.first, p.length, starts < 0 ? Tensor{} : call[starts]},
                                  call[dtable], accumulate, places, accumulate, scratch);
    for (const DocumentRows& d : documents_of(begins, p.length)) {
      const int64_t count = d.end - d.begin;
      const bool onto = accumulate || d.begin > 0;
      k.embedding_backward(call[tokens].col_range(d.begin, count),
                           call[dx].row_range(d.begin, count), {0, count}, call[dtable], onto,
                           places, onto, scratch);
    }
  };
  c.expected = [=](const Case& in) {
    std::vector<int64_t> rows;
    for (const double token : in[tokens].doubles()) rows.push_back(static_cast<int64_t>(token));
    const auto old = [&](int tensor) { return accumulate ? in[tensor].doubles() : Doubles(); };
    // The rows of a token are added one by one; those of tokens that do not occur are exact.
    Doubles before = old(dtable);
    if (accumulate) before.resize(static_cast<size_t>(p.vocabulary * p.cols));
    Scattered table = scattered(in[dx], rows, p.vocabulary, before);
    for (Doubles* list : {&table.sums, &table.chains})
      list->resize(static_cast<size_t>(p.table_rows() * p.cols));
    std::vector<Expected> all = {
        stored(p.gradients, within(dtable, table.sums, table.chains, kUnit))};
    if (!p.positions) return all;
    const Scattered places = scattered(in[dx], positions_of(p), p.position_rows(), old(dpositions));
    all.push_back(stored(p.gradients, within(dpositions, places.sums, places.chains, kUnit)));
    return all;
  };
  // A call for each document would round its sums to the gradients' type.
  const bool same_sums = p.gradients == DType::f32 || p.documents == std::vector{p.length};
  if (!begins.empty() && by == By::starts && same_sums)
    c.twin = twin_of(
        p, [=](const Params& other, By how) { return backward_case(other, accumulate, how); },
        {{"dtable"}, {"dpositions"}});
  return c;
}

// In float, (1 + 2^24) + -2^24 is 0, and any other order gives 1.
Case row_order_case(bool documents, DType type = DType::f32) {
  Case c;
  HostTensor values(4, 1, 0, type);
  const float terms[] = {1.0f, 5.0f, 0x1p24f, -0x1p24f};
  for (int64_t row = 0; row < 4; ++row) values.set(row, 0, terms[row]);
  const int tokens = c.input("tokens", row_of(std::vector<int32_t>{0, 1, 0, 0})),
            dx = c.input("dx", values),
            starts = c.input("starts", row_of(std::vector<int32_t>{0, 0, 2, 3})),
            dtable = c.output("dtable", HostTensor(2, 1, 0, type).clear()),
            dpositions = c.output("dpositions", HostTensor(4, 1, 0, type).clear());
  c.run = [=](Call& call) {
    Kernels& k = call.kernels();
    k.embedding_backward(call[tokens], call[dx], {0, 4, documents ? call[starts] : Tensor{}},
                         call[dtable], false, call[dpositions], false,
                         call.scratch(k.embedding_backward_scratch_bytes(4, 2)));
  };
  c.expected = [=](const Case&) {
    return std::vector{
        exactly(dtable, {0, 5}),
        exactly(dpositions, documents ? Doubles{0, 5, 0, 0} : Doubles{1, 5, 0x1p24, -0x1p24})};
  };
  return c;
}

void add(CaseList& list, const Params& p) {
  std::string name = fmt::format(
      "{}x{} of {}, {} columns, {}{}{}", p.batch, p.length, p.vocabulary, p.cols,
      p.positions ? fmt::format("positions from {}", p.first) : "no positions",
      p.gap > 0 ? " strided" : "",
      p.documents.empty() ? "" : fmt::format(" documents {}", fmt::join(p.documents, ",")));
  name += type_suffix(p.type);
  if (p.gradients != p.type) name += fmt::format(" to {}", dtype_name(p.gradients));
  if (p.scale != 1) name += fmt::format(" times {}", p.scale);
  list.push_back({"embedding", name + " forward", [=] { return forward_case(p); }});
  list.push_back({"embedding", name + " backward", [=] { return backward_case(p, false); }});
  list.push_back(
      {"embedding", name + " backward accumulate", [=] { return backward_case(p, true); }});
}

void add_others_cases(CaseList& list, DType type) {
  for (const int64_t vocabulary : {2, 9, 300})
    for (const bool accumulate : {false, true}) {
      Params p{2, 75, vocabulary, 33, 0, 4, false, {}, type};
      p.others = true;
      list.push_back({"embedding",
                      fmt::format("a share of {} tokens backward{}{}", vocabulary - 1,
                                  accumulate ? " accumulate" : "", type_suffix(type)),
                      [=] { return backward_case(p, accumulate); }});
    }
}

void add_half_cases(CaseList& list, DType type) {
  for (const DType gradients : {type, DType::f32})
    for (const bool positions : {true, false}) {
      add(list, {2, 5, 7, 13, 3, 4, positions, {}, type, gradients});
      add(list, {4, 129, 97, 301, 0, 0, positions, {}, type, gradients});
      add(list, {0, 5, 7, 3, 0, 0, positions, {}, type, gradients});
    }
  for (const DType gradients : {type, DType::f32}) {
    add(list, {2, 5, 7, 13, 0, 4, true, {5}, type, gradients});
    add(list, {3, 11, 17, 13, 0, 4, true, {1, 2, 4}, type, gradients});
    add(list, {2, 300, 101, 257, 0, 0, true, {128, 57, 1, 200}, type, gradients});
  }
  // Sums that are infinite in the type, or subnormal in f16.
  const float large = type == DType::f16 ? 0x1p14f : 0x1p124f;
  for (const float scale : {large, 0x1p-20f})
    add(list, {2, 5, 7, 13, 3, 4, true, {}, type, type, scale});
  // 2^24 and the sum with 1 are beyond f16, and exact in bf16.
  if (type == DType::bf16)
    list.push_back({"embedding", "rows are added in order and in f32" + type_suffix(type),
                    [=] { return row_order_case(false, type); }});
}

}  // namespace

void add_embedding_cases(CaseList& list) {
  const Params shapes[] = {{1, 1, 1, 1, 0, 0},  {2, 5, 7, 13, 3, 4},      {3, 11, 101, 33, 0, 0},
                           {4, 3, 5, 64, 2, 6}, {4, 129, 997, 301, 0, 0},  // many chunks
                           {0, 5, 7, 3, 0, 0}};
  for (Params p : shapes)
    for (const bool positions : {true, false}) {
      p.positions = positions;
      add(list, p);
    }
  add(list, {2, 5, 7, 13, 0, 4, true, {5}});
  add(list, {3, 11, 17, 13, 0, 4, true, {1, 2, 4}});
  add(list, {2, 300, 101, 257, 0, 0, true, {128, 57, 1, 200}});
  list.push_back({"embedding", "rows are added in order", [] { return row_order_case(false); }});
  list.push_back(
      {"embedding", "rows of documents are added in order", [] { return row_order_case(true); }});
  for (const DType type : {DType::f32, DType::bf16, DType::f16}) add_others_cases(list, type);
  for (const DType type : kHalfTypes) add_half_cases(list, type);
}

void add_embedding_benchmarks(CaseList& list) {
  for (const DType type : {DType::f32, DType::bf16}) {
    const Params p{1, 1024, 50257, 768, 0, 0, true, {}, type};
    list.push_back({"embedding", "forward 1024x768 of 50257" + type_suffix(type),
                    [=] { return forward_case(p); }});
    list.push_back({"embedding", "backward 1024x768 of 50257" + type_suffix(type),
                    [=] { return backward_case(p, false); }});
  }
}

}  // namespace onefold::cases
