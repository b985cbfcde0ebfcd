"""The hydra overrides and environment of a small CPU run, in one place for the demo and the end-to-end tests.

    env = {**os.environ, **cpu_env()}
    args = cpu_overrides("path/to/model", n_ranks=1) + ["data.train_files=...", "algorithm.adv_estimator=grpo"]
    subprocess.run([sys.executable, "-m", "verl.trainer.main_ppo", *args], env=env)

The data files, the reward, the number of steps and the method are the caller's, appended after these.
"""

from verl_grail.cpu import PLATFORM

TRAINER_MODES = ("sync", "colocate_async", "separate_async")

_FP32 = "{param_dtype: fp32, reduce_dtype: fp32, buffer_dtype: fp32}"


def cpu_env(offline: bool = True) -> dict[str, str]:
    """Environment variables of the driver; Ray's workers on the same machine inherit them.

    Args:
        offline: keep transformers from asking the Hugging Face hub about a local path.
    """
    env = {
        "VERL_PLATFORM": PLATFORM,
        # verl/trainer/ppo/v1/trainer_separate_async.py:184 calls ``logger.info(..., flush=True)``, a TypeError as soon
        # as INFO is on: separate_async with hybrid_engine=False dies there under verl's default level.
        "VERL_LOGGING_LEVEL": "WARN",
        # About a dozen processes share the cores: more threads each only fight.
        "OMP_NUM_THREADS": "1",
        # Nothing is compiled (enforce_eager, use_torch_compile=False); this also halves vLLM's start.
        "TORCHDYNAMO_DISABLE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_LOGGING_LEVEL": "WARN",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_DEDUP_LOGS": "0",
        # Idle workers started ahead would each import torch on the cores that the run needs.
        "RAY_prestart_worker_first_driver": "0",
        "RAY_enable_worker_prestart": "0",
        "HYDRA_FULL_ERROR": "1",
    }
    if offline:
        env |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
    return env


