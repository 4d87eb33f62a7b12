"""Supervised fine-tuning as a case of the one loss line: A = 1, no weight, no trust region, token_mean.

loss = - (1 / sum_i T_i) sum_i sum_t log pi_theta(y_t)
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from itertools import accumulate, chain
from pathlib import Path

import torch
from omegaconf import OmegaConf

from minirl.algo.algorithm import build as build_algorithm
from minirl.clock import duration
from minirl.config import (
    AlgoConfig,
    ColdstartConfig,
    Config,
    GradientClip,
    Numerics,
    OptimConfig,
    Routing,
    TargetMissed,
    TrainConfig,
)
from minirl.engine.torch_engine import TorchEngine
from minirl.evaluate import figures, refuse_broken_verifier, sampled_outcomes
from minirl.interfaces import Algorithm, Task
from minirl.models.load import outline
from minirl.policy.build import sharded
from minirl.policy.checkpoint import newest
from minirl.policy.fsdp import FsdpPolicy
from minirl.tracking.jsonlines import JsonLines
from minirl.types import OldPolicy, Rewards, RolloutBatch, Sampling, TrainBatch
from minirl.world import World

# positions of the training order that no run reaches: accuracy is measured there
PROBE_START = 2**40
# demonstrations looked at to learn how long they get
NUM_MEASURED = 64

Demonstration = tuple[tuple[int, ...], tuple[int, ...]]

NO_FACTOR = {"level": "none", "low": None, "high": None, "outside": "clamp"}
CHOICES = {
    "name": "sft",
    "advantage": "group_mean",
    "is_weight": {
        "staleness": NO_FACTOR,
        "discrepancy": NO_FACTOR,
        "product": {"low": None, "high": None, "outside": "clamp"},
    },
    "trust_region": {
        "kind": "none",
        "anchor": "old",
        "level": "token",
        **dict.fromkeys(("low", "high", "delta", "tau_positive", "tau_negative", "dual")),
    },
    "reject": {"level": "none", "low": None, "high": None, "counted": True, "groups": "all", "truncated": "keep"},
    "aggregation": {"kind": "token_mean", "length": None, "scale": 1.0},
    "routing": "live",
    "routing_missing": "fail",
}


def log_likelihood() -> Algorithm:
    """The algorithm whose update, on a demonstration batch, is a step of maximum likelihood."""
    cfg = OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(AlgoConfig), CHOICES))
    assert isinstance(cfg, AlgoConfig)
    return build_algorithm(cfg)


def demonstration_batch(demonstrations: Sequence[Demonstration], start: int, version: int) -> TrainBatch:
    """(prompt, response) pairs, at positions start, start + 1, ..., as a batch with A = 1: groups of one response."""
    rollouts = _as_rollouts(demonstrations, start, version)
    ones, nothing = torch.ones(len(rollouts)), torch.zeros(rollouts.tokens.shape)
    return TrainBatch(
        rollouts=rollouts,
        rewards=Rewards(ones, ones.bool()),
        advantages=ones,
        # the ratio to pi_old is taken at no level: these are placeholders that nothing weighs with
        old=OldPolicy(nothing, nothing, None),
        accepted=rollouts.response_mask,
        counted=rollouts.response_mask,
        coefficients=None,
    )


def _as_rollouts(demonstrations: Sequence[Demonstration], start: int, version: int) -> RolloutBatch:
    sequences = [prompt + response for prompt, response in demonstrations]
    mask = chain.from_iterable([False] * len(prompt) + [True] * len(response) for prompt, response in demonstrations)
    tokens = torch.tensor(list(chain.from_iterable(sequences)))
    return RolloutBatch(
        tokens=tokens,
        cu_seqlens=torch.tensor([0, *accumulate(map(len, sequences))]),
        response_mask=torch.tensor(list(mask)),
        rollout_logprobs=torch.zeros(tokens.shape),
        truncated=torch.zeros(len(sequences), dtype=torch.bool),
        valid=torch.ones(len(sequences), dtype=torch.bool),
        positions=torch.arange(start, start + len(sequences)),
        routes=None,
        group_size=1,
        version=version,
    )


def longest_demonstration(task: Task, seed: int) -> int:
    """Tokens of the longest response, EOS included, among the first demonstrations."""
    return max(len(response) for _, response in task.demonstrations(0, NUM_MEASURED, seed))


def probe_sampling(task: Task, seed: int) -> Sampling:
    """How accuracy is measured: with as many tokens as demonstrations take, whatever a run may allow later."""
    return Sampling(1.0, longest_demonstration(task, seed), task.eos, seed, "coldstart")


@dataclass(frozen=True)
class Probe:
    """How well the learner solves training problems that no run reaches, sampled at temperature 1."""

    task: Task
    engine: TorchEngine
    sampling: Sampling
    num_problems: int
    max_error_rate: float
    world: World

    @classmethod
    def of(cls, cfg: Config, task: Task, world: World) -> Probe:
        return cls(
            task=task,
            engine=TorchEngine(
                outline(cfg.model, vocab_size=task.vocab_size, checkpoint=None)[0],
                numerics=Numerics.fp32,
                max_sequences=cfg.engine.max_sequences,
                pad=task.pad,
                device=world.device,
            ),
            sampling=probe_sampling(task, cfg.coldstart.seed),
            num_problems=cfg.coldstart.eval_problems,
            max_error_rate=cfg.task.max_verifier_error_rate,
            world=world,
        )

    def accuracy(self, policy: FsdpPolicy) -> float:
        prompts = self.task.prompts(PROBE_START, self.num_problems, self.sampling.seed)
        self.engine.load_parameters(policy.parameters(), policy.version)
        outcomes = sampled_outcomes(self.task, self.engine, prompts, self.sampling, num_samples=1, world=self.world)
        refuse_broken_verifier(outcomes, max_error_rate=self.max_error_rate)
        return figures(outcomes)["eval/avg"]


@dataclass(frozen=True)
class Course:
    """What learns, from whom, and who examines it: nobody where there is no accuracy to reach."""

    task: Task
    policy: FsdpPolicy
    probe: Probe | None
    seed: int
    world: World

    @classmethod
    def of(cls, cfg: Config, task: Task, world: World) -> Course:
        return cls(
            task=task,
            policy=sharded(
                cfg.model,
                vocab_size=task.vocab_size,
                checkpoint=None,
                train=sft_training(cfg),
                temperature=1.0,
                num_mini_batches=1,
                world=world,
            ),
            probe=None if cfg.coldstart.target_accuracy is None else Probe.of(cfg, task, world),
            seed=cfg.coldstart.seed,
            world=world,
        )

    def batch(self, step: int, size: int) -> TrainBatch:
        """This rank's share of the demonstrations of one step: each is seen once (of traces: once per epoch)."""
        demonstrations = self.task.demonstrations(step * size, size, self.seed)
        return demonstration_batch(self.world.share(demonstrations, 1), step * size, self.policy.version)

    def loss(self, batch: TrainBatch) -> float:
        """Mean negative log likelihood per response token, nats, over all ranks."""
        logprobs = self.policy.recompute(batch.rollouts, Routing.live).logprobs
        total = self.world.sum(torch.stack([-logprobs.double().sum(), batch.counted.double().sum()]))
        return float(total[0] / total[1])


