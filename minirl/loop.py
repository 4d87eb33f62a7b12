"""The training loop, in the paper's order: sync, evaluate, sample, reward, freeze pi_old, update N times."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
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
    Statistics,
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


@dataclass(frozen=True)
class Loop:
    """One run's training, from its parts.

    grade: rewards of the responses · evaluate: figures of a policy · verify: engine against trainer, before the first
    update of a process · keep: what is done with every rollout batch · judge: looks at the rows after every step, and
    raises Collapsed · leave: whether, on every rank, somebody has asked the run to stop.
    """

    plan: Plan
    algo: Algorithm
    policy: Policy
    engine: Engine
    task: Task
    grade: Callable[[Sequence[Prompt], RolloutBatch], Rewards]
    evaluate: Callable[[Policy], Mapping[str, float]]
    verify: Callable[[RolloutBatch, OldPolicy], None]
    keep: Callable[[TrainBatch], None]
    judge: Callable[[], None]
    leave: Callable[[], bool]
    tracker: Tracker
    world: World
    clock: Clock

    def train(self) -> None:
        """From policy.version to plan.num_updates. Raises Diverged, Degenerate and Collapsed: results, recorded by the
        caller; Left after the step in which somebody has asked for it: what was done is saved."""
        begun = self.policy.version
        while self.policy.version < self.plan.num_updates:
            start = self.policy.version
            with self.clock("sync"):  # mu_old <- theta: first, so that no rollout sees a stale engine
                self.engine.load_parameters(self.policy.parameters(), start)
            if self.plan.evaluates_at(start):
                self.measure()
            batch = self.rollout(start)
            self.compare(start, batch, first=start == begun)
            self.describe(start, batch)
            for mini_batch in split(batch, self.plan.num_mini_batches):  # whole groups in order; each staler
                self.update(mini_batch, drawing=self.plan.falls_due(start, self.plan.histograms_every))
            self.judge()
            self.save()
        self.measure()
        self.tracker.write(self.policy.version, self.clock.seconds())

    def measure(self) -> None:
        with self.clock("eval"):
            self.tracker.log(self.policy.version, self.evaluate(self.policy))

    def rollout(self, start: int) -> TrainBatch:
        """x ~ D by position, a group of y ~ mu_old(. | x), R(x, y), A(x, y), and pi_old, frozen before any update."""
        with self.clock("rollout"):
            prompts = self.task.prompts(self.plan.position(start), self.plan.prompts_per_batch, self.plan.sampling.seed)
            prompts = self.world.share(prompts, self.plan.num_mini_batches)
            ask = partial(self.engine.generate, prompts, self.plan.sampling, self.plan.group_size)
            rollouts = self.world.together(ask)
            self.engine.rest()
            prompts, rollouts = balanced(prompts, rollouts, self.plan.num_mini_batches, self.world)  # by length
        with self.clock("reward"):
            rewards = self.grade(prompts, rollouts)
            advantages = self.algo.advantage(rewards, self.plan.group_size)
        with self.clock("old"):
            old = self.policy.recompute(rollouts, self.algo.routing)
        unrejected = _unrejected(rollouts, rewards, advantages, old)
        batch = self.world.together(lambda: self.algo.reject(unrejected))
        self.keep(batch)
        if self.plan.falls_due(start, self.plan.samples_every):
            self.tracker.samples(start, _samples(self.task, prompts, batch))
        return batch

    def compare(self, start: int, batch: TrainBatch, *, first: bool) -> None:
        """Engine and trainer on the same tokens, both routed freely; before the first update of a process they must
        agree."""
        due = self.plan.falls_due(start, self.plan.live_every)
        if not (due or first):
            return
        rollouts, old = batch.rollouts, batch.old
        with self.clock("live"):
            live = old if self.algo.routing != Routing.r3 else self.policy.recompute(rollouts, Routing.live)
        if first:
            refuse_displaced_routes(rollouts, live, floor=self.plan.min_route_overlap, world=self.world)
            self.verify(rollouts, old)
        if due:
            self.log(start, live_metrics(batch, live, extreme_ratio=self.plan.extreme_ratio))

    def describe(self, start: int, batch: TrainBatch) -> None:
        """The figures of the rollouts. Degenerate where nothing is left to learn from."""
        self.log(start, rollout_metrics(batch, extreme_ratio=self.plan.extreme_ratio))
        if int(self.world.sum(batch.accepted.sum())) == 0:
            raise Degenerate(start, "every response was rejected")

    def log(self, version: int, statistics: Statistics) -> None:
        """Over all ranks; its histograms where they fall due."""
        pooled = self.world.pool(statistics)
        self.tracker.log(version, figures(pooled))
        if self.plan.falls_due(version, self.plan.histograms_every):
            self.tracker.histograms(version, histograms(pooled))

    def update(self, mini_batch: TrainBatch, *, drawing: bool) -> None:
        """version -> version + 1, and the row of the version it started from. Degenerate where the weights vanished."""
        version = self.policy.version
        with self.clock("update"):
            statistics = self.policy.update(mini_batch, self.algo)
        pooled = self.world.pool(statistics)
        if drawing:
            self.tracker.histograms(version, histograms(pooled))
        updated = figures(pooled)
        self.tracker.write(version, updated | self.clock.seconds())
        weight = updated.get("is_weight/mean", 0.0)  # absent where no response of the mini-batch is valid
        if weight < VANISHED:
            raise Degenerate(version, f"the mean importance weight is {weight:.1e}")

    def save(self) -> None:
        """A checkpoint where one falls due, or where the run is to leave."""
        leaving = self.leave() and self.policy.version < self.plan.num_updates
        if leaving or self.plan.saves_at(self.policy.version):
            with self.clock("save"):
                self.policy.save(self.plan.checkpoints)
        if leaving:
            raise Left(self.policy.version)


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
