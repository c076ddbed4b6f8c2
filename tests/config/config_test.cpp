#include "config/config.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <thread>

#include "base/file.h"
#include "error_text.h"

namespace onefold {
namespace {

Json json(const char* text) { return parse_json(text, "test"); }

// A complete configuration, with `changes` laid over it (null removes a key).
Json with(const char* changes) {
  Json root = json(R"({
    "train_batch_size": 8,
    "model": "gpt2-tiny",
    "data": {"train": "corpus.txt", "sequence_length": 32},
    "run": {"steps": 100}
  })");
  root.merge_patch(json(changes));
  return root;
}

Config config(const char* changes = "{}", int64_t world_size = 1) {
  return Config::from_json(with(changes), world_size);
}

TEST(Config, DefaultsAreDeepSpeeds) {
  const Config c = config();
  EXPECT_EQ(c.gradient_clipping, 1);
  EXPECT_EQ(c.optimizer.type, OptimizerSpec::Type::adamw);
  EXPECT_EQ(c.learning_rate, 1e-3);
  EXPECT_EQ(c.optimizer.beta2, 0.999);
  EXPECT_EQ(c.optimizer.weight_decay, 0);
  EXPECT_EQ(c.schedule.type, ScheduleType::constant);
  EXPECT_EQ(c.steps_per_print, 10);
  EXPECT_EQ(c.data.tokenizer, "bytes");
  EXPECT_TRUE(c.data.shuffle);
  EXPECT_EQ(c.model_source, "gpt2-tiny");
}

TEST(Config, AnUnknownKeyIsNamedByItsPath) {
  EXPECT_ERROR(config(R"({"optimizer": {"type": "AdamW", "params": {"lrr": 1}}})"),
               "optimizer.params.lrr is not a known key", "did you mean \"lr\"?");
  EXPECT_ERROR(config(R"({"train_batchsize": 1})"), "train_batchsize is not a known key",
               "did you mean");
  EXPECT_ERROR(config(R"({"zero_optimisation": {"stage": 0}})"),
               "did you mean \"zero_optimization\"?");
  EXPECT_ERROR(config(R"({"run": {"step": 3}})"), "run.step is not a known key");
  EXPECT_ERROR(config(R"({"data": {"seq_length": 3}})"), "data.seq_length is not a known key");
  EXPECT_ERROR(config(R"({"model": {"preset": "gpt2", "layers": 3}})"), "model.layers");
}

TEST(Config, EvalBatchesIsRefusedWithWhatMeansTheSame) {
  const char* const three = R"({"run": {"eval_batches": 3}, "data": {"validation_fraction": 0.1}})";
  EXPECT_ERROR(config(three), "run.eval_batches is now run.eval_sequences",
               "set run.eval_sequences to 24");
  EXPECT_ERROR(config(three, 2), "set run.eval_sequences to 12");  // micro-batches of 4
  EXPECT_ERROR(config(R"({"run": {"eval_batches": 0}, "data": {"validation_fraction": 0.1}})"),
               "set run.eval_sequences to 0");
  EXPECT_EQ(config(R"({"data": {"validation_fraction": 0.1}})").run.eval_sequences, 128);
  EXPECT_ERROR(config(R"({"run": {"eval_sequences": 3}})"), "run.eval_sequences",
               "there is no validation data");
}

// Runs of a former version have it in their config.json.
TEST(Config, ProductsAreReadAndOfNoEffectUnlessTheyWouldBePaired) {
  for (const char* way : {"auto", "library"}) {
    const Json json = with(fmt::format(R"({{"run": {{"products": "{}"}}}})", way).c_str());
    EXPECT_EQ(Config::from_json(json).effective(), config().effective());
  }
  EXPECT_ERROR(config(R"({"run": {"products": "paired"}})"), "run.products", "removed",
               "Leave the key out");
  EXPECT_ERROR(config(R"({"run": {"products": "fast"}})"), "run.products");
}

struct Batch {
  int64_t global, micro, accumulation;  // 0: not given
  int64_t world_size;
};

Config batch(const Batch& given) {
  Json root = with("{}");
  root.erase("train_batch_size");
  if (given.global) root["train_batch_size"] = given.global;
  if (given.micro) root["train_micro_batch_size_per_gpu"] = given.micro;
  if (given.accumulation) root["gradient_accumulation_steps"] = given.accumulation;
  return Config::from_json(root, given.world_size);
}

TEST(BatchSizes, AnyTwoGiveTheThirdAndOneIsCompletedAsDeepSpeedDoes) {
  const auto expect = [](const Batch& given, int64_t global, int64_t micro, int64_t accumulation) {
    const BatchConfig b = batch(given).batch;
    EXPECT_EQ(b.global, global);
    EXPECT_EQ(b.micro, micro);
    EXPECT_EQ(b.accumulation, accumulation);
  };
  expect({48, 4, 0, 3}, 48, 4, 4);
  expect({48, 0, 4, 3}, 48, 4, 4);
  expect({0, 4, 4, 3}, 48, 4, 4);
  expect({48, 0, 0, 3}, 48, 16, 1);
  expect({0, 4, 0, 3}, 12, 4, 1);
  expect({48, 4, 4, 3}, 48, 4, 4);
}

TEST(BatchSizes, DisagreementStatesTheArithmetic) {
  EXPECT_ERROR(batch({48, 4, 4, 2}), "train_batch_size is 48",
               "train_micro_batch_size_per_gpu 4 * gradient_accumulation_steps 4 * 2 rank(s) = 32");
  EXPECT_ERROR(batch({50, 4, 0, 3}), "train_batch_size is 50, not a multiple of",
               "train_micro_batch_size_per_gpu 4 * 3 rank(s) = 12");
  EXPECT_ERROR(batch({7, 0, 0, 2}),
               "not a multiple of gradient_accumulation_steps 1 * 2 rank(s) = 2");
  EXPECT_ERROR(batch({48, 4, 1, 1}), "they do with --ranks 12");
  EXPECT_ERROR(config(R"({"train_batch_size": 1.5})"), "train_batch_size must be an integer");
  EXPECT_ERROR(config(R"({"train_batch_size": 0})"), "train_batch_size must be at least 1");
}

// Products of three sizes leave int64 long before each of them does.
TEST(BatchSizes, ThatAreTooLargeAreNamedWithTheirLargestValue) {
  const int64_t huge = int64_t{1} << 62;
  EXPECT_ERROR(batch({0, huge, 0, 1}),
               "train_micro_batch_size_per_gpu is 4611686018427387904; the largest is "
               "1099511627776");
  EXPECT_ERROR(batch({huge, 0, 0, 1}), "train_batch_size is 4611686018427387904; the largest is");
  const int64_t large = int64_t{1} << 30;
  EXPECT_ERROR(batch({0, large, large, 1 << 10}),
               "train_micro_batch_size_per_gpu 1073741824 * gradient_accumulation_steps "
               "1073741824 * 1024 rank(s)",
               "more than 1099511627776 sequences");
  EXPECT_ERROR(batch({8, large, large, 1 << 10}), "more than 1099511627776 sequences");
  EXPECT_ERROR(batch({0, int64_t{1} << 36, 1, 1}),
               "train_micro_batch_size_per_gpu is 68719476736; with 1 micro-batches in a step, "
               "and sequences of 32 tokens, the largest is 33554432");
  EXPECT_ERROR(batch({0, 1, 1 << 20, 1}),
               "gradient_accumulation_steps is 1048576; with 3 layers the largest is 209715");
  const std::string many = error_text([] { batch({0, 1, 1, (1 << 20) + 1}); });
  EXPECT_NE(many.find("1048577 ranks were asked for; the largest number is 1048576"), many.npos);
  EXPECT_EQ(many.find("not a known key"), many.npos) << many;
  EXPECT_EQ(batch({0, 1, 1 << 17, 1 << 20}).batch.global, int64_t{1} << 37);
}

TEST(Run, LengthsThatCannotBeCountedAreNamedWithTheirLargestValue) {
  EXPECT_ERROR(config(R"({"run": {"steps": 4611686018427387904}})"),
               "run.steps is 4611686018427387904; with 256 tokens in a step the largest is "
               "18014398509481984");
  EXPECT_ERROR(config(R"({"run": {"steps": null, "tokens": 9223372036854775807}})"),
               "run.tokens is 9223372036854775807; the largest is 4611686018427387904");
  EXPECT_ERROR(config(R"({"run": {"eval_sequences": 9223372036854775807},
                          "data": {"validation": "held_out.txt"}})"),
               "run.eval_sequences is 9223372036854775807", "the largest is 4611686018427387904");
  EXPECT_ERROR(config(R"({"run": {"threads": 1e9}})"),
               "run.threads is 1000000000; the largest is 4096");
  const Config epochs = config(R"({"run": {"steps": null, "epochs": 1e300}})");
  EXPECT_ERROR(epochs.total_steps(100), "run.epochs is 1e+300", "100 training sequences",
               "the largest is");
}

