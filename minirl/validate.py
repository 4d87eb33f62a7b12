"""Rules that span several keys: one place for run, sweep and dry-run.

`validate` raises ConfigError with one line per broken rule, each naming the keys as a person types them, and returns
notes: what is allowed and yet worth knowing before reading the results.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

from minirl import hub
from minirl.algorithm_rules import algorithm_notes, algorithm_problems
from minirl.config import Config, ConfigError, EngineConfig, GradientClip, ModelConfig, Numerics, Placement, Routing
from minirl.sampling_rules import sampling_problems
from minirl.suggest import did_you_mean
from minirl.task_rules import task_notes, task_problems

ENGINES = ("torch", "vllm")
# what only vllm reads: null for torch
VLLM_KEYS = ("placement", "tensor_parallel", "max_sequence_tokens", "cache_mib", "prefix_caching", "sleep")
FAMILIES = ("qwen3", "qwen3_moe")
DEVICES = ("auto", "cpu", "cuda")
COMPUTE_DTYPES = ("float32", "bfloat16")
TRACKER_MODES = {"local": ("disabled",), "wandb": ("offline", "online", "disabled")}
ARTIFACTS = ("checkpoint", "rollouts")
TASK_KEYS = {
    "addition": ("digits",),
    "chain": ("digits", "min_steps", "max_steps"),
    "reasoning_gym": ("dataset", "options"),
    "math": ("train", "chat", "grading", "eval_sets"),
}
OPTIONAL: dict[str, dict[str, Any] | None] = {name: None for keys in TASK_KEYS.values() for name in keys} | {
    "options": {},
    "eval_sets": {},
}
STYLES = {
    "addition": ("reversed", "carry"),
    "chain": ("count", "plain"),
    "reasoning_gym": ("answer",),
    "math": ("traces",),
}
# the names under which a Hugging Face config counts experts
EXPERT_COUNTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")


def validate(config: Config) -> list[str]:
    """Notes on a configuration that can be run. Raises ConfigError with every rule that it breaks."""
    problems = list(_problems(config))
    if problems:
        raise ConfigError("\n".join(problems))
    return list(notes(config))


def num_experts(model: ModelConfig) -> int:
    """Routed experts per MoE layer, 0 for a dense model; a folder is asked for its config.json. Of a hub id that is not
    fetched yet, model.num_experts is believed."""
    if model.path is None:
        return model.num_experts
    settings = hub.settings(model.path)
    if settings is None:
        return model.num_experts if hub.is_hub_id(model.path) else 0
    return experts_in(settings)


def experts_in(settings: dict[str, Any]) -> int:
    """Routed experts per MoE layer that a model's config.json counts, itself or in a part (`text_config`, ...)."""
    own = [settings[name] for name in EXPERT_COUNTS if isinstance(settings.get(name), int)]
    return max(own + [experts_in(part) for part in settings.values() if isinstance(part, dict)], default=0)


def num_ranks() -> int:
    """Processes of this run, as torchrun tells them."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def planned_ranks(config: Config) -> int:
    """The same; before torchrun has started them, as many as `machine` has GPUs for the trainer."""
    if "WORLD_SIZE" in os.environ or config.machine.gpus_per_node is None:
        return num_ranks()
    return config.machine.num_nodes * config.machine.gpus_per_node - own_gpus(config.engine)


def own_gpus(engine: EngineConfig) -> int:
    """GPUs that the engine has to itself, behind those of the trainer's ranks."""
    return (engine.tensor_parallel or 0) if engine.placement is Placement.separate else 0


def refuse_ranks(config: Config) -> None:
    """Raises ConfigError where the processes that are really there cannot share the work: a plan is one thing."""
    problems = list(_ranks(config, num_ranks()))
    if problems:
        raise ConfigError("\n".join([*problems, "start a run of several ranks by torchrun: docs/running_at_scale.md"]))


def _ranks(config: Config, ranks: int) -> Iterator[str]:
    prompts, replicas, engine = config.prompts_per_mini_batch, config.train.num_replicas, config.engine
    size = engine.tensor_parallel
    if ranks < 1:
        yield (
            f"engine.tensor_parallel={size}: engine.placement=separate takes as many GPUs, and leaves the trainer none "
            f"of machine.num_nodes={config.machine.num_nodes} machine.gpus_per_node={config.machine.gpus_per_node}"
        )
        return
    if prompts % ranks:
        yield f"prompts_per_mini_batch={prompts} cannot be shared by {ranks} ranks: use a multiple of {ranks}"
    if replicas < 1 or ranks % replicas:
        yield f"train.num_replicas={replicas} does not divide {ranks} ranks: each replica takes as many of them"
    together = engine.placement in (Placement.colocated, Placement.shared)  # as many ranks as devices share an engine
    if together and size is not None and size > 0 and ranks % size:
        yield f"engine.tensor_parallel={size}: {ranks} ranks cannot be cut into engines of {size}"