@dataclass(frozen=True)
class Examination:
    """How far SFT had come after `step` updates: the loss on the demonstrations that come next. accuracy: None before
    coldstart.min_steps, and where none is asked for."""

    step: int
    loss: float
    accuracy: float | None
    cpu_seconds: float

    def told(self, left: str) -> str:
        accuracy = "" if self.accuracy is None else f", accuracy {self.accuracy:.2f}"
        spent = f"{self.cpu_seconds:.0f} CPU seconds, {left} left"
        return f"cold start, step {self.step}: loss {self.loss:.3f}{accuracy} ({spent})"


class Progress:
    """What a cold start has reached, kept in its folder: checkpoints, from which a killed one goes on, and a row of
    metrics.jsonl per examination. All ranks read, rank 0 writes."""

    def __init__(self, folder: Path, course: Course) -> None:
        self.course, self.checkpoints = course, folder / "checkpoints"
        latest = newest(self.checkpoints)
        if latest is not None:
            course.policy.load(latest)
        path = folder / "metrics.jsonl"
        self.rows = JsonLines(path) if course.world.rank == 0 else None
        if self.rows is not None:
            self.rows.cut(course.policy.version + 1)
        course.world.barrier()
        found = map(json.loads, path.read_text(encoding="ascii").splitlines())
        names = [spec.name for spec in fields(Examination) if spec.name != "step"]
        self.examinations = [Examination(row["version"], **{name: row[name] for name in names}) for row in found]
        self.spent_before = self.examinations[-1].cpu_seconds if self.examinations else 0.0
        self.begun, self.first, self.cpu = time.monotonic(), course.policy.version, time.process_time()

    def add(self, loss: float, accuracy: float | None, updated: Mapping[str, float]) -> Examination:
        step, spent = self.course.policy.version, self.spent_before + time.process_time() - self.cpu
        self.examinations.append(Examination(step, loss, accuracy, spent))
        if self.rows is not None:
            row = asdict(self.examinations[-1])
            del row["step"]
            self.rows.append(step, row | {name: value for name, value in updated.items() if name.startswith("optim/")})
        return self.examinations[-1]

    def seconds_left(self, max_steps: int) -> float:
        """Until max_steps, at the pace so far."""
        done = self.course.policy.version
        return (time.monotonic() - self.begun) / (done - self.first) * (max_steps - done)

    def close(self) -> None:
        if self.rows is not None:
            self.rows.close()