TEST(BatchSizes, AutoIsLeftOut) {
  const Config c = config(R"({"train_batch_size": 8, "train_micro_batch_size_per_gpu": 2,
                              "gradient_accumulation_steps": "auto"})");
  EXPECT_EQ(c.batch.accumulation, 4);
}

TEST(Optimizer, ReadsAdamAndAdamWAsDeepSpeedDoes) {
  const Config c = config(R"({"optimizer": {"type": "Adam", "params": {"lr": 3e-4,
      "betas": [0.8, 0.95], "eps": "auto", "weight_decay": 0.1, "adam_w_mode": true}}})");
  EXPECT_EQ(c.optimizer.type, OptimizerSpec::Type::adamw);
  EXPECT_EQ(c.learning_rate, 3e-4);
  EXPECT_EQ(c.optimizer.beta1, 0.8);
  EXPECT_EQ(c.optimizer.beta2, 0.95);
  EXPECT_EQ(c.optimizer.eps, 1e-8);
  EXPECT_EQ(c.optimizer.weight_decay, 0.1);
  EXPECT_FALSE(c.optimizer.l2);
}

TEST(Optimizer, ReadsSgd) {
  const Config c = config(R"({"optimizer": {"type": "SGD", "params": {"lr": 0.1, "momentum": 0.9,
      "nesterov": true, "weight_decay": 1e-4}}})");
  EXPECT_EQ(c.optimizer.type, OptimizerSpec::Type::sgd);
  EXPECT_EQ(c.optimizer.momentum, 0.9);
  EXPECT_TRUE(c.optimizer.nesterov);
}