def _problems(config: Config) -> Iterator[str]:
    yield from _unknown(config, "")
    yield from _finite(config, "")
    yield from _names(config)
    yield from _sizes(config)
    yield from _ranks(config, planned_ranks(config))
    yield from _schedule(config)
    yield from algorithm_problems(config.algo)
    yield from sampling_problems(config)
    yield from _engine(config)
    yield from _model(config)
    yield from _optimizer(config)
    yield from _places(config)
    yield from task_problems(config)


def _unknown(node: Any, prefix: str) -> Iterator[str]:
    """Keys added by `+key=...`: they would be switches that do nothing."""
    known = {spec.name for spec in fields(node)}
    for name, value in vars(node).items():
        if name not in known:
            yield f"{prefix}{name}: no such key{did_you_mean(name, known)}"
        elif value == "???":
            yield f"{prefix}{name}: no value; every key of the schema needs one (null where it may)"
        else:
            for inner, part in inner_parts(value):
                yield from _unknown(part, f"{prefix}{name}.{inner}")


def inner_parts(value: Any) -> Iterator[tuple[str, Any]]:
    """(prefix, part) of the schema objects that a key holds: itself, or those of a mapping by their names."""
    if is_dataclass(value):
        yield "", value
    elif isinstance(value, dict):
        yield from ((f"{name}.", part) for name, part in value.items() if is_dataclass(part))


def _finite(node: Any, prefix: str) -> Iterator[str]:
    for spec in fields(node):
        value = getattr(node, spec.name)
        for inner, part in inner_parts(value):
            yield from _finite(part, f"{prefix}{spec.name}.{inner}")
        if isinstance(value, float) and not math.isfinite(value):
            yield f"{prefix}{spec.name}={value}: expected a finite number; no bound is written null"


def _one_of(key: str, name: str, known: Sequence[str]) -> Iterator[str]:
    if name not in known:
        yield f"{key}={name}: unknown{did_you_mean(name, known)}"


def _names(config: Config) -> Iterator[str]:
    task, tracker = config.task, config.tracker
    yield from _one_of("engine.name", config.engine.name, ENGINES)
    yield from _one_of("run.device", config.run.device, DEVICES)
    yield from _one_of("train.compute_dtype", config.train.compute_dtype, COMPUTE_DTYPES)
    yield from _one_of("tracker.name", tracker.name, list(TRACKER_MODES))
    if tracker.name in TRACKER_MODES:
        yield from _one_of("tracker.mode", tracker.mode, TRACKER_MODES[tracker.name])
    for artifact in tracker.artifacts:
        yield from _one_of("tracker.artifacts", artifact, ARTIFACTS)
    yield from _one_of("task.name", task.name, list(TASK_KEYS))
    if task.name not in TASK_KEYS:
        return
    yield from _one_of("coldstart.style", config.coldstart.style, STYLES[task.name])
    for name, nothing in OPTIONAL.items():
        used, value = name in TASK_KEYS[task.name], getattr(task, name)
        if used and value is None:
            yield f"task.{name}=null: task={task.name} needs it"
        elif not used and value:
            spelled = "null" if nothing is None else nothing
            yield f"task.{name}={value}: task={task.name} has no such key, set it to {spelled}"


def _at_least(config: Config, smallest: float, *keys: str) -> Iterator[str]:
    for key in keys:
        value = select(config, key)
        if value < smallest:
            yield f"{key}={value}: expected at least {smallest}"


def select(config: Config, key: str) -> Any:
    """The value of a dotted key."""
    value: Any = config
    for name in key.split("."):
        value = getattr(value, name)
    return value


