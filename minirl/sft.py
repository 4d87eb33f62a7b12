"""Supervised fine-tuning as a case of the one loss line: A = 1, no weight, no trust region, token_mean.

loss = - (1 / sum_i T_i) sum_i sum_t log pi_theta(y_t)
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, chain

import torch
from omegaconf import OmegaConf
from transformers import PreTrainedModel

from minirl.algo.algorithm import build as build_algorithm
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
from minirl.models.load import build as build_model
from minirl.policy.fsdp import FsdpPolicy
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
class Course:
    """What learns, from whom, and who examines it."""

    task: Task
    policy: FsdpPolicy
    examiner: TorchEngine
    sampling: Sampling
    num_problems: int
    max_error_rate: float
    world: World

    @classmethod
    def of(cls, cfg: Config, task: Task, world: World) -> Course:
        def model() -> PreTrainedModel:
            return build_model(cfg.model, vocab_size=task.vocab_size, checkpoint=None)

        return cls(
            task=task,
            policy=FsdpPolicy(
                model(),
                train=sft_training(cfg),
                temperature=1.0,
                num_mini_batches=1,
                world=world,
            ),
            examiner=TorchEngine(
                model(),
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

    def batch(self, step: int, size: int) -> TrainBatch:
        """This rank's share of the demonstrations of one step: each is seen once."""
        demonstrations = self.task.demonstrations(step * size, size, self.sampling.seed)
        return demonstration_batch(self.world.share(demonstrations, 1), step * size, self.policy.version)

    def loss(self, batch: TrainBatch) -> float:
        """Mean negative log likelihood per response token, nats, over all ranks."""
        logprobs = self.policy.recompute(batch.rollouts, Routing.live).logprobs
        total = self.world.sum(torch.stack([-logprobs.double().sum(), batch.counted.double().sum()]))
        return float(total[0] / total[1])

    def accuracy(self) -> float:
        prompts = self.task.prompts(PROBE_START, self.num_problems, self.sampling.seed)
        self.examiner.load_parameters(self.policy.parameters(), self.policy.version)
        outcomes = sampled_outcomes(self.task, self.examiner, prompts, self.sampling, num_samples=1, world=self.world)
        refuse_broken_verifier(outcomes, max_error_rate=self.max_error_rate)
        return figures(outcomes)["eval/avg"]


@dataclass(frozen=True)
class Examination:
    """How far SFT had come after `step` updates. accuracy: None before coldstart.min_steps, where it is not asked."""

    step: int
    loss: float
    accuracy: float | None
    cpu_seconds: float

    def __str__(self) -> str:
        accuracy = "" if self.accuracy is None else f", accuracy {self.accuracy:.2f}"
        return f"cold start, step {self.step}: loss {self.loss:.3f}{accuracy} ({self.cpu_seconds:.0f} CPU seconds)"


def learn(cfg: ColdstartConfig, course: Course, report: Callable[[str], None]) -> list[Examination]:
    """SFT on fresh demonstrations, examined every `eval_every` steps, until `target_accuracy` is reached after at
    least `min_steps`. Raises TargetMissed if `max_steps` do not suffice."""
    algo, begin, course_so_far = log_likelihood(), time.process_time(), list[Examination]()
    batch = course.batch(0, cfg.batch_size)
    for step in range(1, cfg.max_steps + 1):
        course.policy.update(batch, algo)
        batch = course.batch(step, cfg.batch_size)
        if step % cfg.eval_every and step != cfg.max_steps:
            continue
        accuracy = course.accuracy() if step >= cfg.min_steps else None
        course_so_far.append(Examination(step, course.loss(batch), accuracy, time.process_time() - begin))
        report(str(course_so_far[-1]))
        if accuracy is not None and accuracy >= cfg.target_accuracy:
            return course_so_far
    reached = max((each.accuracy for each in course_so_far if each.accuracy is not None), default=0.0)
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