TEST(Optimizer, RefusesWhatHasNoEffectOrAnotherMeaning) {
  const auto params = [](const char* type, const char* params) {
    Json root = with("{}");
    root["optimizer"] = {{"type", type}, {"params", json(params)}};
    return Config::from_json(root);
  };
  EXPECT_ERROR(params("AdamW", R"({"momentum": 0.9})"), "optimizer.params.momentum has no effect",
               "SGD");
  EXPECT_ERROR(params("SGD", R"({"betas": [0.9, 0.99]})"), "optimizer.params.betas has no effect");
  EXPECT_ERROR(params("SGD", R"({"nesterov": true})"), "optimizer.params.nesterov", "momentum");
  EXPECT_ERROR(params("AdamW", R"({"adam_w_mode": false})"), "no effect on AdamW");
  EXPECT_ERROR(params("AdamW", R"({"betas": [0.9, 1.0]})"), "optimizer.params.betas must be two");
  EXPECT_ERROR(params("AdamW", R"({"betas": [0.9]})"), "optimizer.params.betas must be two");
  EXPECT_ERROR(params("AdamW", R"({"decay": "none"})"), "optimizer.params.decay must be one of");
  EXPECT_ERROR(params("AdamW", R"({"amsgrad": true})"), "optimizer.params.amsgrad must be false");
  EXPECT_ERROR(params("AdamW", R"({"max_grad_norm": 2})"), "gradient_clipping");
  params("AdamW", R"({"max_grad_norm": 1})");  // says what gradient_clipping does
  EXPECT_ERROR(params("Adagrad", "{}"), "optimizer.type is \"Adagrad\"", "not supported");
  EXPECT_ERROR(params("AdmW", "{}"), "did you mean \"AdamW\"?");
}

TEST(Scheduler, ItsWarmupMustFitInARunOfKnownLength) {
  EXPECT_ERROR(config(R"({"scheduler": {"type": "cosine", "params": {"warmup_steps": 200}}})"),
               "scheduler.params.warmup_steps is 200", "100 steps");
  EXPECT_ERROR(config(R"({"scheduler": {"type": "cosine", "parms": {}}})"), "scheduler.parms");
}

TEST(Zero, KeysOfTheStageSteerIt) {
  const ZeroOptions zero = config(R"({"zero_optimization": {
      "stage": 3, "overlap_comm": true, "reduce_bucket_size": 1e6, "allgather_bucket_size": 2e6,
      "stage3_prefetch_bucket_size": 3e6, "stage3_max_live_parameters": 4e6,
      "stage3_max_reuse_distance": 5e6, "stage3_param_persistence_threshold": 6e6}})")
                               .zero;
  EXPECT_EQ(zero.stage, 3);
  EXPECT_TRUE(zero.overlap);
  EXPECT_EQ(zero.reduce_bucket_elems, 1000000);
  EXPECT_EQ(zero.gather_bucket_elems, 2000000);
  EXPECT_EQ(zero.prefetch_elems, 3000000);
  EXPECT_EQ(zero.max_live_elems, 4000000);
  EXPECT_EQ(zero.max_reuse_distance, 5000000);
  EXPECT_EQ(zero.persistence_elems, 6000000);
  EXPECT_EQ(config(R"({"zero_optimization": {"stage": 3, "prefetch_bucket_size": 7}})")
                .zero.prefetch_elems,
            7);
}

