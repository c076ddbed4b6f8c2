// A small model on some ranks, and all of its training state, for tests that save and load it.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <mutex>

#include "engine/ranks.h"
#include "model/zoo.h"
#include "run/checkpoint_writer.h"
#include "run/resume.h"

namespace onefold::test {

// Primes and a tied head: every unit's slab is padded, and slices begin anywhere.
inline ModelSpec small_model() {
  ModelSpec spec = spec_from_preset("gpt2-tiny", "test");
  spec.num_layers = 2;
  spec.hidden_size = 12;
  spec.num_heads = spec.num_kv_heads = 2;
  spec.head_dim = 6;
  spec.intermediate_size = 17;
  spec.vocab_size = 23;
  spec.max_sequence_length = 11;
  return spec;
}

inline EngineOptions options_of(int stage) {
  EngineOptions options{
      .device = test_device_name(), .threads = 1, .micro_batch = 1, .sequence = 5};
  options.zero.stage = stage;
  options.zero.persistence_elems = 0;
  return options;
}

// Every state of every parameter, whole, by "STATE/NAME": as an engine of one rank has it in
// memory.
using State = std::map<std::string, std::vector<float>>;

// Each rank adds its share.
class StateCollector {
 public:
  void add(Engine& engine) {
    std::lock_guard lock(mutex_);
    for (int unit = 0; unit < engine.state().units(); ++unit)
      for (const RankState::SavedPiece& piece : engine.state().saved_pieces(unit))
        add(engine.device(), piece);
  }
  const State& state() const { return state_; }

 private:
  void add(Device& device, const RankState::SavedPiece& piece) {
    std::vector<float>& whole = state_[piece_name(piece.state, piece.param->name)];
    whole.resize(static_cast<size_t>(piece.param->elems()), -77.0F);
    download(device, piece.data, std::span(whole).subspan(static_cast<size_t>(piece.first)));
  }

  std::mutex mutex_;
  State state_;
};

inline void expect_same_state(const State& a, const State& b) {
  ASSERT_EQ(a.size(), b.size());
  for (const auto& [name, values] : a) {
    ASSERT_TRUE(b.contains(name)) << name;
    ASSERT_EQ(values.size(), b.at(name).size()) << name;
    EXPECT_EQ(std::memcmp(values.data(), b.at(name).data(), values.size() * 4), 0) << name;
  }
}

}  // namespace onefold::test
