// One file for each family of kernels adds its cases, and those of its benchmarks.
#pragma once

#include "kernel_cases/case.h"

namespace onefold::cases {

void add_gemm_cases(CaseList& list);
void add_norm_cases(CaseList& list);
void add_activation_cases(CaseList& list);
void add_rope_cases(CaseList& list);
void add_alibi_cases(CaseList& list);
void add_attention_cases(CaseList& list);
void add_dropout_cases(CaseList& list);
void add_embedding_cases(CaseList& list);
void add_part_cases(CaseList& list);
void add_full_attention_cases(CaseList& list);    // of the same family
void add_joined_attention_cases(CaseList& list);  // likewise
void add_cross_entropy_cases(CaseList& list);
void add_share_cases(CaseList& list);  // of the same family
void add_expert_cases(CaseList& list);
void add_soft_cap_cases(CaseList& list);
void add_sums_cases(CaseList& list);
void add_elementwise_cases(CaseList& list);
void add_optimizer_cases(CaseList& list);
void add_optimizer_rule_cases(CaseList& list);  // of the same family
void add_frozen_lamb_cases(CaseList& list);     // and of it

// With the shapes of GPT-2 and 1024 tokens.
void add_gemm_benchmarks(CaseList& list);
void add_norm_benchmarks(CaseList& list);
void add_activation_benchmarks(CaseList& list);
void add_rope_benchmarks(CaseList& list);
void add_alibi_benchmarks(CaseList& list);
void add_attention_benchmarks(CaseList& list);
void add_dropout_benchmarks(CaseList& list);
void add_embedding_benchmarks(CaseList& list);
void add_part_benchmarks(CaseList& list);
void add_cross_entropy_benchmarks(CaseList& list);
void add_share_benchmarks(CaseList& list);
void add_expert_benchmarks(CaseList& list);
void add_soft_cap_benchmarks(CaseList& list);
void add_sums_benchmarks(CaseList& list);
void add_elementwise_benchmarks(CaseList& list);
void add_optimizer_benchmarks(CaseList& list);
void add_optimizer_rule_benchmarks(CaseList& list);
void add_frozen_lamb_benchmarks(CaseList& list);

}  // namespace onefold::cases
