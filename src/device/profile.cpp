#include "device/profile.h"

#include <algorithm>

namespace onefold {
namespace {

constexpr int kKernelTag = -1;  // of a kernel's span, which no verb has

std::string shape_of(const Tensor& t) { return fmt::format("{}x{}", t.rows, t.cols); }

std::string shape_of(const Gemm& g) {
  return fmt::format("{}x{}x{} {}{} {}{}{}{}", g.dst.rows, g.dst.cols,
                     g.a_transposed ? g.a.rows : g.a.cols, g.a_transposed ? 'T' : 'N',
                     g.b_transposed ? 'T' : 'N', dtype_name(g.dst.dtype),
                     g.accumulate ? " added" : "", g.bias.empty() ? "" : " bias",
                     g.residual.empty() ? "" : " residual");
}

std::string shape_of(const AttentionShape& s) {
  return fmt::format("{}x{} {}/{} heads of {}", s.batch, s.query_length, s.heads, s.kv_heads,
                     s.head_dim);
}

int64_t elems_of(const Squares& one) { return one.x.elems(); }
int64_t elems_of(const Clamp& one) { return one.x.elems(); }
int64_t elems_of(const FactorSquares& one) { return one.x.elems(); }
int64_t elems_of(const Blend& one) { return one.x.elems(); }
int64_t elems_of(const TensorTrust& one) { return one.largest.elems(); }
template <class Step>
int64_t elems_of(const Step& one) {
  return one.stepped.params.elems();
}

// Of a list: how many tensors, and their elements.
template <class One>
std::string shape_of(std::span<const One> list) {
  int64_t elems = 0;
  for (const One& one : list) elems += elems_of(one);
  return fmt::format("{} of {}", list.size(), elems);
}

// The kernels of the device within; scratch sizes are theirs.
class ProfiledKernels final : public Kernels {
 public:
  ProfiledKernels(Kernels& inner, LaneQueue& lane, KernelProfile& profile)
      : inner_(inner),
        lane_(lane),
        profile_(profile),
        count_(std::shared_ptr<const KernelScratch>(std::shared_ptr<void>(), &inner)) {}

  int64_t gemm_scratch_bytes(const Gemm& g) const override { return inner_.gemm_scratch_bytes(g); }
  int64_t row_unit(int64_t rows, int64_t cols) const override {
    return inner_.row_unit(rows, cols);
  }
  int64_t norm_backward_scratch_bytes(int64_t rows, int64_t cols, int64_t groups) const override {
    return inner_.norm_backward_scratch_bytes(rows, cols, groups);
  }
  int64_t attention_forward_scratch_bytes(const AttentionShape& s) const override {
    return inner_.attention_forward_scratch_bytes(s);
  }
  int64_t attention_backward_scratch_bytes(const AttentionShape& s) const override {
    return inner_.attention_backward_scratch_bytes(s);
  }
  int64_t embedding_backward_scratch_bytes(int64_t rows, int64_t vocabulary) const override {
    return inner_.embedding_backward_scratch_bytes(rows, vocabulary);
  }
  int64_t column_sum_scratch_bytes(int64_t rows, int64_t cols) const override {
    return inner_.column_sum_scratch_bytes(rows, cols);
  }
  int64_t sum_squares_scratch_bytes(int64_t elems) const override {
    return inner_.sum_squares_scratch_bytes(elems);
  }
  int64_t grouped_gemm_scratch_bytes(const GroupedGemm& g) const override {
    return inner_.grouped_gemm_scratch_bytes(g);
  }
  int64_t route_backward_scratch_bytes(int64_t tokens, int64_t experts) const override {
    return inner_.route_backward_scratch_bytes(tokens, experts);
  }
  int64_t logits_bytes() const override { return inner_.logits_bytes(); }

