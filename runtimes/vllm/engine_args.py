"""`engine_args`: which of vLLM's arguments may be set as they are, and why all others may not?

Each argument of `vllm serve` stands in exactly one class: it may be set here, with a kind of value;
Headrace sets it itself, or it would take from Headrace what it promises; or nobody has tried it
with Headrace. A test holds the classes to the locked version's own list. Values within a kind are
vLLM's to judge when the engine starts. Source: vLLM 0.32, `vllm serve --help=all`.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from typing import Any

_KINDS: Mapping[str, tuple[type, ...]] = {
    "true or false": (bool,),
    "a whole number": (int,),
    "a number": (int, float),
    "a text": (str,),
    "a mapping": (dict,),
    "a list": (list, tuple),
}
_MAY_BE_SET: Mapping[str, str] = {
    "true or false": """
        allow_deprecated_quantization async_scheduling disable_cascade_attn disable_chunked_mm_input
        disable_custom_all_reduce disable_hybrid_kv_cache_manager disable_sliding_window
        enable_chunked_prefill enable_eplb enable_expert_parallel enable_flashinfer_autotune
        exclude_tools_when_tool_choice_none interleave_mm_strings kv_sharing_fast_prefill
        language_model_only long_prefill_token_threshold_adaptive scheduler_reserve_full_isl
        skip_mm_profiling use_fp64_gumbel
    """,
    "a whole number": """
        long_prefill_token_threshold mamba_block_size max_cudagraph_capture_size
        max_num_scheduled_tokens num_gpu_blocks_override
    """,
    "a number": "cpu_offload_gb kv_offloading_size mm_processor_cache_gb watermark",
    "a text": """
        all2all_backend attention_backend chat_template_content_format expert_placement_strategy
        kv_offloading_backend linear_backend logprobs_mode mamba_backend mamba_cache_dtype
        mamba_cache_mode mamba_ssm_cache_dtype mm_encoder_attn_backend mm_encoder_tp_mode
        mm_processor_cache_type model_impl moe_backend optimization_level performance_mode
        safetensors_load_strategy tokenizer_mode tool_strict_level
    """,
    "a mapping": """
        default_chat_template_kwargs eplb_config hf_overrides limit_mm_per_prompt media_io_kwargs
        mm_processor_kwargs override_generation_config quantization_config reasoning_config
    """,
    "a list": "cudagraph_capture_sizes kv_cache_dtype_skip_layers",
}
_OWNED: Mapping[str, str] = {
    "callers reach gateways alone, the engine has no server of its own": """
        aggregate_engine_logging allow_credentials allowed_headers allowed_methods allowed_origins
        api_key api_server_count config disable_access_log_for_endpoints disable_fastapi_docs
        disable_uvicorn_access_log enable_offline_docs enable_request_id_headers enable_ssl_refresh
        enable_server_load_tracking enable_tokenizer_info_endpoint grpc grpc_port
        h11_max_header_count h11_max_incomplete_event_size headless help host middleware port
        root_path shutdown_timeout sse_keep_alive_interval ssl_ca_certs ssl_cert_reqs ssl_certfile
        ssl_ciphers ssl_keyfile stream_interval tokens_only tool_server uds uvicorn_log_level
    """,
    "what runs is the model's `source`, whose files are looked through": """
        code_revision config_format download_dir generation_config hf_config_path hf_token
        ignore_patterns load_format model model_loader_extra_config model_tag revision tokenizer
        tokenizer_revision
    """,
    "it is set by the model's name, `task`, `precision` or `lengths.max`": """
        convert dtype max_model_len runner served_model_name skip_tokenizer_init
    """,
    "it is an option of its own": """
        block_size chat_template enable_prefix_caching enforce_eager gpu_memory_utilization
        kv_cache_dtype kv_cache_memory_bytes max_lora_rank max_num_batched_tokens max_num_seqs
        pipeline_parallel_size quantization reasoning_parser scheduling_policy seed
        tensor_parallel_size tool_call_parser
    """,
    "it is set by the option `speculative`": """
        spec_method spec_model spec_tokens speculative_config
    """,
    "adapters are settings of Headrace": """
        default_mm_loras enable_lora enable_mixed_moe_lora_format enable_moe_shared_loras
        enable_tower_connector_lora fully_sharded_loras lora_dtype lora_modules lora_target_modules
        max_cpu_loras max_lora_cls_labels max_loras specialize_active_lora
    """,
    "replicas are placed by Ray, one engine each": """
        cpu_distributed_timeout_seconds data_parallel_address data_parallel_backend
        data_parallel_external_lb data_parallel_hybrid_lb data_parallel_multi_port_external_lb
        data_parallel_rank data_parallel_rpc_port data_parallel_size data_parallel_size_local
        data_parallel_start_rank data_parallel_supervisor_port device_ids
        disable_nccl_for_dp_synchronization distributed_executor_backend distributed_timeout_seconds
        dp_supervisor_probe_failure_threshold dp_supervisor_probe_interval_s
        dp_supervisor_probe_timeout_s dp_sync_interval elastic_ep_max_dp_size enable_elastic_ep
        enable_fault_tolerance fault_tolerance_config master_addr master_port nnodes node_rank
        numa_bind numa_bind_cpus numa_bind_nodes ray_workers_use_nsight worker_cls
        worker_extension_cls
    """,
    "it names code to run": """
        additional_config compilation_config io_processor_plugin logits_processors
        model_class_overrides profiler_config pt_load_map_location reasoning_parser_plugin
        tool_parser_plugin trust_remote_code
    """,
    "requests are queued, ordered and bounded by Headrace": """
        enable_mm_embeds enable_prompt_embeds enable_return_routed_experts max_logprobs
        max_num_active_seqs max_num_queued_reqs max_num_queued_tokens prefix_caching_hash_algo
        return_sampling_mask scheduler_cls trust_request_chat_template trust_request_mm_kwargs
    """,
    "gateways fetch media, the engine does not": """
        allowed_local_media_path allowed_media_domains
    """,
    "where a cache's blocks go is not the engine's to say": """
        ec_manager_config ec_transfer_config enable_shm_tensor_arena kv_events_config
        kv_transfer_config weight_transfer_config
    """,
    "one library makes all grammars, xgrammar": "structured_outputs_config",
    "the shared pool says which engines sleep": """
        enable_sleep_mode sleep_mode_offload_cudagraph sleep_preserve_parameter_names
    """,
    "logs, metrics and traces are Headrace's": """
        collect_detailed_traces cudagraph_metrics custom_histogram_buckets disable_log_stats
        enable_layerwise_nvtx_tracing enable_log_deltas enable_log_outputs enable_log_requests
        enable_logging_iteration_details enable_mfu_metrics enable_per_request_metrics
        enable_trace_replay jit_monitor_mode jit_monitor_verbose kv_cache_metrics
        kv_cache_metrics_sample log_config_file log_error_stack log_level logging_config max_log_len
        otlp_traces_endpoint per_request_spec_decode_metrics show_hidden_metrics_for_version
        use_tqdm_on_load
    """,
    "it would change answers, in which Headrace promises vLLM's defaults": """
        anthropic_disabled_thinking_effort enable_auto_tool_choice enable_force_include_usage
        enable_prompt_tokens_details fingerprint_mode fingerprint_value response_role
        return_tokens_as_token_ids
    """,
    "nobody has tried it with Headrace": """
        attention_config aux_output_config cohere_format cohere_is_reasoning_model
        cp_kv_cache_interleave_size cpu_offload_params dbo_decode_token_threshold
        dbo_prefill_token_threshold dcp_comm_backend dcp_kv_cache_interleave_size
        dcp_q_replicate decode_context_parallel_size diffusion_config
        enable_batch_sharded_sampling enable_cumem_allocator enable_dbo
        enable_ep_weight_filter enable_flash_late_interaction enable_hc_sp
        enable_mamba_cache_stochastic_rounding enable_mamba_shared_prefix_checkpoint
        enable_nccl_comm_suspend enable_scale_out engram_config fail_on_environ_validation
        gdn_prefill_backend ir_op_priority kda_decode_backend kda_prefill_backend
        kernel_config mamba_cache_philox_rounds mamba_ssu_algorithm
        max_parallel_loading_workers mm_device_do_normalize mm_encoder_attn_dtype
        mm_encoder_fp8_scale_path mm_encoder_fp8_scale_save_margin
        mm_encoder_fp8_scale_save_path mm_encoder_only mm_hasher_algorithm
        mm_ipc_gpu_memory_gb mm_processor_device mm_shm_cache_max_object_size_mb
        mm_tensor_ipc offload_backend offload_group_size offload_num_in_group offload_params
        offload_prefetch_step pooler_config prefill_context_parallel_size
        prefill_schedule_interval prefix_cache_retention_interval prefix_match_unit
        renderer_num_workers replayssm_buffer_len safetensors_prefetch_block_size
        safetensors_prefetch_num_threads sparse_indexer_topk_backend swa_bounded_replay
        ubatch_size use_replayssm video_pruning_method video_pruning_rate watermark_config
    """,
}


def _table(by_words: Mapping[str, str]) -> dict[str, str]:
    return {name: words for words, names in by_words.items() for name in names.split()}


MAY_BE_SET, OWNED = _table(_MAY_BE_SET), _table(_OWNED)


def check(given: Mapping[str, Any]) -> None:
    """Raises `ValueError` in the words of an option's mistake."""
    for name, value in given.items():
        if name in OWNED:
            raise ValueError(f"option 'engine_args' may not have '{name}': {OWNED[name]}")
        if name not in MAY_BE_SET:
            close = difflib.get_close_matches(name.replace("-", "_"), MAY_BE_SET, n=1)
            hint = f"did you mean '{close[0]}'?" if close else "vLLM 0.32 has no such argument"
            raise ValueError(f"option 'engine_args' has an unknown '{name}', {hint}")
        kind = MAY_BE_SET[name]
        if type(value) not in _KINDS[kind]:
            raise ValueError(f"option 'engine_args.{name}' is {value!r}, it takes {kind}")
        if isinstance(value, Mapping):
            _check_written(name, value)
        if isinstance(value, list | tuple):
            for each in value:
                if type(each) not in (int, str) or str(each).startswith("-"):
                    raise ValueError(
                        f"option 'engine_args.{name}' has {each!r}, it takes whole numbers or names"
                    )
        if name == "hf_overrides" and "auto_map" in json.dumps(value):
            raise ValueError(
                "option 'engine_args.hf_overrides' may not have auto_map: it names code"
            )


def _check_written(name: str, value: Mapping[str, Any]) -> None:
    """It is given to vLLM as JSON, which has no dates."""
    try:
        json.dumps(value)
    except (TypeError, ValueError, RecursionError) as fault:
        raise ValueError(
            f"option 'engine_args.{name}' cannot be written as JSON: {fault}"
        ) from None


def command_line(given: Mapping[str, Any]) -> list[str]:
    """Of arguments that `check` has passed."""
    made: list[str] = []
    for name, value in given.items():
        flag = name.replace("_", "-")
        if isinstance(value, bool):
            made.append(f"--{flag}" if value else f"--no-{flag}")
        elif isinstance(value, list | tuple):
            made += [f"--{flag}", *map(str, value)]
        else:
            made.append(f"--{flag}={json.dumps(value) if isinstance(value, Mapping) else value}")
    return made
