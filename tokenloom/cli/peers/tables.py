"""Keys of other tools that no setting takes: what does their work here, what differs, and what is about training only."""

from __future__ import annotations

from tokenloom.cli.peers.keys import Table

_WORKERS = "compute.workers"
_CACHE = "the store reuses every stage that has not changed"
_CODE = "code of the hub is never run"
_TOKEN = "the login of huggingface_hub, or HF_TOKEN"
_ORDER = "the order of rows, not their tokens: no counterpart"

_TRAINER = """
accelerator_config activation_* adam_* auto_find_batch_size average_tokens_across_devices batch_eval_metrics bf16*
ddp ddp_* debug deepspeed disable_tqdm do_eval do_predict do_train early_stopping_* eval_accumulation_steps eval_delay
eval_do_concat_batches eval_on_start eval_steps eval_strategy evaluation_strategy eval_use_gather_object fp16* fsdp fsdp_*
full_determinism generation_* gradient_accumulation_steps gradient_checkpointing gradient_checkpointing_kwargs
greater_is_better hub_* include_* label_smoothing_factor learning_rate liger_kernel_config load_best_model_at_end
local_rank log_* logging_* lr_scheduler* max_grad_norm max_steps metric_for_best_model neftune_noise_alpha
num_train_epochs optim optim_* optimizer output_dir overwrite_output_dir parallelism_config per_device_eval_batch_size
prediction_loss_only predict_with_generate project push_to_hub* remove_unused_columns report_to resume_from_checkpoint run_name
save_* skip_memory_metrics tf32 torch_compile* torch_dtype torch_empty_cache_steps trackio_* use_cache use_cpu
use_liger_kernel warmup_ratio warmup_steps weight_decay attn_implementation dtype lora_* peft_* load_in_4bit load_in_8bit
bnb_* use_dora use_rslora wandb_* vllm_* mlflow_* comet_* swanlab_* use_wandb use_vllm
"""

_LOADER = {
    "dataloader_in_order": "batches always come in order",
    "dataloader_multiprocessing_context": "the loader chooses it",
    "ignore_data_skip": "loaders resume at the next row",
    "data_seed": "dataloader.seed",
    "trust_remote_code": _CODE,
    "use_auth_token": _TOKEN,
    "hf_hub_token": _TOKEN,
    "streaming": "a build reads the source once, in bounded memory; dataset.streaming: true stores nothing",
    "per_device_eval_batch_size": "training code chooses it",
}
_SAMPLING = {"group_by_length": _ORDER, "train_sampling_strategy": _ORDER, "length_column_name": _ORDER}