  void gemm(const Gemm& g) override {
    timed(g.a_transposed ? "products of weights" : "products", g, [&](Kernels& k) { k.gemm(g); });
  }
  void norm_forward(Norm norm, Tensor x, int64_t groups, Tensor weight, Tensor bias, float eps,
                    Tensor dst) override {
    timed("norm", x, [&](Kernels& k) { k.norm_forward(norm, x, groups, weight, bias, eps, dst); });
  }
  void norm_backward(Norm norm, Tensor x, int64_t groups, Tensor weight, float eps, Tensor dy,
                     Tensor dx, bool accumulate_dx, Tensor dweight, Tensor dbias, Tensor dbefore,
                     bool accumulate_weights, Tensor scratch) override {
    timed("norm backward", x, [&](Kernels& k) {
      k.norm_backward(norm, x, groups, weight, eps, dy, dx, accumulate_dx, dweight, dbias, dbefore,
                      accumulate_weights, scratch);
    });
  }
  void activation_forward(Activation act, bool gated, Tensor x, Tensor dst) override {
    timed("activation", x, [&](Kernels& k) { k.activation_forward(act, gated, x, dst); });
  }
  void activation_backward(Activation act, bool gated, Tensor x, Tensor dy, Tensor dx, Tensor y,
                           const BiasGradient& dbias) override {
    timed("activation backward", x,
          [&](Kernels& k) { k.activation_backward(act, gated, x, dy, dx, y, dbias); });
  }
  void rope(Tensor x, int64_t heads, Tensor table, const RowPositions& positions,
            bool inverse) override {
    timed("rope", x, [&](Kernels& k) { k.rope(x, heads, table, positions, inverse); });
  }
  void attention_forward(const AttentionShape& shape, Tensor q, Tensor k, Tensor v, Tensor out,
                         Tensor lse, const Dropout& dropout, Tensor scratch) override {
    timed("attention", shape, [&](Kernels& kernels) {
      kernels.attention_forward(shape, q, k, v, out, lse, dropout, scratch);
    });
  }
  void attention_backward(const AttentionShape& shape, Tensor q, Tensor k, Tensor v, Tensor out,
                          Tensor dout, Tensor lse, Tensor dq, Tensor dk, Tensor dv,
                          const Dropout& dropout, Tensor scratch) override {
    timed("attention backward", shape, [&](Kernels& kernels) {
      kernels.attention_backward(shape, q, k, v, out, dout, lse, dq, dk, dv, dropout, scratch);
    });
  }
  void merge_attention(Tensor out, Tensor lse, Tensor more, Tensor more_lse) override {
    timed("attention joined", out,
          [&](Kernels& k) { k.merge_attention(out, lse, more, more_lse); });
  }
  void dropout(Tensor x, const Dropout& dropout, int64_t length, Tensor residual,
               Tensor dst) override {
    timed("dropout", x, [&](Kernels& k) { k.dropout(x, dropout, length, residual, dst); });
  }
  void embedding_forward(Tensor tokens, Tensor table, Tensor position_table,
                         const RowPositions& positions, Tensor dst) override {
    timed("embedding", dst,
          [&](Kernels& k) { k.embedding_forward(tokens, table, position_table, positions, dst); });
  }
  void embedding_backward(Tensor tokens, Tensor dx, const RowPositions& positions, Tensor dtable,
                          bool accumulate_table, Tensor dpositions, bool accumulate_positions,
                          Tensor scratch) override {
    timed("embedding backward", dx, [&](Kernels& k) {
      k.embedding_backward(tokens, dx, positions, dtable, accumulate_table, dpositions,
                           accumulate_positions, scratch);
    });
  }
  void cross_entropy(Tensor logits, Tensor targets, Tensor gradient_scale, Tensor losses) override {
    timed("cross entropy", logits,
          [&](Kernels& k) { k.cross_entropy(logits, targets, gradient_scale, losses); });
  }
  void share_softmax(Tensor logits, Tensor targets, Tensor stats) override {
    timed("cross entropy", logits, [&](Kernels& k) { k.share_softmax(logits, targets, stats); });
  }
  void share_cross_entropy(Tensor logits, Tensor targets, Tensor stats, Tensor gradient_scale,
                           Tensor losses) override {
    timed("cross entropy", logits, [&](Kernels& k) {
      k.share_cross_entropy(logits, targets, stats, gradient_scale, losses);
    });
  }
  void route(const Route& args) override {
    timed("routing", args.logits, [&](Kernels& k) { k.route(args); });
  }
  void route_backward(const RouteBackward& args) override {
    timed("routing backward", args.dlogits, [&](Kernels& k) { k.route_backward(args); });
  }
  void gather_rows(Tensor x, const Routing& routing, Tensor dst) override {
    timed("rows of experts", dst, [&](Kernels& k) { k.gather_rows(x, routing, dst); });
  }
  void combine_rows(Tensor rows, const Routing& routing, bool weighted, Tensor base,
                    Tensor dst) override {
    timed("rows of experts", dst,
          [&](Kernels& k) { k.combine_rows(rows, routing, weighted, base, dst); });
  }
  void weigh_rows(const Routing& routing, Tensor dy, Tensor x, Tensor dweights) override {
    timed("rows of experts", x, [&](Kernels& k) { k.weigh_rows(routing, dy, x, dweights); });
  }
  void spread_rows(const SpreadRows& args) override {
    timed("routing", args.sources, [&](Kernels& k) { k.spread_rows(args); });
  }
  void sort_rows(Tensor numbers, const Routing& routing) override {
    timed("routing", numbers, [&](Kernels& k) { k.sort_rows(numbers, routing); });
  }
  void grouped_gemm(const GroupedGemm& g) override {
    timed(g.a_transposed ? "products of experts' weights" : "products of experts", g.dst,
          [&](Kernels& k) { k.grouped_gemm(g); });
  }
  void jitter(Tensor x, const Dropout& noise, int64_t length, Tensor dst) override {
    timed("jitter", x, [&](Kernels& k) { k.jitter(x, noise, length, dst); });
  }
  void soft_cap(Tensor x, float cap, Tensor dst) override {
    timed("cross entropy", x, [&](Kernels& k) { k.soft_cap(x, cap, dst); });
  }
  void soft_cap_backward(Tensor y, float cap, Tensor dy, Tensor dx) override {
    timed("cross entropy", y, [&](Kernels& k) { k.soft_cap_backward(y, cap, dy, dx); });
  }
  void column_sum(Tensor x, Tensor dst, bool accumulate, Tensor scratch) override {
    timed("gradients of biases", x, [&](Kernels& k) { k.column_sum(x, dst, accumulate, scratch); });
  }
  void copy(Tensor src, Tensor dst) override {
    timed("copies", dst, [&](Kernels& k) { k.copy(src, dst); });
  }
  void fill(Tensor dst, float value) override {
    timed("copies", dst, [&](Kernels& k) { k.fill(dst, value); });
  }
  void add(Tensor a, Tensor b, Tensor dst) override {
    timed("copies", dst, [&](Kernels& k) { k.add(a, b, dst); });
  }
  void scale(Tensor x, float factor, Tensor dst) override {
    timed("copies", dst, [&](Kernels& k) { k.scale(x, factor, dst); });
  }
  void sum(Tensor x, Tensor dst) override {
    timed("sums", x, [&](Kernels& k) { k.sum(x, dst); });
  }
  void sum_squares(std::span<const Squares> list, Tensor all, Tensor total,
                   Tensor scratch) override {
    timed("squares", list, [&](Kernels& k) { k.sum_squares(list, all, total, scratch); });
  }
  void clip(const Clip& args) override {
    timed("sums", args.sums, [&](Kernels& k) { k.clip(args); });
  }
  void clip_each(const ClipEach& args) override {
    timed("sums", args.squares, [&](Kernels& k) { k.clip_each(args); });
  }
  void clamp(std::span<const Clamp> list, float limit) override {
    timed("squares", list, [&](Kernels& k) { k.clamp(list, limit); });
  }
  void normalise(Tensor x, Tensor squares, float eps, Tensor dst) override {
    timed("optimizer", x, [&](Kernels& k) { k.normalise(x, squares, eps, dst); });
  }
  void adamw(const StepControl& control, std::span<const AdamWStep> list) override {
    timed("optimizer", list, [&](Kernels& k) { k.adamw(control, list); });
  }
  void sgd(const StepControl& control, std::span<const SgdStep> list) override {
    timed("optimizer", list, [&](Kernels& k) { k.sgd(control, list); });
  }
  void lion(const StepControl& control, std::span<const LionStep> list) override {
    timed("optimizer", list, [&](Kernels& k) { k.lion(control, list); });
  }
  void direction(const StepControl& control, std::span<const DirectionStep> list) override {
    timed("optimizer", list, [&](Kernels& k) { k.direction(control, list); });
  }
  void frozen_lamb(const StepControl& control, std::span<const FrozenLambStep> list) override {
    timed("optimizer", list, [&](Kernels& k) { k.frozen_lamb(control, list); });
  }
  void tensor_trust(const StepControl& control, std::span<const TensorTrust> list) override {
    timed("optimizer", list, [&](Kernels& k) { k.tensor_trust(control, list); });
  }
  void move(const StepControl& control, std::span<const MoveStep> list) override {
    timed("optimizer", list, [&](Kernels& k) { k.move(control, list); });
  }
  void factored(const StepControl& control, std::span<const Factored> list) override {
    timed("optimizer", list, [&](Kernels& k) { k.factored(control, list); });
  }
  void factor_squares(std::span<const FactorSquares> list) override {
    timed("squares", list, [&](Kernels& k) { k.factor_squares(list); });
  }
  void blend(const StepControl& control, std::span<const Blend> list) override {
    timed("optimizer", list, [&](Kernels& k) { k.blend(control, list); });
  }

