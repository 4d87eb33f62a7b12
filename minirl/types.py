"""The data that flows, stage by stage, and the one statement of how it is aligned.

Alignment. Sequences (prompt then response) are packed one after another into one-dimensional tensors; sequence i
occupies positions cu_seqlens[i] : cu_seqlens[i + 1]. Index t of every per-token tensor belongs to the token at
position t: `logprobs[t]` scores `tokens[t]` given what stands before it in its own sequence, `response_mask[t]` says
whether tokens[t] was sampled, `routes.experts[t]` are the experts that processed tokens[t] as *input*. Every
per-token float is fp32 and exactly 0 outside `response_mask`. Responses of one prompt (a group) are neighbours and
`group_size` long. A field exists because its stage has run; `None` means "this kind of run has none".

Axis names: T = tokens of all sequences, B = responses, L = MoE layers, k = experts per token.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any, Protocol, Self, TypeVar

import torch
from torch import Tensor

# Along which axis a field is cut when responses are selected: [T, ...] with their tokens, [B, ...] with the responses;
# the boundaries of sequences are computed anew.
PER_TOKEN = {"axis": "token"}
PER_RESPONSE = {"axis": "response"}
BOUNDARIES = {"axis": "boundaries"}


def assert_aligned(stage: Any, num_tokens: int, num_responses: int) -> None:
    """Every field has as many entries as its axis, nested stages included: asserted wherever stages are joined."""
    lengths = {"token": num_tokens, "response": num_responses}
    for spec in fields(stage):
        part, axis = getattr(stage, spec.name), spec.metadata.get("axis")
        if axis in lengths and part is not None and part.shape[0] != lengths[axis]:
            raise ValueError(
                f"{type(stage).__name__}.{spec.name} has {part.shape[0]} entries, "
                f"cu_seqlens says {num_tokens} tokens in {num_responses} responses: expected one per {axis}"
            )
        if is_dataclass(part):
            assert_aligned(part, num_tokens, num_responses)


@dataclass(frozen=True, slots=True)
class Prompt:
    """One problem, ready to be sampled.

    position: its place in the task's infinite seeded order (evaluation prompts count from 0 in their own order).
    tokens: prompt token ids. problem: what the grader needs (the task's own value: a gold answer, an entry).
    """

    position: int
    tokens: tuple[int, ...]
    problem: Any


@dataclass(frozen=True, slots=True)
class Sampling:
    """How responses are drawn. temperature 0 is greedy (evaluation only). eos ends a response and belongs to it.
    top_p: the share of the distribution that is drawn from (its nucleus); below 1 in evaluation only."""

    temperature: float
    max_response_tokens: int
    eos: int
    seed: int
    purpose: str  # the stream's name: "rollout", "eval", ...
    top_p: float = 1.0


@dataclass(frozen=True, slots=True)
class Routes:
    """Which experts processed each token.

    experts: [T, L, k] in the smallest integer dtype that holds the model's expert ids. present: [T] bool, False where
    no route was recorded (the last sampled token is never fed back, so an engine has none for it). layers: absolute
    decoder layer ids of the L entries; num_experts: experts per layer.
    """

    experts: Tensor = field(metadata=PER_TOKEN)
    present: Tensor = field(metadata=PER_TOKEN)
    layers: tuple[int, ...]
    num_experts: int

    def __post_init__(self) -> None:
        if self.experts.ndim != 3 or self.experts.shape[1] != len(self.layers):
            raise ValueError(
                f"routes of shape {list(self.experts.shape)}: expected [tokens, {len(self.layers)} MoE layers, k]"
            )
        if self.present.shape != self.experts.shape[:1]:
            raise ValueError(f"routes cover {self.experts.shape[0]} tokens, their mask {self.present.shape[0]}")


def expert_dtype(num_experts: int) -> torch.dtype:
    """The smallest integer dtype that holds expert ids 0 .. num_experts - 1."""
    return torch.uint8 if num_experts <= 256 else torch.int16 if num_experts <= 32768 else torch.int32


@dataclass(frozen=True, slots=True)
class RouterScores:
    """What the routers thought of the experts they used, on R sampled tokens of a pass.

    rows [T] int64: the token's entry among the R, -1 where it was not sampled · experts [R, L, k]: used in that pass ·
    log_scores [R, L, k] fp32: log of the family's score of each among all experts. The entries have no token axis:
    they are carried whole, and R does not grow with the batch.
    """

    rows: Tensor = field(metadata=PER_TOKEN)
    experts: Tensor
    log_scores: Tensor


@dataclass(frozen=True, slots=True)
class RolloutBatch:
    """Responses sampled by the engine (mu_old) and what it knew of them.

    tokens [T] int64 · cu_seqlens [B + 1] int64 · response_mask [T] bool · rollout_logprobs [T] fp32: log mu_old of
    the distribution really sampled from · truncated [B] bool: ended by the length limit · valid [B] bool: False where
    the engine returned a non-finite logprob (stored as 0; the response is rejected and counted) · positions [B] int64
    · routes: the engine's experts, or None for a dense model · group_size · version: of the weights that sampled.
    """

    tokens: Tensor = field(metadata=PER_TOKEN)
    cu_seqlens: Tensor = field(metadata=BOUNDARIES)
    response_mask: Tensor = field(metadata=PER_TOKEN)
    rollout_logprobs: Tensor = field(metadata=PER_TOKEN)
    truncated: Tensor = field(metadata=PER_RESPONSE)
    valid: Tensor = field(metadata=PER_RESPONSE)
    positions: Tensor = field(metadata=PER_RESPONSE)
    routes: Routes | None
    group_size: int
    version: int

    def __post_init__(self) -> None:
        assert_aligned(self, int(self.cu_seqlens[-1]), len(self))

    def __len__(self) -> int:
        """Number of responses B."""
        return self.cu_seqlens.shape[0] - 1

    @property
    def lengths(self) -> Tensor:
        """[B] tokens of each sequence, prompt included."""
        return self.cu_seqlens.diff()

    @property
    def sequence_ids(self) -> Tensor:
        """[T] which response each token belongs to."""
        return torch.repeat_interleave(torch.arange(len(self), device=self.tokens.device), self.lengths)

    @property
    def response_lengths(self) -> Tensor:
        """[B] sampled tokens of each response, EOS included."""
        counts = torch.zeros(len(self), dtype=torch.int64, device=self.tokens.device)
        return counts.index_add_(0, self.sequence_ids, self.response_mask.long())


def token_index(cu_seqlens: Tensor, responses: Tensor) -> Tensor:
    """[t] positions of all tokens of the given responses, in the given order."""
    starts, lengths = cu_seqlens[:-1][responses], cu_seqlens.diff()[responses]
    offsets = torch.repeat_interleave(starts - (lengths.cumsum(0) - lengths), lengths)
    return torch.arange(int(lengths.sum()), device=cu_seqlens.device) + offsets


@dataclass(frozen=True, slots=True)
class Rewards:
    """values [B] fp32, 0 where not graded · graded [B] bool: False where the verifier itself failed (no reward)."""

    values: Tensor = field(metadata=PER_RESPONSE)
    graded: Tensor = field(metadata=PER_RESPONSE)


@dataclass(frozen=True, slots=True)
class OldPolicy:
    """pi_old: the trainer with the weights that sampled, frozen before any update.

    logprobs [T] fp32 · entropy [T] fp32, full vocabulary, nats · routes: the *live* choice of the trainer's routers
    in that pass (under replay: given replayed inputs), or None for a dense model · scores: of its routers, on a sample
    of the tokens; None for a dense model.
    """

    logprobs: Tensor = field(metadata=PER_TOKEN)
    entropy: Tensor = field(metadata=PER_TOKEN)
    routes: Routes | None
    scores: RouterScores | None = None


@dataclass(frozen=True, slots=True)
class TrainBatch:
    """Everything an update needs.

    advantages [B] · accepted [T] bool: response tokens that may give gradient · counted [T] bool: response tokens
    that count in denominators (both from what is fixed before the first update; see `algo.reject`) · coefficients
    [T]: a_it of the aggregation, or None before `algo.coefficients` has run on a whole mini-batch.
    """

    rollouts: RolloutBatch
    rewards: Rewards
    advantages: Tensor = field(metadata=PER_RESPONSE)
    old: OldPolicy
    accepted: Tensor = field(metadata=PER_TOKEN)
    counted: Tensor = field(metadata=PER_TOKEN)
    coefficients: Tensor | None = field(metadata=PER_TOKEN)

    def __post_init__(self) -> None:
        assert_aligned(self, int(self.rollouts.cu_seqlens[-1]), len(self))

    def __len__(self) -> int:
        """Number of responses B."""
        return len(self.rollouts)


Stage = TypeVar("Stage", "RolloutBatch", "TrainBatch")


def select(stage: Stage, responses: Tensor) -> Stage:
    """The same stage with only the given responses ([b] int64 indices), repacked in the given order.

    Works on the declared axis of each field, nested stages included, so a field added tomorrow is carried along.
    """
    rollouts = stage.rollouts if isinstance(stage, TrainBatch) else stage
    return _take(stage, responses, token_index(rollouts.cu_seqlens, responses))


def split(batch: TrainBatch, num_mini_batches: int) -> list[TrainBatch]:
    """The mini-batches of one rollout batch: whole groups, in order."""
    groups, rest = divmod(len(batch), batch.rollouts.group_size)
    size, rest = (0, 1) if rest else divmod(groups, num_mini_batches)
    if rest:
        raise ValueError(
            f"{len(batch)} responses in groups of {batch.rollouts.group_size} "
            f"cannot be split into num_mini_batches={num_mini_batches} of whole groups"
        )
    size *= batch.rollouts.group_size
    return [select(batch, torch.arange(i * size, (i + 1) * size)) for i in range(num_mini_batches)]


def _take(value: Any, responses: Tensor, tokens: Tensor) -> Any:
    changed: dict[str, Any] = {}
    for spec in fields(value):
        part, axis = getattr(value, spec.name), spec.metadata.get("axis")
        if part is None:
            continue
        if axis == "token":
            changed[spec.name] = part[tokens]
        elif axis == "response":
            changed[spec.name] = part[responses]
        elif axis == "boundaries":
            changed[spec.name] = torch.cat([part.new_zeros(1), part.diff()[responses].cumsum(0)])
        elif is_dataclass(part):
            changed[spec.name] = _take(part, responses, tokens)
    return replace(value, **changed)


@dataclass(frozen=True, slots=True)
class LossTerms:
    """What the one loss line is made of, for a micro-batch; everything but `loss` is detached and shaped [T].

    loss: scalar, - sum_t coefficients * kept * is_weight * A * log pi_theta (not yet times the world size).
    kept: M_t in [0, 1] · is_weight: the final, bounded weight · capped: bool, a bound of the weight changed this token
    · would_clip: bool, the 0.2 / 0.27 ratio mask of the paper against pi_old, whatever the algorithm uses
    · high / low: bool, masked by the trust region with A > 0 / with A < 0 · advantages: A of the token's response
    · log_staleness: log pi_theta - log pi_old · log_discrepancy: log pi_old - log mu_old.
    """

    loss: Tensor
    kept: Tensor
    is_weight: Tensor
    capped: Tensor
    would_clip: Tensor
    high: Tensor
    low: Tensor
    advantages: Tensor
    log_staleness: Tensor
    log_discrepancy: Tensor


class Statistic(Protocol):
    """A number that can be gathered in parts: over micro-batches, then over ranks."""

    def merge(self, other: Self) -> Self: ...

    def values(self, name: str) -> dict[str, float]:
        """The finished figures, keyed by metric name (a histogram gives several, a mean one)."""
        ...


Statistics = dict[str, Statistic]


def merge(left: Statistics, right: Statistics) -> Statistics:
    """Key by key; a key on one side only is kept."""
    return left | {name: left[name].merge(part) if name in left else part for name, part in right.items()}


def figures(statistics: Statistics) -> dict[str, float]:
    """The finished figures of all statistics, by metric name."""
    return {name: value for key, part in statistics.items() for name, value in part.values(key).items()}


class MissingRoutes(ValueError):
    """A route that must be replayed was not recorded."""


class Diverged(Exception):
    """A non-finite loss or gradient norm at update `version`: a result of the run, not a fault of the program."""

    def __init__(self, version: int, what: str) -> None:
        super().__init__(f"{what} is not finite at update {version}")
        self.version = version


class Degenerate(Exception):
    """The data of version `version` can teach nothing under this algorithm (all rejected, weights vanished)."""

    def __init__(self, version: int, what: str) -> None:
        super().__init__(f"{what} at update {version}")
        self.version = version


class Collapsed(Exception):
    """The evaluation fell at update `version` and did not recover: a result of the run."""

    def __init__(self, version: int, what: str) -> None:
        super().__init__(what)
        self.version = version