// zero_keys_test.cpp goes through them one by one.
TEST(Zero, WhatADeepSpeedConfigurationUsuallySaysPasses) {
  EXPECT_NO_THROW(config(R"({"zero_optimization": {
      "stage": 3, "contiguous_gradients": true, "reduce_scatter": true, "sub_group_size": 1e9,
      "round_robin_gradients": false, "stage3_gather_16bit_weights_on_model_save": true,
      "offload_optimizer": {"device": "none"}, "offload_param": null,
      "reduce_bucket_size": "auto", "stage3_prefetch_bucket_size": "auto"}})"));
  EXPECT_ERROR(config(R"({"zero_optimization": {"prefetch": 1}})"),
               "zero_optimization.prefetch is not a known key");
}

TEST(Zero, AKeyMayHaveItsPrefixOrNotButNotBoth) {
  EXPECT_ERROR(config(R"({"zero_optimization": {"stage": 3, "prefetch_bucket_size": 1,
                          "stage3_prefetch_bucket_size": 1}})"),
               "another name");
}

TEST(Zero, OverlapIsDeepSpeedsDefaultOfStage3) {
  for (int stage = 0; stage <= 3; ++stage) {
    Json root = with("{}");
    root["zero_optimization"]["stage"] = stage;
    EXPECT_EQ(Config::from_json(root).zero.overlap, stage == 3);
  }
}

TEST(Model, TakesPresetsOverridesInlineSpecsAndFolders) {
  EXPECT_EQ(config(R"({"model": {"preset": "gpt2-tiny", "dropout": 0.1}})").model.dropout, 0.1f);
  EXPECT_EQ(config(R"({"model": {"vocab_size": 11, "hidden_size": 8, "num_layers": 1,
                                 "num_heads": 2}})")
                .model_source,
            "inline");
  EXPECT_ERROR(config(R"({"model": "gtp2-tiny"})"), "\"gtp2-tiny\" is neither a preset nor a file",
               "did you mean \"gpt2-tiny\"?");
  EXPECT_ERROR(config(R"({"model": 3})"), "model must be a preset's name");
  EXPECT_ERROR(config(R"({"model": null})"), "model is missing");
  EXPECT_ERROR(config(R"({"model": {"preset": "gpt2-tiny", "rope_theta": 1e6}})"),
               "model.rope_theta has no effect");

  const std::string folder = testing::TempDir() + "onefold_hf_model";
  make_folders(folder);
  EXPECT_ERROR(Config::from_json(with(("{\"model\": \"" + folder + "\"}").c_str())),
               "has no config.json");
  const std::string file = folder + "/config.json";
  write_file(file, R"({"model_type": "gpt2", "vocab_size": 99, "n_embd": 8, "n_layer": 1,
                       "n_head": 2, "n_positions": 64})");
  write_file(folder + "/tokenizer.json", "{}");
  for (const std::string& path : {folder, file}) {
    const Config c = Config::from_json(with(("{\"model\": \"" + path + "\"}").c_str()));
    EXPECT_EQ(c.model.vocab_size, 99);
    EXPECT_EQ(c.model_source, file);
    EXPECT_EQ(c.data.tokenizer, path == folder ? folder + "/tokenizer.json" : "bytes");
    EXPECT_EQ(c.model_weights, "") << "there are none";
  }
  const auto named = [&] {
    return Config::from_json(with(("{\"model\": \"" + folder + "\"}").c_str()));
  };
  for (const char* name : {"model-00001-of-00002.safetensors", "tf_model.h5", "model.gguf"}) {
    write_file(folder + "/" + name, "");
    EXPECT_ERROR(named(), "has weights that are not read", name, file);
    std::filesystem::remove(folder + "/" + name);
  }
  write_file(folder + "/training_args.bin", "");  // no weights
  EXPECT_EQ(named().model_weights, "");
  write_file(folder + "/model.safetensors", "");
  for (const std::string& path : {folder, file}) {
    const Config c = Config::from_json(with(("{\"model\": \"" + path + "\"}").c_str()));
    EXPECT_EQ(c.model_weights, path == folder ? folder : "") << "a config.json is a shape alone";
    const Config again = Config::from_json(c.effective());
    EXPECT_EQ(again.model_weights, c.model_weights);
    EXPECT_EQ(again.effective(), c.effective());
  }
  const auto over = [&](const char* fields) {
    return Config::from_json(
        with(("{\"model\": {\"weights\": \"" + folder + "\", " + fields + "}}").c_str()));
  };
  EXPECT_EQ(over("\"dropout\": 0.2").model_weights, folder);
  EXPECT_EQ(over("\"dropout\": 0.2").model.dropout, 0.2f);
  EXPECT_EQ(over("\"dropout\": 0.2").model.hidden_size, 8) << "the folder's";
  EXPECT_EQ(over("\"preset\": \"gpt2\"").model.hidden_size, 768);
  EXPECT_ERROR(over("\"dropuot\": 1"), "model.dropuot is not a known key");
  EXPECT_ERROR(config(R"({"model": {"preset": "gpt2", "dropuot": 1}, "gradient_clipping": -1})"),
               "unknown:\n    model.dropuot is not a known key");
  EXPECT_ERROR(config(R"({"model": {"preset": "gpt2", "weights": "nowhere"}})"),
               "model.weights is \"nowhere\"", "model.safetensors");
  write_file(file, R"({"model_type": "gpt2", "vocab_size": 99})");
  EXPECT_ERROR(Config::from_json(with(("{\"model\": \"" + file + "\"}").c_str())),
               file + ").n_embd is missing");
  std::filesystem::remove_all(folder);
}