 private:
  template <class Shape, class Call>
  void timed(const char* family, const Shape& shape, const Call& call) {
    if (!profile_.on()) return call(inner_);
    const Work before = count_.work();
    call(count_);
    const Work& after = count_.work();
    profile_.begin(family, shape_of(shape),
                   {after.flops - before.flops, after.bytes - before.bytes,
                    after.half_flops - before.half_flops});
    lane_.post({.tag = kKernelTag}, [&] { call(inner_); });
  }

  Kernels& inner_;
  LaneQueue& lane_;
  KernelProfile& profile_;
  DryKernels count_;
};

// Keeps the spans of kernels for the profile; the others are the caller's.
class ProfiledLane final : public LaneQueue {
 public:
  ProfiledLane(LaneQueue& inner, KernelProfile& profile) : inner_(inner), profile_(profile) {}

  Ticket post(JobLabel label, Job job) override {
    return inner_.post(std::move(label), std::move(job));
  }
  Ticket repeat(JobLabel label, const Key& key, Job job) override {
    if (profile_.on())  // each kernel is timed
      return inner_.post(std::move(label), std::move(job));
    return inner_.repeat(std::move(label), key, std::move(job));
  }
  void after(const Ticket& ticket) override { inner_.after(ticket); }
  void wait(int64_t number) override { inner_.wait(number); }
  Ticket mark() override { return inner_.mark(); }
  std::vector<LaneSpan> take_spans() override {
    std::vector<LaneSpan> spans = inner_.take_spans(), others;
    for (LaneSpan& span : spans) {
      if (span.label.tag == kKernelTag && !span.awaited)
        profile_.end(span.end - span.begin);
      else
        others.push_back(std::move(span));
    }
    return others;
  }

