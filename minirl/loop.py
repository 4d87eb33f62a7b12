"""The training loop, in the paper's order: sync, evaluate, sample, reward, freeze pi_old, update N times."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from minirl.balance import balanced
from minirl.clock import Clock
from minirl.config import Routing
from minirl.interfaces import Algorithm, Engine, Policy, Task, Tracker
from minirl.metrics.displacement import refuse_displaced_routes
from minirl.metrics.live import live_metrics
from minirl.metrics.rollout import rollout_metrics
from minirl.metrics.statistics import histograms
from minirl.types import (
    Degenerate,
    OldPolicy,
    Prompt,
    Rewards,
    RolloutBatch,
    Sampling,
    TrainBatch,
    figures,
    split,
)
from minirl.world import World

VANISHED = 1e-3  # a mean weight below this moves nothing: objective.md, "inert or degenerate arms"


class Left(Exception):
    """The run was asked to stop, and has saved what it did; repeating it goes on from there."""

    def __init__(self, version: int) -> None:
        super().__init__(f"asked to stop: saved at update {version}; repeat the command to go on")


@dataclass(frozen=True)
class Plan:
    """The sizes and the schedule of a run, all counted in optimizer updates (`version`)."""

    num_updates: int
    num_mini_batches: int
    prompts_per_mini_batch: int
    group_size: int
    eval_every: int
    checkpoint_every: int
    live_every: int
    samples_every: int
    histograms_every: int
    extreme_ratio: float
    min_route_overlap: float
    sampling: Sampling
    checkpoints: Path

    @property
    def prompts_per_batch(self) -> int:
        return self.prompts_per_mini_batch * self.num_mini_batches

    def position(self, version: int) -> int:
        """Update u of every arm uses prompts u * M .. (u + 1) * M, whatever its N."""
        return version * self.prompts_per_mini_batch

    def evaluates_at(self, version: int) -> bool:
        return version % self.eval_every == 0

    def falls_due(self, start: int, every: int) -> bool:
        """Whether a multiple of `every` is among the versions of the step that begins at `start`: what is looked at
        between rollout batches is looked at as often for an N that does not divide it."""
        return -start % every < self.num_mini_batches

    def saves_at(self, version: int) -> bool:
        return version % self.checkpoint_every == 0 or version == self.num_updates


def train(
    *,
    plan: Plan,
    algo: Algorithm,
    policy: Policy,
    engine: Engine,
    task: Task,
    grade: Callable[[Sequence[Prompt], RolloutBatch], Rewards],
    evaluate: Callable[[Policy], Mapping[str, float]],
    verify: Callable[[RolloutBatch, OldPolicy], None],
    keep: Callable[[TrainBatch], None],
    judge: Callable[[], None],
    leave: Callable[[], bool],
    tracker: Tracker,
    world: World,
    clock: Clock,
) -> None:
    """From policy.version to plan.num_updates. Raises Diverged, Degenerate and (by `judge`, which looks at the rows
    after every step) Collapsed: results, recorded by the caller; Left after the step in which `leave` says, on every
    rank, that somebody has asked for it: what was done is saved."""
    begun = policy.version
    while policy.version < plan.num_updates:
        start = policy.version
        with clock("sync"):  # mu_old <- theta: first, so that no rollout sees a stale engine
            engine.load_parameters(policy.parameters(), start)
        if plan.evaluates_at(start):
            with clock("eval"):
                tracker.log(start, evaluate(policy))
        with clock("rollout"):  # x ~ D by position, then a group of y ~ mu_old(. | x)
            prompts = task.prompts(plan.position(start), plan.prompts_per_batch, plan.sampling.seed)
            prompts = world.share(prompts, plan.num_mini_batches)
            rollouts = engine.generate(prompts, plan.sampling, plan.group_size)
            engine.rest()
            prompts, rollouts = balanced(prompts, rollouts, plan.num_mini_batches, world)  # over the ranks, by length
        with clock("reward"):  # R(x, y), then A(x, y)
            rewards = grade(prompts, rollouts)
            advantages = algo.advantage(rewards, plan.group_size)
        with clock("old"):  # pi_old, frozen before any update
            old = policy.recompute(rollouts, algo.routing)
        batch = algo.reject(_unrejected(rollouts, rewards, advantages, old))
        keep(batch)
        drawing = plan.falls_due(start, plan.histograms_every)
        if plan.falls_due(start, plan.live_every) or start == begun:
            with clock("live"):  # what the same tokens look like under free routing
                live = old if algo.routing != Routing.r3 else policy.recompute(rollouts, Routing.live)
            if start == begun:
                refuse_displaced_routes(rollouts, live, floor=plan.min_route_overlap, world=world)
                verify(rollouts, old)
            if plan.falls_due(start, plan.live_every):
                free = world.pool(live_metrics(batch, live, extreme_ratio=plan.extreme_ratio))
                tracker.log(start, figures(free))
                if drawing:
                    tracker.histograms(start, histograms(free))
        pooled = world.pool(rollout_metrics(batch, extreme_ratio=plan.extreme_ratio))
        tracker.log(start, figures(pooled))
        if drawing:
            tracker.histograms(start, histograms(pooled))
        if plan.falls_due(start, plan.samples_every):
            tracker.samples(start, _samples(task, prompts, batch))
        if int(world.sum(batch.accepted.sum())) == 0:
            raise Degenerate(start, "every response was rejected")

        for mini_batch in split(batch, plan.num_mini_batches):  # whole groups in order; each staler than the last
            version = policy.version
            with clock("update"):
                statistics = policy.update(mini_batch, algo)  # version -> version + 1
            pooled = world.pool(statistics)
            updated = figures(pooled)
            if drawing:
                tracker.histograms(version, histograms(pooled))
            tracker.write(version, updated | clock.seconds())
            weight = updated.get("is_weight/mean", 0.0)  # absent where no response of the mini-batch is valid
            if weight < VANISHED:
                raise Degenerate(version, f"the mean importance weight is {weight:.1e}")

        judge()
        leaving = leave() and policy.version < plan.num_updates
        if leaving or plan.saves_at(policy.version):
            with clock("save"):
                policy.save(plan.checkpoints)
        if leaving:
            raise Left(policy.version)
    with clock("eval"):
        tracker.log(policy.version, evaluate(policy))
    tracker.write(policy.version, clock.seconds())


def _unrejected(rollouts: RolloutBatch, rewards: Rewards, advantages: torch.Tensor, old: OldPolicy) -> TrainBatch:
    mask = rollouts.response_mask
    return TrainBatch(rollouts, rewards, advantages, old, accepted=mask, counted=mask, coefficients=None)


def _samples(task: Task, prompts: Sequence[Prompt], batch: TrainBatch) -> list[dict[str, object]]:
    """The first response of the first few prompts, as text."""
    rollouts, rows = batch.rollouts, []
    for group, prompt in enumerate(prompts[:4]):
        index = group * rollouts.group_size
        begin, end = int(rollouts.cu_seqlens[index]), int(rollouts.cu_seqlens[index + 1])
        response = rollouts.tokens[begin:end][rollouts.response_mask[begin:end]].tolist()
        reward = float(batch.rewards.values[index])
        text = {"prompt": task.decode(prompt.tokens), "response": task.decode(response)}
        rows.append({"position": prompt.position, **text, "reward": reward})
    return rows