TEST(Data, FormatFollowsTheExtension) {
  EXPECT_EQ(config().data.train.format, DataFormat::kText);
  EXPECT_EQ(config(R"({"data": {"train": ["a.jsonl", "b.ndjson"]}})").data.train.format,
            DataFormat::kJsonl);
  const Config tokens = config(R"({"data": {"train": "a.bin"}})");
  EXPECT_EQ(tokens.data.train.format, DataFormat::kTokens);
  EXPECT_EQ(tokens.data.tokenizer, "");
  EXPECT_EQ(config(R"({"data": {"train": "a.parquet", "format": "jsonl"}})").data.train.format,
            DataFormat::kJsonl);
  EXPECT_ERROR(config(R"({"data": {"train": "a.parquet"}})"), "data.train names a.parquet");
  EXPECT_ERROR(config(R"({"data": {"train": ["a.txt", "b.jsonl"]}})"), "data.train mixes formats",
               "set data.format");
  EXPECT_ERROR(config(R"({"data": {"validation": "b.jsonl"}})"), "data.validation mixes formats");
}

TEST(Data, RefusesWhatHasNoEffect) {
  EXPECT_ERROR(config(R"({"data": {"field": "body"}})"), "data.field has no effect", "jsonl",
               "text");
  EXPECT_ERROR(config(R"({"data": {"train": "a.jsonl", "document_unit": "line"}})"),
               "data.document_unit has no effect");
  EXPECT_ERROR(config(R"({"data": {"validation": "b.txt", "validation_fraction": 0.1}})"),
               "data.validation_fraction has no effect");
  EXPECT_ERROR(config(R"({"data": {"sequence_length": 68}})"), "data.sequence_length is 68",
               "max_sequence_length is 67");
  EXPECT_ERROR(config(R"({"data": {"documents": "mixed"}})"), "data.documents must be one of");
  EXPECT_ERROR(config(R"({"data": {"train": []}})"), "data.train is an empty list");
}

TEST(Data, SequenceLengthDefaultsToTheModelsUpTo1024) {
  EXPECT_EQ(config(R"({"data": {"sequence_length": null}})").data.sequence_length, 67);
  EXPECT_EQ(
      config(R"({"model": "llama-3-8b", "data": {"sequence_length": null}})").data.sequence_length,
      1024);
}

TEST(Run, HasOneLength) {
  EXPECT_ERROR(config(R"({"run": {"epochs": 1}})"), "run.steps, run.epochs and run.tokens");
  const Config none = config(R"({"run": null})");
  EXPECT_ERROR(none.require_training(), "run.steps, run.epochs or run.tokens is missing");
  EXPECT_ERROR(config(R"({"data": null})").require_training(), "data.train is missing");
  EXPECT_NO_THROW(config().require_training());
}

TEST(Run, LengthInTokensAndEpochsBecomesSteps) {
  EXPECT_EQ(config().total_steps(1), 100);
  EXPECT_EQ(config(R"({"run": {"steps": null, "tokens": 1000}})").total_steps(1), 4);  // 256 a step
  const Config epochs = config(R"({"run": {"steps": null, "epochs": 1.5}})");
  EXPECT_EQ(epochs.total_steps(100), 18);
  EXPECT_ERROR(epochs.total_steps(5), "run.epochs is 1.5", "5 training sequences", "batch of 8");
}