def cpu_overrides(
    model: str,
    n_ranks: int = 1,
    *,
    trainer_mode: str = "sync",
    prompt_length: int = 16,
    response_length: int = 16,
    train_batch_size: int = 8,
    micro_batch_size: int = 8,
    group_size: int = 4,
    lr: float = 1e-3,
    rollout_ranks: int = 1,
    parameter_sync_step: int = 2,
    hybrid_engine: bool = False,
    kv_cache_bytes: int = 32 << 20,
    bucket_megabytes: int = 16,
    object_store_bytes: int = 200_000_000,
    address: str = "local",
) -> list[str]:
    """Hydra overrides for ``python -m verl.trainer.main_ppo`` on the CPU platform, in fp32 throughout.

    Args:
        model: path of the policy. Its ``vocab_size`` must equal ``len(tokenizer)``: verl masks the rest in vLLM only.
        n_ranks: FSDP2 ranks of the trainer.
        trainer_mode: ``trainer.v1.trainer_mode``: sync, colocate_async or separate_async.
        prompt_length: longest prompt, in tokens.
        response_length: longest response, in tokens.
        train_batch_size: prompts per step; a multiple of ``parameter_sync_step`` under separate_async.
        micro_batch_size: sequences per forward pass.
        group_size: responses per prompt.
        lr: learning rate of the policy.
        rollout_ranks: standalone vLLM servers (separate_async only).
        parameter_sync_step: policy updates between two weight syncs (separate_async only).
        hybrid_engine: whether the trainer ranks also serve rollouts (separate_async only).
        kv_cache_bytes: vLLM's KV cache per server.
        bucket_megabytes: bucket of the weight sync; the largest single weight has to fit into it.
        object_store_bytes: Ray's object store.
        address: of a running cluster (`verl_grail.cpu.cluster`); "local" starts one for this run.
    """
    if trainer_mode not in TRAINER_MODES:
        raise ValueError(f"trainer_mode={trainer_mode!r} is not one of {TRAINER_MODES}")
    separate = trainer_mode == "separate_async"
    if separate and train_batch_size % parameter_sync_step:
        raise ValueError(f"{train_batch_size=} is not a multiple of {parameter_sync_step=}")
    mini_batch_size = train_batch_size // parameter_sync_step if separate else train_batch_size
    context = prompt_length + response_length + 32  # room for the end token and for continued partial rollouts
    sampler = "FastPollReplayBuffer" if trainer_mode == "sync" else "FastPollReplayBufferAsync"
    actor, rollout = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
    overrides = [
        f"data.train_batch_size={train_batch_size}",
        f"data.max_prompt_length={prompt_length}",
        f"data.max_response_length={response_length}",
        "data.dataloader_num_workers=0",
        f"actor_rollout_ref.model.path={model}",
        "+actor_rollout_ref.model.override_config.attn_implementation=sdpa",
        "actor_rollout_ref.model.use_remove_padding=False",
        "actor_rollout_ref.model.enable_gradient_checkpointing=False",
        f"{actor}.strategy=fsdp2",
        f"{actor}.use_torch_compile=False",
        f"{actor}.fsdp_config.use_torch_compile=False",
        f"+{actor}.fsdp_config.mixed_precision={_FP32}",
        f"+actor_rollout_ref.ref.fsdp_config.mixed_precision={_FP32}",
        f"{actor}.ppo_mini_batch_size={mini_batch_size}",
        f"{actor}.ppo_micro_batch_size_per_gpu={micro_batch_size}",
        f"{actor}.optim.lr={lr}",
        f"{rollout}.name=vllm",
        f"{rollout}.tensor_model_parallel_size=1",
        f"{rollout}.dtype=float32",
        f"{rollout}.n={group_size}",
        f"{rollout}.enforce_eager=True",
        # vLLM has no sleep mode on CPU.
        f"{rollout}.free_cache_engine=False",
        f"+{rollout}.enable_sleep_mode=False",
        f"{rollout}.calculate_log_probs=True",
        f"{rollout}.max_model_len={context}",
        f"{rollout}.max_num_seqs=64",
        f"{rollout}.max_num_batched_tokens={max(1024, context)}",
        f"{rollout}.log_prob_micro_batch_size_per_gpu={micro_batch_size}",
        f"actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu={micro_batch_size}",
        # Without a figure vLLM takes a share of the host's memory, per server.
        f"+{rollout}.engine_kwargs.vllm.kv_cache_memory_bytes={kv_cache_bytes}",
        # The "mp" executor leaves files in /dev/shm behind.
        f"+{rollout}.engine_kwargs.vllm.distributed_executor_backend=uni",
        f"{rollout}.checkpoint_engine.update_weights_bucket_megabytes={bucket_megabytes}",
        f"{rollout}.agent.num_workers=1",
        "reward.num_workers=1",
        "transfer_queue.backend.SimpleStorage.num_data_storage_units=1",
        f"trainer.device={PLATFORM}",
        "trainer.nnodes=1",
        f"trainer.n_gpus_per_node={n_ranks}",
        f"trainer.v1.trainer_mode={trainer_mode}",
        "trainer.v1.sampler.custom_sampler.path=pkg://verl_grail.cpu.sampler",
        f"trainer.v1.sampler.custom_sampler.name={sampler}",
        f"+ray_kwargs.ray_init.address={address}",
    ]
    if address == "local":
        overrides += [
            # Ray's slots, not cores: verl asks for one per process it starts.
            "ray_kwargs.ray_init.num_cpus=16",
            f"+ray_kwargs.ray_init.num_gpus={n_ranks + (rollout_ranks if separate else 0)}",
            "+ray_kwargs.ray_init.include_dashboard=False",
            f"+ray_kwargs.ray_init.object_store_memory={object_store_bytes}",
        ]
    else:
        overrides += ["ray_kwargs.ray_init.num_cpus=null"]
    if separate:
        overrides += [
            f"trainer.v1.separate_async.parameter_sync_step={parameter_sync_step}",
            f"actor_rollout_ref.hybrid_engine={hybrid_engine}",
            f"{rollout}.nnodes=1",
            f"{rollout}.n_gpus_per_node={rollout_ranks}",
            # By its literal name: importing verl_grail.cpu.checkpoint_engine imports verl, which a driver need not.
            f"{rollout}.checkpoint_engine.backend=zmq_cpu",
        ]
    return overrides


def critic_overrides(model: str, *, micro_batch_size: int = 8) -> list[str]:
    """What a run with a critic (``algorithm.adv_estimator=gae``) needs on top of `cpu_overrides`.

    Args:
        model: path the critic is initialised from.
        micro_batch_size: sequences per forward pass.
    """
    return [
        f"critic.model.path={model}",
        "+critic.model.override_config.attn_implementation=sdpa",
        "critic.model.use_remove_padding=False",
        "critic.model.enable_gradient_checkpointing=False",
        "critic.strategy=fsdp2",
        "critic.fsdp.use_torch_compile=False",
        f"+critic.fsdp.mixed_precision={_FP32}",
        f"critic.ppo_micro_batch_size_per_gpu={micro_batch_size}",
    ]
