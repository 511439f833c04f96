"""Options of `transformers.TrainingArguments`. Its source is not in the folder of a script."""

from __future__ import annotations

from hopyard.domain.param_format import OptionKind, ScriptOption

_NUMBERS = """
    adam_beta1 adam_beta2 adam_epsilon data_seed dataloader_num_workers dataloader_prefetch_factor
    ddp_bucket_cap_mb ddp_timeout eval_accumulation_steps eval_delay eval_steps
    generation_max_length generation_num_beams gradient_accumulation_steps label_smoothing_factor
    learning_rate local_rank logging_steps max_grad_norm max_steps neftune_noise_alpha num_train_epochs
    per_device_eval_batch_size per_device_train_batch_size save_steps save_total_limit seed
    torch_empty_cache_steps warmup_ratio warmup_steps weight_decay
"""
_OTHERS = """
    auto_find_batch_size bf16 bf16_full_eval dataloader_drop_last dataloader_pin_memory
    dataloader_persistent_workers ddp_backend ddp_find_unused_parameters deepspeed disable_tqdm do_eval
    do_predict do_train eval_on_start eval_strategy evaluation_strategy fp16 fp16_full_eval fsdp fsdp_config
    full_determinism generation_config gradient_checkpointing greater_is_better group_by_length hub_model_id
    hub_private_repo hub_strategy hub_token ignore_data_skip load_best_model_at_end log_level logging_dir
    logging_first_step logging_strategy lr_scheduler_kwargs lr_scheduler_type metric_for_best_model no_cuda
    optim optim_args output_dir overwrite_output_dir predict_with_generate prediction_loss_only push_to_hub
    remove_unused_columns resume_from_checkpoint run_name save_only_model save_strategy
    skip_memory_metrics tf32 torch_compile torch_compile_backend torch_compile_mode use_cpu
    use_liger_kernel
"""
_LISTS = "debug include_for_metrics label_names report_to"


def trainer_options() -> dict[str, ScriptOption]:
    """Returns the options by name. A version of the library may lack some, and have others."""
    numbers = {name: ScriptOption(f"--{name}", numeric=True) for name in _NUMBERS.split()}
    others = {name: ScriptOption(f"--{name}") for name in _OTHERS.split()}
    lists = {name: ScriptOption(f"--{name}", OptionKind.LIST) for name in _LISTS.split()}
    return {**numbers, **others, **lists}


def is_trainer_class(name: str) -> bool:
    """Returns whether a class of a library, by its full name, has these options."""
    module, _, last = name.rpartition(".")
    return last.endswith("TrainingArguments") or (module.startswith("trl") and last.endswith("Config"))