TEST(Run, RefusesWhatHasNoEffect) {
  EXPECT_ERROR(config(R"({"run": {"eval_every": 5}})"), "run.eval_every has no effect",
               "data.validation");
  EXPECT_EQ(
      config(R"({"run": {"eval_every": 5}, "data": {"validation_fraction": 0.1}})").run.eval_every,
      5);
  EXPECT_ERROR(config(R"({"run": {"tensorboard": true}})"), "run.tensorboard has no effect",
               "run.output");
}

TEST(Config, HowMuchTheHostStepsIsAShareOfWhatIsThere) {
  const auto with_share = [](const char* share, const char* device) {
    return config(fmt::format(R"({{"zero_optimization": {{"offload_optimizer": {{"device": "{}"}}}},
                                  "run": {{"host_step": {}}}}})",
                              device, share)
                      .c_str());
  };
  EXPECT_EQ(with_share("0.25", "cpu").offload.host_step_ratio, 0.25);
  EXPECT_EQ(config("{}").offload.host_step_ratio, 1);
  EXPECT_ERROR(with_share("1.5", "cpu"), "run.host_step must be from 0 to 1");
  EXPECT_ERROR(with_share("0.5", "none"), "run.host_step has no effect", "device cpu");
}

TEST(Run, DevicesHaveNamesAndSumsAreForCards) {
  EXPECT_EQ(config("{}").run.device, "cpu");
  EXPECT_EQ(config(R"({"run": {"device": "cuda:3"}})").run.device, "cuda:3");
  EXPECT_ERROR(config(R"({"run": {"device": "cuda:x"}})"), "run.device is \"cuda:x\"", "cuda:N");
  EXPECT_TRUE(config(R"({"run": {"device": "cuda", "sums": "library"}})").run.library_sums);
  EXPECT_FALSE(config(R"({"run": {"device": "cuda"}})").run.library_sums);
  EXPECT_ERROR(config(R"({"run": {"device": "cuda", "sums": "fast"}})"), "run.sums must be one of");
  for (const char* device : {"cpu", "cuda:0"})
    EXPECT_ERROR(
        config(fmt::format(R"({{"run": {{"device": "{}", "sums": "library"}}}})", device).c_str()),
        "run.sums has no effect", "NCCL");
}

TEST(Run, MemoryIsASize) {
  EXPECT_EQ(config(R"({"run": {"memory": "24GiB"}})").run.memory_bytes, int64_t{24} << 30);
  EXPECT_EQ(config(R"({"run": {"memory": 1e9}})").run.memory_bytes, 1000000000);
  EXPECT_ERROR(config(R"({"run": {"memory": "lots"}})"), "run.memory", "\"lots\" is not a size");
}

TEST(Effective, ReadsBackToTheSameConfig) {
  const char* const cases[] = {
      "{}",
      R"({"model": "qwen3-0.6b", "scheduler": {"type": "wsd", "params": {"decay_steps": 7}},
          "data": {"train": "a.jsonl", "field": "body", "validation": ["v.jsonl"]},
          "run": {"output": "out", "memory": "1GiB", "eval_sequences": 3, "tensorboard": true}})",
      R"({"optimizer": {"type": "SGD", "params": {"lr": 0.1, "momentum": 0.9}},
          "scheduler": {"type": "WarmupDecayLR", "params": {"warmup_max_lr": 0.1}},
          "data": {"train": "a.bin", "validation_fraction": 0.01}, "gradient_clipping": 0.5})",
      R"({"model": "demo", "run": {"steps": null, "tokens": 1e9, "seed": 7},
          "data": {"document_unit": "blank_line", "documents": "separated", "shuffle": false}})",
      R"({"data": null, "run": null})"};
  for (const char* text : cases) {
    const Json once = config(text).effective();
    EXPECT_EQ(Config::from_json(once).effective().dump(1), once.dump(1)) << text;
  }
  for (const char* text :
       {R"({"optimizer": {"type": "Adam", "params": {"adam_w_mode": false, "decay": "all",
            "bias_correction": false}}, "scheduler": {"type": "LRRangeTest"}})",
        R"({"model": {"preset": "mixtral-tiny", "experts": {"shared_intermediate_size": 8,
            "dense_blocks": [0]}}})",
        R"({"scheduler": {"type": "OneCycle", "params": {"cycle_min_lr": 0.1, "cycle_max_lr": 1}},
            "tensorboard": {"enabled": true, "output_path": "a/b", "job_name": "c"},
            "csv_monitor": {"enabled": true}})"}) {
    const Json once = config(text).effective();
    EXPECT_EQ(Config::from_json(once).effective().dump(1), once.dump(1)) << text;
  }
  const Json ranks = config("{}", 4).effective();
  EXPECT_EQ(Config::from_json(ranks, 4).effective(), ranks);
}

