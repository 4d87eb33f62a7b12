"""The typed schema of a run, its cross-field rules, and how it is composed. No torch here.

Every field says with `key(...)` whether it belongs to a run's identity. Values are chosen by name from small tables;
a configuration cannot name code.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING as NO_DEFAULT
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from omegaconf import MISSING


class ConfigError(Exception):
    """Bad input: one line that names the key, the value and what would be right (exit code 2)."""


class TargetMissed(Exception):
    """A cold start that has not learnt what was asked of it: a failure (exit code 1), told in one line too."""


class Advantage(StrEnum):
    group_mean = "group_mean"
    group_mean_std = "group_mean_std"
    leave_one_out = "leave_one_out"


class Level(StrEnum):
    none = "none"
    token = "token"
    sequence = "sequence"
    geometric = "geometric"


class Outside(StrEnum):
    clamp = "clamp"
    zero = "zero"


class Region(StrEnum):
    none = "none"
    ratio = "ratio"
    tv = "tv"
    kl = "kl"
    soft = "soft"


class Anchor(StrEnum):
    old = "old"
    mu = "mu"


class GroupFilter(StrEnum):
    all = "all"
    mixed = "mixed"


class Truncated(StrEnum):
    keep = "keep"
    drop = "drop"


class AggregationKind(StrEnum):
    seq_mean_token_sum = "seq_mean_token_sum"
    seq_mean_token_mean = "seq_mean_token_mean"
    token_mean = "token_mean"
    group_token_mean = "group_token_mean"
    token_sum_norm = "token_sum_norm"


class Routing(StrEnum):
    live = "live"
    r2 = "r2"
    r3 = "r3"


class RoutingMissing(StrEnum):
    fail = "fail"
    live = "live"
    drop = "drop"


class Numerics(StrEnum):
    fp32 = "fp32"
    bf16 = "bf16"
    fp8 = "fp8"
    fp8_weights = "fp8_weights"
    int4 = "int4"


class GradientClip(StrEnum):
    none = "none"
    global_norm = "global_norm"


def key(default: Any = NO_DEFAULT, *, identity: bool = True, factory: Callable[[], Any] | None = None) -> Any:
    """A field of the schema. `identity=False`: two runs that differ only here are the same experiment."""
    metadata = {"identity": identity}
    if factory is not None:
        return field(default_factory=factory, metadata=metadata)
    return field(default=MISSING if default is NO_DEFAULT else default, metadata=metadata)


# --- algo: the six choices (objective.md) -------------------------------------------------------------------------


@dataclass
class FactorConfig:
    """One factor of the importance weight: at which level it is taken, and what bounds do to it."""

    level: Level = key()
    low: float | None = key()
    high: float | None = key()
    outside: Outside = key()


@dataclass
class ProductConfig:
    """Bounds on the product of both factors, applied last."""

    low: float | None = key()
    high: float | None = key()
    outside: Outside = key()


@dataclass
class IsWeightConfig:
    staleness: FactorConfig = key(factory=FactorConfig)
    discrepancy: FactorConfig = key(factory=FactorConfig)
    product: ProductConfig = key(factory=ProductConfig)


@dataclass
class TrustRegionConfig:
    """M in [0, 1]. ratio uses low, high (and dual); tv and kl use delta; soft uses the two taus; the rest is null."""

    kind: Region = key()
    anchor: Anchor = key()
    level: Level = key()
    low: float | None = key()
    high: float | None = key()
    delta: float | None = key()
    tau_positive: float | None = key()
    tau_negative: float | None = key()
    dual: float | None = key()


@dataclass
class RejectConfig:
    """Rejection from what is fixed before the first update: log(pi_old / mu), rewards, truncation."""

    level: Level = key()
    low: float | None = key()
    high: float | None = key()
    counted: bool = key()
    groups: GroupFilter = key()
    truncated: Truncated = key()


@dataclass
class AggregationConfig:
    kind: AggregationKind = key()
    length: int | None = key()
    scale: float = key()


@dataclass
class AlgoConfig:
    name: str = key(identity=False)
    advantage: Advantage = key()
    is_weight: IsWeightConfig = key(factory=IsWeightConfig)
    trust_region: TrustRegionConfig = key(factory=TrustRegionConfig)
    reject: RejectConfig = key(factory=RejectConfig)
    aggregation: AggregationConfig = key(factory=AggregationConfig)
    routing: Routing = key()
    routing_missing: RoutingMissing = key()


# --- the shared pipeline ------------------------------------------------------------------------------------------


@dataclass
class ModelConfig:
    """A causal LM: a folder in Hugging Face format, or a tiny random one of `family` and the given sizes."""

    name: str = key(identity=False)
    path: str | None = key()
    family: str = key()
    hidden_size: int = key()
    num_layers: int = key()
    num_heads: int = key()
    num_kv_heads: int = key()
    head_dim: int = key()
    intermediate_size: int = key()
    num_experts: int = key()
    num_experts_per_token: int = key()
    moe_intermediate_size: int = key()
    initializer_range: float = key()
    init_seed: int = key()


@dataclass
class EngineConfig:
    """The sampler. max_rollout_seconds: a watcher outside the process ends a run whose rollout takes longer; null: no
    watcher. What stands below is read by vllm alone, and null for torch: how long a sequence may be (prompt and
    response), the size of the KV cache, whether prompts share cached prefixes, whether the engine gives its memory
    back while the trainer updates."""

    name: str = key()
    numerics: Numerics = key()
    max_sequences: int = key(identity=False)
    max_rollout_seconds: float | None = key(identity=False)
    max_sequence_tokens: int | None = key(identity=False)
    cache_mib: int | None = key(identity=False)
    prefix_caching: bool | None = key(identity=False)
    sleep: bool | None = key(identity=False)


@dataclass
class SamplingConfig:
    """How training responses are drawn; log-probabilities of all three policies are taken at this temperature."""

    temperature: float = key()
    top_p: float = key()
    top_k: int = key()
    max_response_tokens: int = key()


@dataclass
class OptimConfig:
    lr: float = key()
    beta1: float = key()
    beta2: float = key()
    eps: float = key()
    weight_decay: float = key()
    warmup_updates: int = key()
    clip: GradientClip = key()
    max_norm: float | None = key()


@dataclass
class TrainConfig:
    optim: OptimConfig = key(factory=OptimConfig)
    freeze_router: bool = key()
    compute_dtype: str = key()
    activation_checkpointing: bool = key(identity=False)
    max_tokens_per_micro_batch: int = key(identity=False)
    likelihood_chunk_tokens: int = key(identity=False)
    checkpoint_every: int = key(identity=False)
    num_checkpoints: int = key(identity=False)


@dataclass
class TaskConfig:
    """addition: `digits`. chain: `digits`, `min_steps`, `max_steps`. reasoning_gym: `dataset` and its `options`."""

    name: str = key()
    digits: int | None = key()
    min_steps: int | None = key()
    max_steps: int | None = key()
    dataset: str | None = key()
    options: dict[str, Any] = key(factory=dict)
    max_verifier_error_rate: float = key(identity=False)


@dataclass
class ColdstartConfig:
    """SFT on demonstrations until a measured accuracy. `checkpoint`: use this folder instead of making one."""

    checkpoint: str | None = key(identity=False)  # its content hash is part of the identity instead
    style: str = key()
    wrong_step_rate: float = key()
    batch_size: int = key()
    max_steps: int = key()
    min_steps: int = key()
    lr: float = key()
    beta1: float = key()
    beta2: float = key()
    eps: float = key()
    warmup_steps: int = key()
    weight_decay: float = key()
    max_norm: float = key()
    target_accuracy: float = key()
    eval_every: int = key()
    eval_problems: int = key()
    seed: int = key()


@dataclass
class EvalConfig:
    """avg@k on held-out problems, by an engine common to all arms; null inherits from sampling."""

    every: int = key(identity=False)
    num_problems: int = key(identity=False)
    num_samples: int = key(identity=False)
    numerics: Numerics = key(identity=False)
    temperature: float | None = key(identity=False)
    max_response_tokens: int | None = key(identity=False)


@dataclass
class MetricsConfig:
    live_every: int = key(identity=False)
    histograms_every: int = key(identity=False)
    samples_every: int = key(identity=False)
    extreme_ratio: float = key(identity=False)
    collapse_margin: float = key(identity=False)
    min_route_overlap: float = key(identity=False)


@dataclass
class TrackerConfig:
    name: str = key(identity=False)
    project: str = key(identity=False)
    entity: str | None = key(identity=False)
    mode: str = key(identity=False)
    tags: list[str] = key(identity=False, factory=list)


@dataclass
class RunConfig:
    outputs: str = key(identity=False)
    name: str | None = key(identity=False)
    group: str | None = key(identity=False)
    device: str = key(identity=False)
    num_threads: int = key(identity=False)


@dataclass
class Config:
    seed: int = key(identity=False)
    prompts_per_mini_batch: int = key()
    group_size: int = key()
    num_mini_batches: int = key()
    num_updates: int = key(identity=False)
    algo: AlgoConfig = key(factory=AlgoConfig)
    model: ModelConfig = key(factory=ModelConfig)
    engine: EngineConfig = key(factory=EngineConfig)
    sampling: SamplingConfig = key(factory=SamplingConfig)
    train: TrainConfig = key(factory=TrainConfig)
    task: TaskConfig = key(factory=TaskConfig)
    coldstart: ColdstartConfig = key(factory=ColdstartConfig)
    eval: EvalConfig = key(factory=EvalConfig)
    metrics: MetricsConfig = key(factory=MetricsConfig)
    tracker: TrackerConfig = key(factory=TrackerConfig)
    run: RunConfig = key(factory=RunConfig)