def _sizes(config: Config) -> Iterator[str]:
    yield from _at_least(
        config,
        1,
        "prompts_per_mini_batch",
        "num_mini_batches",
        "num_updates",
        "eval.every",
        "train.checkpoint_every",
        "sampling.max_response_tokens",
        "engine.max_sequences",
        "train.likelihood_chunk_tokens",
        "train.num_checkpoints",
        "eval.num_samples",
        "run.num_threads",
        "machine.num_nodes",
        "coldstart.batch_size",
        "coldstart.max_steps",
        "coldstart.eval_every",
        "coldstart.eval_problems",
    )
    for key in ("machine.gpus_per_node", "machine.host_memory_gib"):
        if select(config, key) is not None:
            yield from _at_least(config, 1, key)
    if config.eval.num_problems is not None:
        yield from _at_least(config, 2, "eval.num_problems")  # a standard error needs two
    elif config.task.name != "math":
        yield f"eval.num_problems=null: the problems of task={config.task.name} are drawn, say how many"
    yield from _at_least(
        config,
        0,
        "seed",
        "train.optim.warmup_updates",
        "train.optim.weight_decay",
        "coldstart.min_steps",
        "coldstart.warmup_steps",
        "coldstart.weight_decay",
    )
    if config.group_size < 2:
        yield (
            f"group_size={config.group_size} with algo.advantage={config.algo.advantage}: a group of one is its own "
            "baseline and every advantage is 0; use at least 2"
        )
    longest = config.sampling.max_response_tokens + 1
    if config.train.max_tokens_per_micro_batch < longest:
        yield (
            f"train.max_tokens_per_micro_batch={config.train.max_tokens_per_micro_batch} cannot hold one response of "
            f"sampling.max_response_tokens={config.sampling.max_response_tokens} and its prompt: use more"
        )


