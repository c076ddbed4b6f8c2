// LoRA: beside a frozen projection a trained product of two thin matrices, y = x · W' + (alpha /
// rank) · dropout(x) · A' · B'. Which projections have one is said by Hugging Face's module names,
// as PEFT has it: each module has an adapter of its own, also where our parameter joins several of
// them (queries, keys and values; gate and up).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "model/hf_config.h"
#include "model/spec.h"

namespace onefold {

// A linear layer of a block under Hugging Face's name, and which rows of our parameter it is.
struct LoraModule {
  std::string name;       // in its block: "self_attn.q_proj"
  std::string parameter;  // in its block: "attention.qkv.weight"
  int64_t first_row = 0;
  int64_t rows = 0, cols = 0;  // outputs, inputs
  uint32_t place = 0;          // among the modules of a block: what random numbers are keyed by
  std::vector<int64_t> order = {};  // of outputs: HfTensor's

  std::string leaf() const { return name.substr(name.rfind('.') + 1); }
};

// Those of a block, in order. UserError if the model is of no Hugging Face family.
std::vector<LoraModule> lora_modules(const ModelSpec& spec);
// "model.layers.3.self_attn.q_proj"
std::string lora_module_name(const ModelSpec& spec, int block, const LoraModule& module);
// The same under the names of a family that can express the model, of which there may be several: a
// Phi-3 is a Llama too.
std::vector<LoraModule> lora_modules(const ModelSpec& spec, HfFamily family);
std::string lora_module_name(HfFamily family, int block, const LoraModule& module);

// Whether spec.lora has an adapter there. A target is a module's name, or the end of one after a
// dot, in which * stands for anything; or "all-linear".
bool is_adapted(const ModelSpec& spec, int block, const LoraModule& module);

// UserError that lists the names there are if a target is none of them.
void check_lora_targets(const ModelSpec& spec, const std::string& where);
// PEFT's, where none are named: q_proj and v_proj, or the module that has both.
std::vector<std::string> default_lora_targets(const ModelSpec& spec);

// Our names of a module's two matrices, A [rank, inputs] and B [outputs, rank].
struct LoraNames {
  std::string a, b;  // "block.3.attention.q_proj.lora_A"
};
LoraNames lora_names(int block, const LoraModule& module);

// Elements of all adapters.
int64_t lora_parameter_count(const ModelSpec& spec);

Json lora_json(const LoraSpec& lora);

}  // namespace onefold