AXOLOTL = Table(
    elsewhere={
        **_LOADER,
        "dataset_prepared_path": _CACHE,
        "dataset_num_proc": _WORKERS,
        "dataset_processes": _WORKERS,
        "dataset_keep_in_memory": "rows are memory-mapped",
        "num_dataset_shards_to_save": "chunks are cut by content",
        "skip_prepare_dataset": _CACHE,
        "push_dataset_to_hub": "tokenloom export",
        "hf_use_auth_token": _TOKEN,
        "tokenizer_type": "the tokenizer's files are read as its own library reads them",
        "tokenizer_use_fast": "the tokenizer's files are read as its own library reads them",
        "tokenizer_legacy": "tokenizer_config.json decides",
        "eval_sample_packing": "all splits are packed alike",
        "eval_batch_size": "training code chooses it",
        "shuffle_merged_datasets": "dataloader.shuffle, and mixtures by exact shares",
        "shuffle_before_merging_datasets": "dataloader.shuffle, and mixtures by exact shares",
        "sample_packing_group_size": "packing works on chunks",
        "sample_packing_bin_size": "packing works on chunks",
        "sample_packing_sequentially": "packing works on chunks",
        "multipack_real_batches": "packed sequences are rows of their own",
        "batch_flattening": "padding: longest, or packing",
        "preprocess_shards": "memory is bounded anyway",
        "streaming_multipack_buffer_size": "packing works on chunks",
        "conversation": "the chat template decides",
        "template_thinking_key": "reasoning reaches templates under all its names",
        "dataloader_persistent_workers": "dataloader.persistent_workers",
    },
    differs={
        **_SAMPLING,
        "added_tokens_overrides": "save the tokenizer with the renamed tokens, and name its folder",
        "revision_of_model": "the tokenizer of the default branch is read; name a local copy of the revision",
        "dataset_shard_num": "no counterpart: dataset.fraction takes a part of the rows",
        "dataset_shard_idx": "no counterpart: dataset.fraction takes a part of the rows",
        "eval_sequence_len": "all splits have one tokenizer.max_length",
        "min_sample_len": "short rows are kept; drop them with dataset.filters",
        "max_prompt_len": "prompts have no limit of their own",
        "use_pose": "no counterpart: positions of a row count up from 0",
        "pretraining_sample_concatenation": "length.packing: concat joins texts",
        "context_parallel_size": "set tokenizer.padding to a multiple of twice this number",
        "sequence_parallel_degree": "set tokenizer.padding to a multiple of twice this number",
        "tokens": "listed tokens are added",
        "resize_token_embeddings_to_32x": "the model's embeddings: training code resizes them",
        "skip": "no counterpart: the first rows are read too",
        "shards_idx": "dataset.fraction chooses by content, so there is one such part",
        "input_transform": "no counterpart",
        "input_format": "no counterpart",
        "step_separator": "steps with a label each have no form",
        "max_completion_length": "completions have no limit of their own",
        "train_on_last_step_only": "steps with a label each have no form",
        "logprobs_field": "distillation from log-probabilities has no form",
        "eval_table_size": "training code evaluates",
    },
    training=_TRAINER
    + """
adapter base_model_config batch_size beta bench_* bfloat16 capabilities center_rewards_coefficient chunked_cross_entropy*
cls_model_config cosine_* cut_cross_entropy deepcompile device device_map dion_* dpo_* dynamic_checkpoint eaft_* ebft
eager_attention embedding_lr* env_capabilities eta_min eval_causal_lm_metrics eval_max_new_tokens evals_per_epoch
expert_parallel_size experts_implementation feature_layers fix_untrained_tokens flash_* flex_* float16 float32 fp32_*
fp8* freeze_mm_modules fused_attn_kernel galore_* gc_* gemma4_* generate_samples gptq gptq_* gpu_memory_limit
gradio_* grokfast_* heads_k_stride hub_* is_* jagged_* kd_* kto_* large_head_attention layer_offloading liger_* lisa_* llama4_*
llm_compressor loftq_* loraplus_* loss_watchdog_* low_cpu_mem_usage lr_* max_memory max_packed_sequence_len mean_resizing_embeddings
merge_* mora* model_config model_quantization_* model_type noisy_embedding_alpha num_epochs num_generation_samples
num_labels orpo_alpha otel_* overrides_of_* peft plugins process_reward_model processor_kwargs profiler_* qat qgalore_*
qlora_* quantization quantize_* ray_* reinit_weights relora* resources_per_worker ring_attn_func rl_beta rope_scaling
rpo_alpha s2_attention sage_attention saves_per_epoch scaling_softmax* sdp_attention sdpa_varlen selective_checkpointing
shrink_embeddings simpo_gamma spectrum_* strict temperature tensor_parallel_size tiled_mlp* tokenizer_save_jinja_files
torchdistx_path total_* trainer_cls trl type_of_model unfrozen_parameters unsloth_* use_* vllm world_size xformers_attention
cpo_alpha cce* diffusion dp_* dsv4_* embeddings_skip_upcast experimental_* preprocess_iterable do_causal_lm_eval do_bench_eval
lm_eval_* curriculum nemo_gym* save_safetensors
""",
    known="base_model sequence_len sample_packing datasets val_set_size chat_template special_tokens micro_batch_size "
    "test_datasets pretraining_dataset train_on_inputs excess_length_strategy eot_tokens seed rl path type split "
    "field_messages message_property_mappings roles_to_train train_on_eos field_system data_files ds_type name revision",
)