// Every key that can be in force stands in docs/config.md, as code.
void expect_documented(const std::string& docs, const Json& json) {
  for (const auto& [key, value] : json.items()) {
    const bool found =
        contains(docs, "`" + key + "`") || contains(docs, "." + key + "`") ||
        contains(docs,
                 "## " + std::string(1, static_cast<char>(std::toupper(key[0]))) + key.substr(1));
    EXPECT_TRUE(found || key == "params") << key;
    if (value.is_object()) expect_documented(docs, value);
  }
}

TEST(Effective, EveryKeyIsDocumented) {
  const std::string docs = read_file(std::string(ONEFOLD_SOURCE_DIR) + "/docs/config.md");
  for (const char* text :
       {R"({"model": "llama-3-8b", "scheduler": {"type": "wsd", "params": {"decay_steps": 7}},
            "data": {"train": "a.jsonl", "validation": ["v.jsonl"]},
            "run": {"output": "out", "memory": "1GiB"}})",
        R"({"optimizer": {"type": "SGD"}, "data": {"validation_fraction": 0.1},
            "scheduler": {"type": "WarmupDecayLR", "params": {"total_num_steps": 9}}})",
        R"({"model": {"preset": "llama-tiny", "rope_scaling": {"type": "llama3", "factor": 8}},
            "scheduler": {"type": "WarmupCosineLR"}, "run": {"freeze": ["head"]},
            "zero_optimization": {"stage": 3}})",
        R"({"scheduler": {"type": "OneCycle", "params": {"cycle_min_lr": 0.1, "cycle_max_lr": 1}},
            "optimizer": {"type": "Adam", "params": {"adam_w_mode": false, "decay": "all",
            "bias_correction": false}}, "tensorboard": {"enabled": true}})",
        R"({"scheduler": {"type": "LRRangeTest"}, "csv_monitor": {"enabled": true},
            "run": {"device": "cuda"}})"})
    expect_documented(docs, config(text).effective());
}

TEST(Override, SetsValuesByPath) {
  Json root = json(R"({"run": {"steps": 5}, "model": "gpt2"})");
  apply_override(root, "run.steps=7");
  apply_override(root, "optimizer.params.betas=[0.9, 0.95]");
  apply_override(root, "data.train=my file=1.txt");
  apply_override(root, "run.tensorboard=true");
  apply_override(root, "run.output=");
  EXPECT_EQ(root["run"]["steps"], 7);
  EXPECT_EQ(root["optimizer"]["params"]["betas"][1], 0.95);
  EXPECT_EQ(root["data"]["train"], "my file=1.txt");
  EXPECT_EQ(root["run"]["tensorboard"], true);
  EXPECT_EQ(root["run"]["output"], "");
}

TEST(Override, NullRemovesAKey) {
  Json root = json(R"({"run": {"steps": 5, "typo": 1}, "fp16": {"enabled": true}})");
  apply_override(root, "run.typo=null");
  apply_override(root, "fp16=null");
  apply_override(root, "scheduler.params.warmup_steps=null");  // nothing there, nothing made
  EXPECT_EQ(root.dump(), R"({"run":{"steps":5}})");
  // A misspelt key that is not there is not passed over in silence.
  root = with("{}");
  apply_override(root, "run.setps=null");
  EXPECT_ERROR(Config::from_json(root), "run.setps", "steps");
}

TEST(Override, RefusesBadPaths) {
  Json root = json(R"({"run": {"steps": 5}, "model": "gpt2"})");
  EXPECT_ERROR(apply_override(root, "run.steps"), "--set run.steps", "path=value");
  EXPECT_ERROR(apply_override(root, "=3"), "path=value");
  EXPECT_ERROR(apply_override(root, "run..steps=3"), "has an empty part");
  EXPECT_ERROR(apply_override(root, "run.steps.x=3"), "run.steps is a number (5), not an object");
  EXPECT_ERROR(apply_override(root, "model.dropout=0.1"), "model is a string", "{\"preset\": ...}");
}