def learn(
    cfg: ColdstartConfig, course: Course, progress: Progress, *, save_every: int, report: Callable[[str], None]
) -> list[Examination]:
    """SFT on fresh demonstrations, examined every `eval_every` steps, until `target_accuracy` is reached after at
    least `min_steps`, or `max_steps` are over where none is asked for. A repeated call goes on from the last
    checkpoint. Raises TargetMissed if `max_steps` do not suffice."""
    algo, policy = log_likelihood(), course.policy
    batch = course.batch(policy.version, cfg.batch_size)
    while policy.version < cfg.max_steps:
        updated = course.world.merge(policy.update(batch, algo))
        step, batch = policy.version, course.batch(policy.version, cfg.batch_size)
        if step % cfg.eval_every == 0 or step == cfg.max_steps:
            accuracy = course.probe.accuracy(policy) if course.probe is not None and step >= cfg.min_steps else None
            seen = progress.add(course.loss(batch), accuracy, updated)
            bound = "" if cfg.target_accuracy is None else "at most "
            report(seen.told(bound + duration(progress.seconds_left(cfg.max_steps))))
            if cfg.target_accuracy is not None and accuracy is not None and accuracy >= cfg.target_accuracy:
                return progress.examinations
        if step % save_every == 0:
            policy.save(progress.checkpoints)
    if cfg.target_accuracy is None:
        return progress.examinations
    reached = max((each.accuracy for each in progress.examinations if each.accuracy is not None), default=0.0)
    raise TargetMissed(
        f"the cold start reached accuracy {reached:.3f} within coldstart.max_steps={cfg.max_steps}, not "
        f"coldstart.target_accuracy={cfg.target_accuracy}: raise max_steps or lower the target"
    )


def sft_training(cfg: Config) -> TrainConfig:
    """The trainer's infrastructure with the cold start's own optimizer: no choice of an arm leaks into its start."""
    own = cfg.coldstart
    optim = OptimConfig(
        lr=own.lr,
        beta1=own.beta1,
        beta2=own.beta2,
        eps=own.eps,
        weight_decay=own.weight_decay,
        warmup_updates=own.warmup_steps,
        clip=GradientClip.global_norm,
        max_norm=own.max_norm,
    )
    return replace(cfg.train, optim=optim, freeze_router=False, compute_dtype="float32")