 private:
  LaneQueue& inner_;
  KernelProfile& profile_;
};

class ProfiledDevice final : public Device {
 public:
  ProfiledDevice(std::unique_ptr<Device> inner, std::shared_ptr<KernelProfile> profile)
      : inner_(std::move(inner)),
        profile_(std::move(profile)),
        kernels_(inner_->kernels(), inner_->compute(), *profile_),
        compute_(inner_->compute(), *profile_) {}

  const char* name() const override { return inner_->name(); }
  Kernels& kernels() override { return kernels_; }
  MemorySource* memory(Tier tier) override { return inner_->memory(tier); }
  DriverMemory driver_memory() override { return inner_->driver_memory(); }
  LaneQueue& compute() override { return compute_; }
  std::unique_ptr<LaneQueue> open_lane() override { return inner_->open_lane(); }
  std::unique_ptr<LaneQueue> open_message_lane() override { return inner_->open_message_lane(); }
  Ticket copy(LaneQueue& lane, JobLabel label, void* dst, const void* src, int64_t bytes) override {
    return inner_->copy(&lane == &compute_ ? inner_->compute() : lane, std::move(label), dst, src,
                        bytes);
  }
  void copy_now(void* dst, const void* src, int64_t bytes) override {
    inner_->copy_now(dst, src, bytes);
  }
  double now() const override { return inner_->now(); }
  bool shows_names() const override { return inner_->shows_names(); }
  int threads() const override { return inner_->threads(); }
  ThreadPool* pool() override { return inner_->pool(); }
  bool dry() const override { return inner_->dry(); }
  bool memory_is_the_hosts() const override { return inner_->memory_is_the_hosts(); }
  void write(Tensor dst, const Make& make, Calls calls) override {
    inner_->write(dst, make, calls);
  }
  void read(Tensor src, const Take& take) override { inner_->read(src, take); }
  void read_beside(Tensor src, const Take& take, std::span<std::byte> staging) override {
    inner_->read_beside(src, take, staging);
  }
  std::unique_ptr<RankMemory> rank_memory(LaneQueue& lane) override {
    return inner_->rank_memory(&lane == &compute_ ? inner_->compute() : lane);
  }

 private:
  std::unique_ptr<Device> inner_;
  std::shared_ptr<KernelProfile> profile_;
  ProfiledKernels kernels_;
  ProfiledLane compute_;
};

}  // namespace

void KernelProfile::begin(const char* family, std::string shape, const Work& work) {
  const auto [place, is_new] = places_.try_emplace({family, shape}, rows_.size());
  if (is_new) rows_.push_back({family, std::move(shape)});
  Row& row = rows_[place->second];
  ++row.calls;
  row.work.flops += work.flops;
  row.work.bytes += work.bytes;
  row.work.half_flops += work.half_flops;
  begun_.push_back(place->second);
}

void KernelProfile::end(double seconds) {
  require(timed_ < begun_.size(), "a profile has {} calls, and more spans", begun_.size());
  rows_[begun_[timed_++]].seconds += seconds;
}

std::vector<KernelProfile::Row> KernelProfile::families() const {
  std::vector<Row> all;
  for (const Row& row : rows_) {
    auto found = std::find_if(all.begin(), all.end(),
                              [&](const Row& other) { return other.family == row.family; });
    if (found == all.end()) {
      all.push_back(row);
      all.back().shape.clear();
      continue;
    }
    found->calls += row.calls;
    found->seconds += row.seconds;
    found->work.flops += row.work.flops;
    found->work.bytes += row.work.bytes;
    found->work.half_flops += row.work.half_flops;
  }
  return all;
}

std::unique_ptr<Device> profiled(std::unique_ptr<Device> device,
                                 std::shared_ptr<KernelProfile> profile) {
  return std::make_unique<ProfiledDevice>(std::move(device), std::move(profile));
}

}  // namespace onefold