TEST(LoadConfig, NamesTheFileInErrors) {
  const std::string path = testing::TempDir() + "onefold_config_test.json";
  write_file(path, with("{}").dump());
  const std::vector<std::string> good = {"run.steps=3", "optimizer.params.lr=5e-4"};
  const Config c = load_config(path, good);
  EXPECT_EQ(c.run.steps, 3);
  EXPECT_EQ(c.learning_rate, 5e-4);
  const std::vector<std::string> bad = {"run.stps=3"};
  EXPECT_ERROR(load_config(path, bad), path, "run.stps is not a known key");
  std::filesystem::remove(path);
}

// As from a shell's <(...): what is read from it is gone, and a run reads its configuration twice.
TEST(LoadConfig, MayComeThroughAPipe) {
  const std::string path = testing::TempDir() + "onefold_config_pipe";
  std::filesystem::remove(path);
  ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
  std::thread writer([&] { std::ofstream(path) << with(R"({"run": {"timeout": 7.5}})").dump(); });
  EXPECT_EQ(comm_options(path, {}).timeout_seconds, 7.5);
  writer.join();
  EXPECT_EQ(load_config(path, {}).run.timeout_seconds, 7.5);
  std::filesystem::remove(path);
}

TEST(LoadConfig, WhatRanksNeedToMeetIsReadAhead) {
  const std::string path = testing::TempDir() + "onefold_comm_options_test.json";
  const auto read = [&](const char* changes, const std::vector<std::string>& overrides = {}) {
    write_file(path, with(changes).dump());
    return comm_options(path, overrides);
  };
  EXPECT_EQ(read("{}").timeout_seconds, config().run.timeout_seconds);
  EXPECT_FALSE(read("{}").check);
  const char* const both = R"({"run": {"timeout": 7.5, "check_collectives": true}})";
  EXPECT_EQ(read(both).timeout_seconds, 7.5);
  EXPECT_TRUE(read(both).check);
  EXPECT_EQ(read(both, {"run.timeout=2"}).timeout_seconds, 2);
  EXPECT_FALSE(read(both, {"run.check_collectives=false"}).check);
  EXPECT_EQ(read(R"({"run": {"timeout": 0}})").timeout_seconds, config().run.timeout_seconds)
      << "load_config says what is wrong with it";
  EXPECT_ERROR(load_config(path, {}), "run.timeout must be greater than 0");
  std::filesystem::remove(path);
}

TEST(Batch, AMisspeltSizeIsNamedRatherThanMissed) {
  EXPECT_ERROR(Config::from_json(Json::parse(R"({"model": "gpt2-tiny", "trian_batch_size": 8})")),
               "trian_batch_size", "did you mean \"train_batch_size\"?");
}

TEST(Config, AGgufFileIsAModelWithWeightsAndTokenizer) {
  const std::string path = std::string(ONEFOLD_GOLDEN_DIR) + "/gguf/llama_f32.gguf";
  const Config c = Config::from_json(
      with(("{\"data\": {\"sequence_length\": 16}, \"model\": \"" + path + "\"}").c_str()));
  EXPECT_EQ(c.model.vocab_size, 53);
  EXPECT_EQ(c.model_weights, path);
  EXPECT_EQ(c.model_source, path);
  EXPECT_EQ(c.data.tokenizer, path) << "which has none, and says so when it is opened";
  EXPECT_EQ(Config::from_json(c.effective()).effective(), c.effective());
  const Config inline_ =
      Config::from_json(with(("{\"data\": {\"sequence_length\": 16}, \"model\": {\"weights\": \"" +
                              path + "\", \"dropout\": 0.25}}")
                                 .c_str()));
  EXPECT_EQ(inline_.model_weights, path);
  EXPECT_EQ(inline_.model.dropout, 0.25f);
  EXPECT_EQ(inline_.model.hidden_size, 24);
  EXPECT_ERROR(Config::from_json(with(R"({"model": {"weights": "none.gguf"}})")),
               "nor a GGUF file");
}

TEST(Config, ChatmlMayBeAskedForByItsName) {
  const auto chat = [](const char* value) {
    return Config::from_json(with(
        fmt::format(R"({{"data": {{"train": "a.jsonl", "format": "chat", "chat": {}}}}})", value)
            .c_str()));
  };
  const Config c = chat("\"chatml\"");
  ASSERT_TRUE(c.data.train.chat);
  EXPECT_EQ(c.data.train.chat->roles.at("user").before, "<|im_start|>user\n");
  EXPECT_EQ(Config::from_json(c.effective()).effective(), c.effective());
  EXPECT_ERROR(chat("\"alpaca\""), "data.chat", "chatml");
}

}  // namespace
}  // namespace onefold
