// The tables of deepspeed_keys.h: DeepSpeed 0.19.8's keys, and those of earlier releases that files
// still have.
#include <array>

#include "config/deepspeed_keys.h"

namespace onefold {
namespace {

constexpr const char* kBoolean = "boolean";
constexpr const char* kInteger = "integer";
constexpr const char* kFalse = "[false]";
constexpr const char* kAnyFloat = R"(["fp32", "fp16", "bf16"])";

constexpr std::array kRoot = {
    PlainKey{"seq_parallel_comm_data_type", kAnyFloat, "it must be fp32, fp16 or bf16"},
    PlainKey{"seq_parallel_communication_data_type", kAnyFloat, "it must be fp32, fp16 or bf16"},
    PlainKey{"fp32_allreduce", kBoolean, "it must be true or false"},
    PlainKey{"prescale_gradients", kBoolean, "it must be true or false"},
    PlainKey{"gradient_predivide_factor", "number", "it must be a number"},
    PlainKey{"gradient_allreduce_op", R"(["mean"])",
             "gradients are averaged over all tokens of a step, not summed over ranks"},
    PlainKey{"managed_gradient_accumulation", "[true]",
             "gradient_accumulation_steps says when a step is done"},
    PlainKey{"sparse_gradients", kFalse, "embedding gradients are dense"},
    PlainKey{"disable_allgather", kBoolean, "it must be true or false"},
    PlainKey{"zero_allow_untested_optimizer", kBoolean, "it must be true or false"},
    PlainKey{"zero_force_ds_cpu_optimizer", kBoolean, "it must be true or false"},
    PlainKey{"use_data_before_expert_parallelism", kBoolean, "it must be true or false"},
    PlainKey{"dump_state", kBoolean, "it must be true or false"},
    PlainKey{"memory_breakdown", kBoolean, "it must be true or false"},
    PlainKey{"disable_python_gc", kBoolean, "it must be true or false"},
    PlainKey{"log_level", R"(["debug", "info", "warning", "error", "critical"])",
             "it must be debug, info, warning, error or critical"},
    PlainKey{"vocabulary_size", kInteger, "it must be an integer"},
    PlainKey{"dataloader_drop_last", "[true]", "an incomplete last batch is always left out"},
    PlainKey{"graph_harvesting", kFalse, "it belongs to CUDA graphs"},
    PlainKey{"datastates_ckpt", kFalse, "checkpoints have one layout"},
};

constexpr std::string_view kWhole = "it must be an integer";
constexpr std::string_view kFlag = "it must be true or false";
constexpr std::string_view kZeroPlusPlus = "ZeRO++ is not supported yet";
constexpr std::string_view kMics = "MiCS is not supported yet";
constexpr std::string_view kZenflow = "there is no such schedule yet";

constexpr std::array kZero = {
    PlainKey{"contiguous_gradients", kBoolean, kFlag},
    PlainKey{"reduce_scatter", kBoolean, kFlag},
    PlainKey{"allgather_partitions", kBoolean, kFlag},
    PlainKey{"use_multi_rank_bucket_allreduce", kBoolean, kFlag},
    PlainKey{"round_robin_gradients", kBoolean, kFlag},
    PlainKey{"parameter_alignment", kBoolean, kFlag},
    PlainKey{"sub_group_size", kInteger, kWhole},
    PlainKey{"load_from_fp32_weights", kBoolean, kFlag},
    PlainKey{"elastic_checkpoint", kBoolean, kFlag},
    PlainKey{"ignore_unused_parameters", kBoolean, kFlag},
    PlainKey{"legacy_stage1", kBoolean, kFlag},
    PlainKey{"stage3_gather_16bit_weights_on_model_save", kBoolean, kFlag},
    PlainKey{"gather_16bit_weights_on_model_save", kBoolean, kFlag},
    PlainKey{"stage3_gather_fp16_weights_on_model_save", kBoolean, kFlag},
    PlainKey{"stage3_module_granularity_threshold", kInteger, kWhole},
    PlainKey{"module_granularity_threshold", kInteger, kWhole},
    PlainKey{"stage3_use_all_reduce_for_fetch_params", kBoolean, kFlag},
    PlainKey{"use_all_reduce_for_fetch_params", kBoolean, kFlag},
    PlainKey{"stage3_allgather_sequential", kBoolean, kFlag},
    PlainKey{"allgather_sequential", kBoolean, kFlag},
    PlainKey{"stage3_partition_stream_chunk_size", kInteger, kWhole},
    PlainKey{"partition_stream_chunk_size", kInteger, kWhole},
    PlainKey{"stage3_model_persistence_threshold", "[]",
             "use stage3_param_persistence_threshold, which counts the elements of a unit"},
    PlainKey{"model_persistence_threshold", "[]",
             "use stage3_param_persistence_threshold, which counts the elements of a unit"},
    PlainKey{"zero_quantized_nontrainable_weights", kFalse, kZeroPlusPlus},
    PlainKey{"zeropp_loco_param", "[]", kZeroPlusPlus},
    PlainKey{"mics_shard_size", "[-1]", kMics},
    PlainKey{"mics_hierarchical_params_gather", kFalse, kMics},
    PlainKey{"memory_efficient_linear", kBoolean, kFlag},
    PlainKey{"pipeline_loading_checkpoint", kBoolean, kFlag},
    PlainKey{"override_module_apply", kBoolean, kFlag},
    PlainKey{"log_trace_cache_warnings", kBoolean, kFlag},
    PlainKey{"enable_sanity_checks", kFalse, "use run.check_collectives"},
    PlainKey{"save_muon_momentum_buffer_in_memory", kBoolean, kFlag},
    PlainKey{"cpu_offload_use_pin_memory", kBoolean, kFlag},
    PlainKey{"zenflow", "[]", kZenflow},
};

constexpr std::string_view kEnabled = "enabled";

constexpr std::array kSections = {
    SectionKey{"amp",
               "enabled opt_level loss_scale cast_model_type patch_torch_functions "
               "keep_batchnorm_fp32 master_weights cast_model_outputs num_losses verbosity "
               "min_loss_scale max_loss_scale",
               kEnabled, "use the section bf16 or fp16"},
    SectionKey{"msamp", "enabled opt_level use_te", kEnabled, "there is no 8-bit arithmetic yet"},
    SectionKey{"torch_autocast", "enabled dtype lower_precision_safe_modules", kEnabled,
               "use the section bf16 or fp16"},
    SectionKey{"activation_checkpointing",
               "partition_activations cpu_checkpointing contiguous_memory_optimization "
               "number_checkpoints synchronize_checkpoint_boundary profile",
               "", "", "[false]", false, "cpu_checkpointing"},
    SectionKey{"elasticity",
               "enabled max_train_batch_size micro_batch_sizes min_gpus max_gpus min_time version "
               "prefer_larger_batch ignore_non_elastic_batch_info model_parallel_size "
               "num_gpus_per_node",
               kEnabled, "the batch does not change during a run"},
    SectionKey{"autotuning",
               "enabled fast results_dir exps_dir overwrite start_profile_step end_profile_step "
               "metric metric_path tuner_type tuner_early_stopping tuner_num_trials arg_mappings "
               "model_info model_info_path mp_size max_train_batch_size min_train_batch_size "
               "max_train_micro_batch_size_per_gpu min_train_micro_batch_size_per_gpu "
               "num_tuning_micro_batch_sizes zero_optimization",
               kEnabled, "`onefold plan --fit` finds the fastest layout that fits"},
    SectionKey{"flops_profiler",
               "enabled recompute_fwd_factor profile_step module_depth top_modules detailed "
               "output_file",
               kEnabled,
               "there is no table of modules; the progress line shows the share of the measured "
               "matrix rate"},
    SectionKey{"comms_logger", "enabled verbose prof_all prof_ops debug", "verbose debug",
               "a table of all communication closes every run; --trace shows each call"},
    SectionKey{"monitor_config", "enabled tag tensorboard wandb comet csv_monitor", kEnabled,
               "use tensorboard or csv_monitor at the top"},
    SectionKey{"wandb", "enabled group team project host", kEnabled,
               "metrics are written as JSON lines, to TensorBoard or as CSV"},
    SectionKey{"comet",
               "enabled samples_log_interval project workspace api_key experiment_name "
               "experiment_key online mode",
               kEnabled, "metrics are written as JSON lines, to TensorBoard or as CSV"},
    SectionKey{"checkpoint",
               "tag_validation load_universal use_node_local_storage parallel_write "
               "checkpoint_serialization writer",
               "use_node_local_storage", "all ranks save into one folder"},
    SectionKey{
        "nebula",
        "enabled persistent_storage_path persistent_time_interval num_of_version_in_retention "
        "enable_nebula_load load_path",
        kEnabled, "it is a service of Azure"},
    SectionKey{"datastates", "enabled config", kEnabled, "checkpoints have one layout"},
    SectionKey{"sparse_attention",
               "mode block different_layout_per_head num_local_blocks num_global_blocks attention "
               "horizontal_global_attention num_different_global_patterns num_random_blocks "
               "local_window_blocks global_block_indices global_block_end_indices "
               "num_sliding_window_blocks",
               "mode", "attention is dense and causal", R"(["dense"])", true},
    SectionKey{"data_efficiency", "enabled seed data_sampling data_routing", kEnabled,
               "data is sampled in one way; see data.shuffle"},
    SectionKey{
        "curriculum_learning",
        "enabled curriculum_type min_difficulty max_difficulty schedule_type schedule_config",
        kEnabled, "the sequence length does not change during a run"},
    SectionKey{"weight_quantization",
               "enabled num_bits q_type q_groups quantized_initialization post_init_quant",
               kEnabled, "there is no quantization", "[false]", true},
    SectionKey{"quantize_training",
               "enabled quantize_verbose quantizer_kernel quantize_bits schedule quantize_schedule "
               "quantize_groups quantize-algo quantize_algo fp16_mixed_quantize quantize_type "
               "rounding",
               kEnabled, "there is no quantization"},
    SectionKey{"progressive_layer_drop", "enabled theta gamma", kEnabled, "layers are not dropped"},
    SectionKey{"eigenvalue",
               "enabled verbose max_iter tol stability gas_boundary_resolution layer_name "
               "layer_num",
               kEnabled, "it belongs to DeepSpeed's quantization"},
    SectionKey{"hybrid_engine",
               "enabled max_out_tokens inference_tp_size release_inference_cache pin_parameters "
               "tp_gather_partition_size enable_cuda_graph",
               kEnabled, "there is no reinforcement learning"},
    SectionKey{"compile",
               "enabled disable backend kwargs deepcompile autoep_non_moe free_activation "
               "free_activation_threshold offload_activation offload_activation_pin_memory "
               "offload_opt_states double_buffer symmetric_memory debug_log offload_parameters "
               "sync_before_reduce sync_after_reduce sync_before_allgather sync_after_allgather "
               "keep_int_input_tensors keep_all_input_tensors passes",
               "offload_activation offload_opt_states offload_parameters",
               "zero_optimization has sections for offloading"},
    SectionKey{"timers", "throughput", "", "the rate is always printed"},
};

}  // namespace

std::span<const PlainKey> plain_root_keys() { return kRoot; }
std::span<const PlainKey> plain_zero_keys() { return kZero; }
std::span<const SectionKey> root_sections() { return kSections; }

}  // namespace onefold
