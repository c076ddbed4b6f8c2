// A router in double, for the cases of mixtures of experts: its rule, written plainly.
#pragma once

#include <vector>

#include "kernel_cases/case.h"

namespace onefold::cases {

struct RouterRule {
  int64_t tokens = 0, experts = 0, choices = 0;
  RouterScores scores = RouterScores::softmax;
  bool normalised = true;
  int64_t capacity = 0;
};

struct RoutingOracle {
  std::vector<int64_t> experts, places, sources, offsets, counts;
  Doubles weights;
};

// Scores of one row of logits.
Doubles scores_of(const RouterRule& rule, const Doubles& logits, int64_t token);
// Weights of chosen experts, whatever their logits are.
Doubles weights_of(const RouterRule& rule, const Doubles& logits,
                   const std::vector<int64_t>& experts);
RoutingOracle routing_of(const RouterRule& rule, const Doubles& logits);

// The numbers of a Routing's tensors in a case: read by a kernel, or written.
struct RoutingTensors {
  int experts, weights, places, sources, offsets, counts;

  Routing of(const Call& call) const {
    return {call[experts], call[weights], call[places], call[sources], call[offsets], call[counts]};
  }
};
RoutingTensors read_routing(Case& c, const RouterRule& rule, const RoutingOracle& routing);
RoutingTensors written_routing(Case& c, const RouterRule& rule);

void add_row_cases(CaseList& list);           // of the family "experts"
void add_grouped_gemm_cases(CaseList& list);  // likewise
void add_grouped_gemm_benchmarks(CaseList& list);

}  // namespace onefold::cases
