#include "model/unit.h"

#include <algorithm>
#include <cmath>

namespace onefold {

int Unit::add(bool present, const std::string& name, int64_t rows, int64_t cols, Init init,
              bool decay) {
  if (!present) return -1;
  const int place = static_cast<int>(params_.size());
  // Of a parallel block's first branch adapters may come before: they leave places as they are.
  const auto adapters = std::count_if(params_.begin(), params_.end(),
                                      [](const ParamSpec& param) { return param.adapter; });
  params_.push_back({name, rows, cols, init, decay, layer_,
                     static_cast<uint32_t>(first_place_ + place - adapters)});
  if (!share_.first()) params_.back().own = 0;
  return place;
}

int Unit::add_divided(bool present, const std::string& name, int64_t rows, int64_t cols, Init init,
                      bool decay, std::vector<Box> boxes) {
  if (share_.whole() || !present) return add(present, name, rows, cols, init, decay);
  int64_t wide = boxes.front().cols;  // boxes lie below each other, or all are of one row
  if (rows == 1) {
    wide = 0;
    for (const Box& box : boxes) wide += box.cols;
  }
  return add_boxes(name, wide, init, decay, std::move(boxes));
}

int Unit::add_boxes(const std::string& name, int64_t wide, Init init, bool decay,
                    std::vector<Box> boxes) {
  int64_t elems = 0;
  for (const Box& box : boxes) elems += box.elems();
  const int place = add(true, name, elems / wide, wide, init, decay);
  params_.back().own = -1;
  params_.back().boxes = std::move(boxes);
  return place;
}

int Unit::add_vocabulary(bool present, const std::string& name) {
  const Span mine = vocabulary_of(whole_, share_);
  const int64_t cols = spec_.hidden_size;
  const int place = add_divided(present, name, whole_.vocab_size, cols, Init::normal, true,
                                {{mine.first, 0, mine.size, cols}});
  if (place >= 0) params_.back().slack_rows = vocabulary_slack();
  return place;
}

std::vector<Box> boxes_of(const ParamSpec& param, int64_t begin, int64_t end) {
  if (param.boxes.empty()) return boxes_of_range(param.rows, param.cols, begin, end - begin);
  std::vector<Box> boxes;
  int64_t box_begin = 0;
  for (const Box& box : param.boxes) {
    const int64_t from = std::max(begin, box_begin), to = std::min(end, box_begin + box.elems());
    if (from < to)
      for (Box part : boxes_of_range(box.rows, box.cols, from - box_begin, to - from)) {
        part.row += box.row;
        part.col += box.col;
        boxes.push_back(part);
      }
    box_begin += box.elems();
  }
  return boxes;
}

std::string UnitCall::identity() const {
  std::string bytes;
  const auto number = [&](auto value) {
    bytes.append(reinterpret_cast<const char*>(&value), sizeof(value));
  };
  const auto tensor = [&](const Tensor& t) {
    number(t.data);
    number(t.dtype);
    number(t.rows);
    number(t.cols);
    number(t.stride);
  };
  number(batch.batch);
  number(batch.sequence);
  number(arena.base());
  number(arena.mark());
  number(accumulate);
  number(training);
  number(rows.first);
  number(rows.size);
  for (const Tensor& t : {batch.tokens, batch.targets, batch.samples, batch.starts, batch.places,
                          batch.all_starts, input, saved, output, doutput, dinput, rope, losses,
                          loss_scale, router_scale, load, rows_needed})
    tensor(t);
  for (const std::span<const Tensor> list : {params, grads}) {
    number(list.size());
    for (const Tensor& t : list) tensor(t);
  }
  return bytes;
}

void Unit::run_all(bool backward, UnitCall& call) const {
  const int count = phases(backward, call.batch.tokens_count());
  for (int index = 0; index < count; ++index) run(backward, index, call);
}

Tensor Unit::boundary(bool backward, int index, const UnitCall&) const {
  internal_error("{}: nothing travels after phase {} of {}", name_, index,
                 backward ? "backward" : "forward");
}

Tensor Unit::arrival(bool backward, int index, const UnitCall&) const {
  internal_error("{}: nothing arrives after phase {} of {}", name_, index,
                 backward ? "backward" : "forward");
}

void UnitCall::gemm(Gemm product) const {
  const Arena::Scope scope(arena);
  product.scratch = arena.take_bytes(kernels.gemm_scratch_bytes(product));
  kernels.gemm(product);
}

Tensor UnitCall::temp(size_t index, int64_t rows, int64_t cols) {
  if (temps[index].empty()) temps[index] = take(rows, cols);
  return temps[index];
}

Dropout UnitCall::dropout_at(uint32_t layer, uint32_t site) const {
  // Steps beyond 2^32 wrap: a mask may come back after four billion steps.
  return {dropout, philox_key(seed, Draw::dropout, static_cast<uint32_t>(step), layer, site),
          batch.samples, batch.places};
}

Model::Model(const ModelSpec& s, int64_t logits_bytes, const Share& of,
             const ExpertShare& of_experts)
    : spec(s), share(of), experts(of_experts) {
  units.push_back(make_embedding(spec, share));
  for (int block = 0; block < spec.num_layers; ++block) {
    if (spec.parallel != Parallel::no) {
      units.push_back(make_parallel(spec, block, share));
      continue;
    }
    units.push_back(make_attention(spec, block, share));
    units.push_back(make_mlp(spec, block, share, experts));
  }
  units.push_back(make_head(spec, logits_bytes, share));
}

std::vector<ParamSpec> parameters_of(const ModelSpec& spec) {
  std::vector<ParamSpec> all;
  for (const std::unique_ptr<Unit>& unit : Model(spec).units)
    all.insert(all.end(), unit->params().begin(), unit->params().end());
  return all;
}

void rope_row(const ModelSpec& spec, int64_t position, std::span<float> row) {
  const int64_t half = spec.rotary_size() / 2;
  const auto fill = [&](const RopeScaling& scaling, double theta, bool in_long) {
    const std::span<float> dst = row.first(static_cast<size_t>(spec.rotary_size()));
    row = row.subspan(dst.size());
    for (int64_t i = 0; i < half; ++i) {
      const double frequency = scaling.frequency(i, spec.rotary_size(), theta, in_long);
      dst[static_cast<size_t>(i)] =
          static_cast<float>(scaling.length() * std::cos(position * frequency));
      dst[static_cast<size_t>(half + i)] =
          static_cast<float>(scaling.length() * std::sin(position * frequency));
    }
  };
  fill(spec.rope_scaling, spec.rope_theta, false);
  if (spec.rope_scaling.switches()) fill(spec.rope_scaling, spec.rope_theta, true);
  if (spec.local_rope_theta > 0) fill({}, spec.local_rope_theta, false);
}

}  // namespace onefold
