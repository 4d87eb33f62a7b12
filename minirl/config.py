"""The typed schema of a run, its cross-field rules, and how it is composed. No torch here.

Every field says with `key(...)` whether it belongs to a run's identity. Values are chosen by name from small tables;
a configuration cannot name code.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING as NO_DEFAULT
from dataclasses import dataclass, field
from typing import Any

from omegaconf import MISSING

from minirl.choices import (
    Advantage,
    AggregationKind,
    Anchor,
    AnswerFormat,
    GoldForm,
    Gpu,
    GradientClip,
    GroupFilter,
    Level,
    Numerics,
    OnCollapse,
    Outside,
    Placement,
    Region,
    Routing,
    RoutingMissing,
    Truncated,
)


class ConfigError(Exception):
    """Bad input: one line that names the key, the value and what would be right (exit code 2)."""


class TargetMissed(Exception):
    """A cold start that has not learnt what was asked of it: a failure (exit code 1), told in one line too."""


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
    """A causal LM: a folder in Hugging Face format, or a tiny random one of `family` and the given sizes. vocab_size:
    of a hub model, so that its memory can be estimated before it is fetched; the task's for a tiny one: null."""

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
    vocab_size: int | None = key(identity=False)
    initializer_range: float = key()
    init_seed: int = key()


@dataclass
class EngineConfig:
    """The sampler. max_rollout_seconds: a watcher outside the process ends a run whose rollout takes longer; null: no
    watcher. What stands below is read by vllm alone, and null for torch: whether it runs in the trainer's processes
    (colocated), in its own on the trainer's GPUs (shared) or in its own on its own GPUs (separate), over how many a
    model is cut, how long a sequence may be (prompt and response), the size of the KV cache, whether prompts share
    cached prefixes, whether the engine gives its memory back while the trainer updates."""

    name: str = key()
    numerics: Numerics = key()
    max_sequences: int = key(identity=False)
    max_rollout_seconds: float | None = key(identity=False)
    placement: Placement | None = key(identity=False)
    tensor_parallel: int | None = key(identity=False)
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
    num_replicas: int = key(identity=False)
    offload: bool = key(identity=False)
    checkpoint_every: int = key(identity=False)
    num_checkpoints: int = key(identity=False)
    async_checkpoints: bool = key(identity=False)


@dataclass
class ProblemsConfig:
    """Problems in files. path: of parquet, JSONL or CSV files, a pattern, or hf://datasets/OWNER/NAME@REVISION/PATTERN.
    question, answer: columns (a.b: entry b of column a); of a chat the user's last message is the question. gold: how
    the gold answer stands in its column. where: values that other columns must have."""

    path: str = key(identity=False)  # the content of its files is part of the identity instead
    question: str = key()
    answer: str = key()
    gold: GoldForm = key()
    where: dict[str, Any] = key(factory=dict)


@dataclass
class ChatConfig:
    """How a problem becomes tokens. tokenizer: a folder in Hugging Face format, or a hub id. system: the system prompt.
    instruction: a line after each question. template: a Jinja file instead of the tokenizer's own chat template.
    Problems with longer prompts are dropped."""

    tokenizer: str | None = key(identity=False)  # its content is part of the identity instead
    system: str | None = key()
    instruction: str | None = key()
    template: str | None = key(identity=False)
    max_prompt_tokens: int = key()


@dataclass
class GradingConfig:
    """How a response is graded. field: of the JSON object, for format=json. grader: a Python file with a function
    grade(question, answer, response) -> float, instead of a format. num_workers processes judge what is not plain;
    each is replaced after max_gradings, and ended where one answer takes more than max_seconds of CPU."""

    format: AnswerFormat = key()
    field: str | None = key()
    grader: str | None = key(identity=False)  # its content is part of the identity instead
    num_workers: int = key(identity=False)
    max_seconds: float = key(identity=False)
    max_gradings: int = key(identity=False)


@dataclass
class TaskConfig:
    """addition: `digits`. chain: `digits`, `min_steps`, `max_steps`. reasoning_gym: `dataset` and its `options`. math:
    `train`, `chat`, `grading`, and `eval_sets` by name ({}: a tenth of the problems is held out)."""

    name: str = key()
    digits: int | None = key()
    min_steps: int | None = key()
    max_steps: int | None = key()
    dataset: str | None = key()
    options: dict[str, Any] = key(factory=dict)
    train: ProblemsConfig | None = key(None)
    eval_sets: dict[str, ProblemsConfig] = key(identity=False, factory=dict)
    chat: ChatConfig | None = key(None)
    grading: GradingConfig | None = key(None)
    max_verifier_error_rate: float = key(identity=False)


@dataclass
class TracesConfig:
    """Demonstrations of a teacher, in files as those of problems. messages: the column of a chat whose last message is
    the answer to learn; or else question and response. Longer answers are dropped."""

    path: str = key(identity=False)  # the content of its files is part of the identity instead
    messages: str | None = key()
    question: str | None = key()
    response: str | None = key()
    where: dict[str, Any] = key(factory=dict)
    max_response_tokens: int = key()


@dataclass
class ColdstartConfig:
    """SFT on demonstrations until a measured accuracy, or for `max_steps` where target_accuracy is null. checkpoint:
    use this folder (or hub id) instead of making one. traces: demonstrations of a teacher, for task=math."""

    checkpoint: str | None = key(identity=False)  # its content hash is part of the identity instead
    traces: TracesConfig | None = key(None)
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
    target_accuracy: float | None = key()
    eval_every: int = key()
    eval_problems: int = key()
    seed: int = key()


@dataclass
class EvalConfig:
    """avg@k on held-out problems, by an engine common to all arms. num_problems: of each evaluation set, null for all.
    numerics: of an engine of its own; null: the engine of the rollouts, where a second one has no room. temperature and
    max_response_tokens: null inherits from sampling. top_p: of the distribution that is drawn from; null: all of it."""

    every: int = key(identity=False)
    num_problems: int | None = key(identity=False)
    num_samples: int = key(identity=False)
    numerics: Numerics | None = key(identity=False)
    temperature: float | None = key(identity=False)
    top_p: float | None = key(None, identity=False)  # configurations of before it was there are read too
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
    """artifacts: which files W&B gets too when the run ends: `checkpoint` (the newest), `rollouts`."""

    name: str = key(identity=False)
    project: str = key(identity=False)
    entity: str | None = key(identity=False)
    mode: str = key(identity=False)
    tags: list[str] = key(identity=False, factory=list)
    artifacts: list[str] = key(identity=False, factory=list)


@dataclass
class MachineConfig:
    """What a run is placed on, for the accounting before launch; null: what is found where it is launched."""

    num_nodes: int = key(identity=False)
    gpus_per_node: int | None = key(identity=False)
    gpu: Gpu | None = key(identity=False)
    host_memory_gib: float | None = key(identity=False)


@dataclass
class RunConfig:
    """on_collapse: whether a run ends once its collapse is confirmed (docs/collapse.md). record_rollouts: whether every
    rollout batch is kept, for `minirl rescore`."""

    on_collapse: OnCollapse = key(identity=False)
    record_rollouts: bool = key(identity=False)
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
    machine: MachineConfig = key(factory=MachineConfig)
    run: RunConfig = key(factory=RunConfig)