LLAMAFACTORY = Table(
    elsewhere={
        **_LOADER,
        "overwrite_cache": _CACHE,
        "tokenized_path": _CACHE,
        "preprocessing_num_workers": _WORKERS,
        "preprocessing_batch_size": "chunks are cut by content",
        "data_shared_file_system": "stores can be shared",
        "buffer_size": "dataloader.shuffle",
        "cache_dir": "the store",
        "use_fast_tokenizer": "the tokenizer's files are read as its own library reads them",
        "resize_vocab": "a build reports the size of the vocabulary",
        "ignore_pad_token_for_loss": "padding is never trained",
        "media_dir": "dataset.media.folder",
        "disable_shuffling": "dataloader.shuffle: none",
        "eval_on_each_dataset": "evaluation datasets stay apart",
    },
    differs={
        **_SAMPLING,
        "model_revision": "the tokenizer of the default branch is read; name a local copy of the revision",
        "split_special_tokens": "tokenizer.control_tokens_in_content: split is the default, keep is false",
        "new_special_tokens_config": "list the tokens in tokenizer.special_tokens.additional",
        "init_special_tokens": "training code initializes embeddings",
        "tool_format": "the chat template writes the tools",
        "preserve_thinking": "the chat template decides; turns: exact trains every thought",
        "image_max_pixels": "the processor's own limit; larger images are rejected by dataset.media.max_pixels",
        "image_min_pixels": "the processor's own limit",
        "image_do_pan_and_scan": "the processor's own setting",
        "crop_to_patches": "the processor's own setting",
        "video_max_pixels": "videos are not read",
        "video_min_pixels": "videos are not read",
        "video_fps": "videos are not read",
        "video_maxlen": "videos are not read",
        "block_diag_attn": "rows of a sequence never see each other",
    },
    training=_TRAINER
    + """
additional_target adapter_folder adapter_name_or_path apollo_* asft_alpha audio_sampling_rate badam_* compute_accuracy
create_new_adapter device_map disable_gradient_checkpointing double_quantization do_sample dpo_label_smoothing eaft_alpha enable_* eval_num_beams
export_* finetuning_type flash_attn freeze_* galore_* hyper_parallel_* infer_* init_* kt_* kto_* ld_alpha length_penalty
loraplus_* low_cpu_mem_usage master_* max_new_tokens megatron_bridge_args mixture_of_depths module_dropout moe_aux_loss_coef
ms_hub_token num_beams offload_folder oft_* om_hub_token pissa_* plot_loss ppo_* pref_* print_param_status profile_* profiler_*
pure_bf16 quantization_* ray_* ref_model* repetition_penalty reward_model* rope_scaling sglang_* shift_attn simpo_gamma
skip_special_tokens temperature top_k top_p train_from_scratch upcast_* use_adam_mini use_apollo use_asft_loss
use_audio_in_video use_badam use_dft_loss use_eaft_loss use_galore use_hyper_parallel use_kt use_kv_cache use_llama_pro
use_mca use_megatron_bridge use_muon use_reentrant_gc use_swanlab use_unsloth use_unsloth_gc include_effective_tokens_per_second
tensor_model_parallel_size pipeline_model_parallel_size expert_model_parallel_size context_parallel_size
virtual_pipeline_model_parallel_size sequence_parallel recompute_* bias_activation_fusion apply_rope_fusion moe_*
use_distributed_optimizer overlap_*
""",
    known="dataset dataset_dir eval_dataset template cutoff_len max_samples val_size packing neat_packing train_on_prompt "
    "mask_history mix_strategy interleave_probs stage model_name_or_path default_system hf_hub_url file_name formatting "
    "columns tags ranking subset split folder num_samples prompt query response history messages system tools images",
)

TRL = Table(
    elsewhere={
        **_LOADER,
        "dataset_num_proc": _WORKERS,
        "preprocessing_num_workers": _WORKERS,
        "dataset_streaming": "a build reads the source once, in bounded memory",
        "eval_packing": "all splits are packed alike",
        "padding_free": "padding: longest, or packing",
        "shuffle_dataset": "dataloader.shuffle",
        "dataset_kwargs": "rows are never modified in place",
        "dataset_batch_size": "chunks are cut by content",
        "remove_unused_columns": "dataset.keep_columns",
        "use_fast_tokenizer": "the tokenizer's files are read as its own library reads them",
    },
    differs={
        **_SAMPLING,
        "model_revision": "the tokenizer of the default branch is read; name a local copy of the revision",
        "max_prompt_length": "prompts have no limit of their own",
        "max_completion_length": "completions have no limit of their own",
        "eval_dataset": "build it from a YAML of its own",
        "truncation_side": "length.strategy",
        "auto_insert_empty_system_msg": "system messages are never added; set prompt_template.system",
    },
    training=_TRAINER
    + """
beta benchmarks cache_implementation callbacks cast_lm_head_to_fp32 center_rewards_coefficient code_* completion_* cosine_* delta
desirable_weight disable_dropout discopop_tau ds3_gather_for_generation e2b_router_url entropy_* env epsilon epsilon_high
f_* generation_* ignore_bias_buffers importance_sampling_level ioi_provider label_smoothing ld_alpha loss_* mask_truncated_completions
max_completion_len max_tool_calling_iterations min_p model_code_revision model_init_kwargs morph_router_url multi_objective_aggregation num_* off_policy_mask_threshold
overwrite_hub_revision parallel_code_exec_per_proc precompute_* ref_model* repetition_* reward_* router_aux_loss_coef
rpo_alpha sapo_* scale_rewards soft_punish_cache steps_per_generation sync_ref_model temperature top_* transformers_* undesirable_weight
use_adaptive_entropy use_bias_correction_kl use_bnb_nested_quant use_peft use_transformers_* use_weighting vespo_* restore_*
enable_jit_checkpoint label_names simpo_gamma cpo_alpha orpo_alpha is_encoder_decoder
""",
    known="dataset_name dataset_config dataset_train_split dataset_test_split dataset_mixture datasets dataset_text_field "
    "max_length max_seq_length packing packing_strategy completion_only_loss assistant_only_loss eos_token pad_token "
    "chat_template chat_template_path system_prompt pad_to_multiple_of truncation_mode model_name_or_path seed "
    "test_split_size id config columns weight path name split fraction dataset_mixer dataset_splits",
)
