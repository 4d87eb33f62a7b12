"""The moment at which a recorded batch is looked at again: the weights that sampled it, then as many updates of the
run's own algorithm as its last mini-batch has seen.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from minirl.algo.algorithm import PolicyGradient
from minirl.algo.algorithm import build as build_algorithm
from minirl.batches import Recorded, Sampled
from minirl.compose import read
from minirl.config import Config, ConfigError, Routing
from minirl.examine import Restored, restored
from minirl.policy.checkpoint import numbered
from minirl.record import RunRecord
from minirl.rescore.probe import prepared, replaced_old
from minirl.types import TrainBatch, split
from minirl.world import World


@dataclass(frozen=True)
class Situation:
    """start: the policy as it is when gradients are taken · sampled: the batch, by the routing of pi_old · num_updates:
    that the policy has had since it sampled."""

    config: Config
    start: Restored
    sampled: Mapping[Routing, Sampled]
    num_updates: int

    def mini_batch(self, algo: PolicyGradient) -> TrainBatch:
        """The last mini-batch, with the algorithm's advantages and rejection of the whole batch."""
        batch = prepared(algo, self.sampled[algo.routing])
        return split(batch, self.config.num_mini_batches)[-1]


def run_of(batch: Path) -> Path:
    """RUN of RUN/rollouts/VERSION. Raises ConfigError."""
    run = batch.resolve().parents[1]
    if not (run / "run.json").is_file():
        raise ConfigError(f"{batch}: not in the folder of its run, whose configuration and weights are needed")
    return run


def weights_of(run: Path, version: int) -> Path:
    """The checkpoint that sampled: one of the run, or its cold start. Raises ConfigError."""
    saved = numbered(run / "checkpoints")
    if version in saved:
        return saved[version]
    if version == 0:
        return Path(RunRecord(run).read()["coldstart"]["folder"])
    raise ConfigError(
        f"{run}: the checkpoint of update {version}, which sampled this batch, is gone (there: "
        f"{', '.join(map(str, sorted(saved))) or 'none'}): rescore the batch of one of those, or of update 0; a run "
        f"with train.checkpoint_every={version} or a larger train.num_checkpoints keeps it"
    )


@contextmanager
def situation(recorded: Recorded, run: Path, algorithms: Mapping[str, PolicyGradient]) -> Iterator[Situation]:
    """Of a recorded batch, ready for all of the algorithms."""
    config = read(run / "config.yaml")
    world = World.join(config.run.device)
    try:
        start = restored(config, weights_of(run, recorded.version), world)
        own = build_algorithm(config.algo)
        routings = {own.routing, *(algo.routing for algo in algorithms.values())}
        sampled = {routing: by_routing(recorded.sampled, start, routing, own.routing) for routing in routings}
        batches = split(prepared(own, sampled[own.routing]), config.num_mini_batches)
        for mini_batch in batches[:-1]:
            start.policy.update(mini_batch, own)
        yield Situation(config, start, sampled, len(batches) - 1)
    finally:
        world.leave()


def by_routing(sampled: Sampled, start: Restored, routing: Routing, recorded: Routing) -> Sampled:
    """pi_old as that routing has it; R2 samples as live does and differs only in the updates."""
    replays = Routing.r3
    if (routing is replays) == (recorded is replays):
        return sampled
    return replaced_old(sampled, start.policy, routing)
