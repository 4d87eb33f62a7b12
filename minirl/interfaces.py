"""What the loop calls: five protocols. A new engine, policy, task or tracker is a class with these methods."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from torch import Tensor

from minirl.config import Routing
from minirl.types import LossTerms, OldPolicy, Prompt, Rewards, RolloutBatch, Sampling, Statistics, TrainBatch


class VerifierError(Exception):
    """The grader itself failed on a response: no reward, neither right nor wrong."""


class Engine(Protocol):
    """mu: samples responses and says with which probability, through which experts, by which weights."""

    @property
    def version(self) -> int: ...

    def load_parameters(self, parameters: Iterable[tuple[str, Tensor]], version: int) -> None:
        """Takes over the full (unsharded) parameters by Hugging Face name and is `version` from then on."""

    def generate(self, prompts: Sequence[Prompt], sampling: Sampling, group_size: int) -> RolloutBatch:
        """`group_size` responses per prompt, group after group. Response j of prompt p draws from
        stream(sampling.seed, sampling.purpose, p.position, j) and from nothing else."""
        ...

    def rest(self) -> None:
        """Sampling is over until the next load: memory may be given to the trainer. Ask for nothing in between."""

    def close(self) -> None: ...


class Policy(Protocol):
    """pi: the trainer. Tensors live on its device; every method is collective over all ranks."""

    version: int

    def parameters(self) -> Iterator[tuple[str, Tensor]]:
        """Full parameters (and router buffers) by Hugging Face name, one at a time."""
        ...

    def recompute(self, rollouts: RolloutBatch, routing: Routing) -> OldPolicy:
        """Log pi_old of the responses, without gradient. r3 replays the engine's routes; live and r2 route freely."""
        ...

    def update(self, mini_batch: TrainBatch, algo: Algorithm) -> Statistics:
        """One optimizer update: version -> version + 1. Raises Diverged."""
        ...

    def save(self, folder: Path) -> None: ...

    def load(self, folder: Path) -> None: ...

    def close(self) -> None:
        """Returns when nothing is being written any more."""
        ...


class Algorithm(Protocol):
    """The six choices, as the loop and the policy see them. Pure functions: no reduction over ranks, no logging."""

    @property
    def routing(self) -> Routing: ...

    def advantage(self, rewards: Rewards, group_size: int) -> Tensor:
        """[B] advantages of all graded responses, 0 for the others."""
        ...

    def reject(self, batch: TrainBatch) -> TrainBatch:
        """Fills `accepted` and `counted` from mu, pi_old, rewards and flags of the whole rollout batch."""
        ...

    def counts(self, mini_batch: TrainBatch) -> Tensor:
        """float64 [3]: this rank's counted responses, response tokens and groups; to be summed over ranks."""
        ...

    def coefficients(self, mini_batch: TrainBatch, counts: Tensor) -> TrainBatch:
        """Fills a_it of a whole mini-batch from the counts of all ranks."""
        ...

    def loss(self, logprobs: Tensor, micro_batch: TrainBatch, on_policy: bool) -> LossTerms:
        """The one loss line on [T] log pi_theta; `on_policy` (N = 1): pi_old is sg[pi_theta] of this very pass."""
        ...


class Task(Protocol):
    """Prompts by position, exact grading, and demonstrations for the cold start; the three share no problem."""

    vocab_size: int
    eos: int
    pad: int
    num_graders: int  # responses that may be graded at once, each by a thread that waits for its verdict
    notes: tuple[str, ...]  # what is worth knowing of its problems: how many there are, what was dropped

    def prompts(self, start: int, count: int, seed: int) -> list[Prompt]:
        """Positions start .. start + count of the infinite seeded training order."""
        ...

    def eval_sets(self, count: int | None) -> dict[str, list[Prompt]]:
        """The first `count` problems (None: all) of each set of held-out problems, the same for every seed and arm."""
        ...

    def demonstrations(self, start: int, count: int, seed: int) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
        """(prompt tokens, response tokens with EOS) of cold-start problems, in the configured style."""
        ...

    def grade(self, prompt: Prompt, response: Sequence[int]) -> float:
        """The reward of response token ids (EOS included if sampled). Raises VerifierError."""
        ...

    def save_tokenizer(self, folder: Path) -> None:
        """Puts beside a model what other programs need to speak to it; nothing where characters are tokens."""

    def encode(self, text: str) -> tuple[int, ...]: ...

    def decode(self, tokens: Sequence[int]) -> str: ...


class Tracker(Protocol):
    """Where numbers go. `log` gathers figures of a version; `write` completes its row and appends it."""

    def log(self, version: int, values: Mapping[str, float]) -> None: ...

    def write(self, version: int, values: Mapping[str, float]) -> None: ...

    def samples(self, version: int, rows: Sequence[Mapping[str, object]]) -> None:
        """A few responses of this version as text: position, prompt, response, reward."""

    def histograms(self, version: int, counts: Mapping[str, tuple[Sequence[float], Sequence[float]]]) -> None:
        """Of each named quantity: the [n + 1] edges of its bins and the [n] counts in them."""

    def truncate(self, version: int) -> None:
        """On resume: rows of `version` and later are moved aside; they will be made again."""

    def close(self, ending: str) -> None: ...
