#include "kernels/cpu/cpu_kernels.h"
#include "kernels/support.h"

namespace onefold::test {
namespace {

constexpr AdamW kAdamW = {.learning_rate = 0.01f,
                          .beta1 = 0.9f,
                          .beta2 = 0.95f,
                          .eps = 1e-8f,
                          .weight_decay = 0.1f,
                          .bias_correction1 = 0.271f,
                          .bias_correction2 = 0.142625f,
                          .gradient_scale = 0.5f};

struct State {
  explicit State(int64_t n)
      : p(random_matrix(1, n, 1)), g(random_matrix(1, n, 2)), m(random_matrix(1, n, 3)), v(1, n) {
    for (int64_t i = 0; i < n; ++i) v.at(0, i) = m.at(0, i) * m.at(0, i) + 0.1f;
  }
  void adamw(ThreadPool& pool, const AdamW& hyper) {
    cpu::adamw(pool, hyper, p.view(), g.view(), m.view(), v.view());
  }
  Matrix p, g, m, v;
};

TEST(AdamW, MatchesTheOracle) {
  for (const int64_t n : {1, 15, 16, 17, 1031}) {
    const State before(n);
    Doubles p, m, v;
    for (int64_t i = 0; i < n; ++i) {
      const double b1 = kAdamW.beta1, b2 = kAdamW.beta2, lr = kAdamW.learning_rate;
      const double g = static_cast<double>(before.g.at(0, i)) * kAdamW.gradient_scale;
      m.push_back(b1 * before.m.at(0, i) + (1 - b1) * g);
      v.push_back(b2 * before.v.at(0, i) + (1 - b2) * g * g);
      p.push_back(before.p.at(0, i) * (1 - lr * kAdamW.weight_decay) -
                  lr * (m.back() / kAdamW.bias_correction1) /
                      (std::sqrt(v.back() / kAdamW.bias_correction2) + kAdamW.eps));
    }
    for_each_target([&] {
      ThreadPool pool(2);
      State state = before;
      state.adamw(pool, kAdamW);
      // 1 - beta is rounded once in float (relative to 1 - beta2 = 0.05: 20 units); then up to 4
      // roundings of values up to 4 (m) and 16 (v).
      expect_close(state.m, m, 4 * (4 + 10) * kUnit);
      expect_close(state.v, v, 4 * kUnit, 30 * kUnit);
      // The update is about lr * |m| / sqrt(v) <= 0.05, with some 60 units of relative error.
      expect_close(state.p, p, 0.05 * 60 * kUnit, 3 * kUnit);
    });
  }
}

TEST(AdamW, AShardHasTheBitsOfTheWhole) {
  for_each_target([] {
    ThreadPool pool(2);
    State whole(1003), parts(1003);
    whole.adamw(pool, kAdamW);
    for (const auto& [begin, count] : {std::pair{0, 1}, {1, 37}, {38, 64}, {102, 901}})
      cpu::adamw(pool, kAdamW, parts.p.view().col_range(begin, count),
                 parts.g.view().col_range(begin, count), parts.m.view().col_range(begin, count),
                 parts.v.view().col_range(begin, count));
    EXPECT_EQ(parts.p.bits(), whole.p.bits());
    EXPECT_EQ(parts.m.bits(), whole.m.bits());
    EXPECT_EQ(parts.v.bits(), whole.v.bits());
  });
}

TEST(AdamW, BitsDoNotDependOnTheThreads) {
  expect_same_bits_for_any_threads([](ThreadPool& pool) {
    State state(200003);
    state.adamw(pool, kAdamW);
    return state.p.bits();
  });
}

TEST(AdamW, RefusesTensorsOfOtherLengths) {
  ThreadPool pool(1);
  State state(8);
  Matrix shorter(1, 7);
  EXPECT_THROW(
      cpu::adamw(pool, kAdamW, state.p.view(), shorter.view(), state.m.view(), state.v.view()),
      InternalError);
}

// PyTorch's SGD with dampening 0.
void sgd_oracle(const Sgd& hyper, Doubles& p, const Doubles& g, Doubles& buffer) {
  for (size_t i = 0; i < p.size(); ++i) {
    double direction = g[i] * hyper.gradient_scale + hyper.weight_decay * p[i];
    if (hyper.momentum != 0) {
      buffer[i] = hyper.first ? direction : hyper.momentum * buffer[i] + direction;
      direction = hyper.nesterov ? direction + hyper.momentum * buffer[i] : buffer[i];
    }
    p[i] -= hyper.learning_rate * direction;
  }
}

TEST(Sgd, MatchesTheOracle) {
  const Sgd plain = {.learning_rate = 0.1f,
                     .momentum = 0,
                     .weight_decay = 0.01f,
                     .gradient_scale = 0.5f,
                     .nesterov = false,
                     .first = false};
  Sgd heavy = plain, nesterov = plain, first = plain;
  heavy.momentum = nesterov.momentum = first.momentum = 0.9f;
  nesterov.nesterov = true;
  first.first = true;
  for (const Sgd& hyper : {plain, heavy, nesterov, first}) {
    for (const int64_t n : {1, 17, 1031}) {
      const State before(n);
      Doubles p = before.p.doubles(), buffer = before.m.doubles();
      sgd_oracle(hyper, p, before.g.doubles(), buffer);
      for_each_target([&] {
        ThreadPool pool(2);
        State state = before;
        if (hyper.first) state.m.fill(NAN);  // it must not be read
        cpu::sgd(pool, hyper, state.p.view(), state.g.view(),
                 hyper.momentum == 0 ? Tensor{} : state.m.view());
        // Four roundings of values up to 8 each.
        expect_close(state.p, p, 4 * 8 * kUnit);
        if (hyper.momentum != 0) expect_close(state.m, buffer, 4 * 8 * kUnit);
      });
    }
  }
}

TEST(Sgd, BitsDoNotDependOnTheThreads) {
  expect_same_bits_for_any_threads([](ThreadPool& pool) {
    State state(200003);
    cpu::sgd(pool, {0.1f, 0.9f, 0.01f, 1, true, false}, state.p.view(), state.g.view(),
             state.m.view());
    return state.p.bits();
  });
}

}  // namespace
}  // namespace onefold::test