def _schedule(config: Config) -> Iterator[str]:
    """Everything that happens between rollout batches happens at multiples of N."""
    every = config.num_mini_batches
    if every < 1:
        return
    for key in ("num_updates", "eval.every", "train.checkpoint_every"):
        value = select(config, key)
        if value < 1:
            continue  # said by the sizes
        if value % every:
            below = max(value // every, 1) * every
            yield (
                f"{key}={value} is not a multiple of num_mini_batches={every}: use {below}"
                + (f" or {below + every}" if value > below else "")
            )
    yield from _at_least(config, 1, "metrics.live_every", "metrics.histograms_every", "metrics.samples_every")
    if config.metrics.extreme_ratio <= 1:
        yield f"metrics.extreme_ratio={config.metrics.extreme_ratio}: expected more than 1"
    if not 0 <= config.metrics.min_route_overlap < 1:
        yield f"metrics.min_route_overlap={config.metrics.min_route_overlap}: expected 0 <= value < 1"
    if config.metrics.collapse_margin <= 0:
        yield f"metrics.collapse_margin={config.metrics.collapse_margin}: expected a positive number of standard errors"


def _engine(config: Config) -> Iterator[str]:
    engine = config.engine
    if engine.max_rollout_seconds is not None and engine.max_rollout_seconds <= 0:
        yield f"engine.max_rollout_seconds={engine.max_rollout_seconds}: expected a positive number of seconds, or null"
    for name in VLLM_KEYS:
        value = getattr(engine, name)
        if engine.name == "vllm" and value is None:
            yield f"engine.{name}=null: engine=vllm needs it"
        elif engine.name == "torch" and value is not None:
            yield f"engine.{name}={value}: engine=torch has no such key, set it to null"
    if engine.name != "vllm":
        return
    if engine.numerics in (Numerics.int4, Numerics.router_noise):
        yield f"engine.numerics={engine.numerics}: vLLM computes nothing like it; engine=torch emulates it"
    if engine.cache_mib is not None and engine.cache_mib < 1:
        yield f"engine.cache_mib={engine.cache_mib}: expected at least 1"
    yield from _placement(config)
    limit = engine.max_sequence_tokens
    if limit is not None and limit <= config.sampling.max_response_tokens:
        yield (
            f"engine.max_sequence_tokens={limit} cannot hold a prompt and "
            f"sampling.max_response_tokens={config.sampling.max_response_tokens}: use more"
        )


def _placement(config: Config) -> Iterator[str]:
    engine, size = config.engine, config.engine.tensor_parallel
    if size is not None and size < 1:
        yield f"engine.tensor_parallel={size}: expected at least 1"
    if engine.placement in (Placement.separate, Placement.shared) and config.run.device == "cpu":
        yield f"engine.placement={engine.placement}: weights travel from GPU to GPU, and run.device=cpu; use colocated"
    if engine.placement is Placement.separate and engine.sleep:
        yield "engine.sleep=true: engine.placement=separate shares no device with the trainer; use engine.sleep=false"


def _model(config: Config) -> Iterator[str]:
    model = config.model
    experts = num_experts(model)
    routing, dense = config.algo.routing, f"needs a MoE model, model={model.name} has no routers"
    if routing is not Routing.live and experts == 0:
        yield f"algo.routing={routing} {dense}: use algo.routing=live"
    for key in ("engine.numerics", "eval.numerics"):
        if select(config, key) is Numerics.router_noise and experts == 0:
            yield f"{key}=router_noise {dense}: use {key}=fp32"
    if config.train.freeze_router and experts == 0:
        yield f"train.freeze_router=true {dense}: use train.freeze_router=false"
    if model.path is not None:
        return
    yield from _one_of("model.family", model.family, FAMILIES)
    sizes = ("hidden_size", "num_layers", "num_heads", "num_kv_heads", "head_dim")
    yield from _at_least(config, 1, *(f"model.{name}" for name in sizes))
    if model.num_kv_heads > 0 and model.num_heads % model.num_kv_heads:
        yield f"model.num_heads={model.num_heads} is not a multiple of model.num_kv_heads={model.num_kv_heads}"
    if model.initializer_range <= 0:
        yield f"model.initializer_range={model.initializer_range}: expected a positive standard deviation"
    expert_sizes = (model.num_experts, model.num_experts_per_token, model.moe_intermediate_size)
    if model.family == "qwen3" and (any(expert_sizes) or model.intermediate_size < 1):
        yield (
            "model.family=qwen3 is dense: set model.num_experts, num_experts_per_token, moe_intermediate_size to 0 and "
            "model.intermediate_size to at least 1"
        )
    if model.family == "qwen3_moe" and (min(expert_sizes) < 1 or model.intermediate_size):
        yield (
            "model.family=qwen3_moe needs model.num_experts, num_experts_per_token, moe_intermediate_size of at least "
            "1 and no dense MLPs: model.intermediate_size=0"
        )
    elif model.num_experts_per_token > model.num_experts:
        yield (
            f"model.num_experts_per_token={model.num_experts_per_token} is above model.num_experts={model.num_experts}"
        )


def _optimizer(config: Config) -> Iterator[str]:
    optim, start = config.train.optim, config.coldstart
    for key in ("train.optim.lr", "train.optim.eps", "coldstart.lr", "coldstart.eps", "coldstart.max_norm"):
        if select(config, key) <= 0:
            yield f"{key}={select(config, key)}: expected a positive number"
    for key in (f"{place}.{beta}" for place in ("train.optim", "coldstart") for beta in ("beta1", "beta2")):
        if not 0 <= select(config, key) < 1:
            yield f"{key}={select(config, key)}: expected a number from 0 to below 1"
    if optim.clip is GradientClip.global_norm and (optim.max_norm is None or optim.max_norm <= 0):
        yield f"train.optim.max_norm={optim.max_norm}: train.optim.clip=global_norm needs a positive norm"
    if start.target_accuracy is not None and not 0 < start.target_accuracy <= 1:
        yield f"coldstart.target_accuracy={start.target_accuracy}: expected a share above 0, at most 1"
    if not 0 <= start.wrong_step_rate < 1:
        yield f"coldstart.wrong_step_rate={start.wrong_step_rate}: expected a share from 0 to below 1"
    if start.min_steps > start.max_steps:
        yield f"coldstart.min_steps={start.min_steps} is above coldstart.max_steps={start.max_steps}"


def _places(config: Config) -> Iterator[str]:
    for key, folder in (("model.path", config.model.path), ("coldstart.checkpoint", config.coldstart.checkpoint)):
        if folder is not None and not (hub.is_folder(folder) or hub.is_hub_id(folder)):
            yield f"{key}={folder}: no config.json there; expected a folder in Hugging Face format, or a hub id"
    for key in ("run.group", "run.outputs"):
        if select(config, key) == "":
            yield f"{key} is empty: give a name, or null"


# --- notes --------------------------------------------------------------------------------------------------------


def notes(config: Config) -> Iterator[str]:
    """What is allowed and yet worth knowing."""
    yield from algorithm_notes(config.algo, config.num_mini_batches)
    yield from task_notes(config)
    if config.engine.numerics is Numerics.fp32:
        yield "engine.numerics=fp32: the engine samples from pi_old to rounding, so the discrepancy factor is 1"
