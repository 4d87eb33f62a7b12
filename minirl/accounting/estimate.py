"""All that a run will take, from its configuration alone."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from minirl.accounting.architecture import Architecture, architecture, settings_of
from minirl.accounting.hours import Seconds, seconds
from minirl.accounting.machine import Machine
from minirl.accounting.measured import Measured, measured
from minirl.accounting.memory import MASTER_BYTES, Memory, memory
from minirl.accounting.work import Work, work
from minirl.config import Config

SAVED_COPIES = 3  # a checkpoint holds weights and both moments, fp32


@dataclass(frozen=True)
class Estimate:
    """Of one run on `machine`. memory: of one device · checkpoint_bytes: of one checkpoint, num_checkpoints of which
    are on disk at once · seconds: of one update; of the model alone where `measured` is None."""

    shape: Architecture
    work: Work
    machine: Machine
    memory: Memory
    checkpoint_bytes: int
    num_checkpoints: int
    seconds: Seconds
    measured: Measured | None
    num_updates: int

    @property
    def disk(self) -> int:
        """The newest, the last good one beside them, and a new one that is complete before an old one goes."""
        return self.checkpoint_bytes * (self.num_checkpoints + 2)

    @property
    def host(self) -> int:
        """Bytes in the memory of a node: rollouts with their routes; where there is no GPU, everything."""
        ranks = self.machine.devices_per_node
        rollouts = self.work.host_bytes * ranks // self.machine.num_ranks
        return rollouts + (0 if self.machine.on_gpu else ranks * self.memory.peak)

    @property
    def device_hours(self) -> float:
        """Of all devices together."""
        return self.seconds.total * self.num_updates * self.machine.num_ranks / 3600


def estimate(config: Config, start: Path | None, machine: Machine) -> Estimate:
    """start: the folder of the cold start, where it is made already."""
    shape = architecture(settings_of(config, start))
    return sized(config, shape, machine, measured(config, shape, machine))


def sized(config: Config, shape: Architecture, machine: Machine, found: Measured | None) -> Estimate:
    """found: what a recorded run says of the seconds and of the length of responses."""
    expected = work(config, shape, expected=None if found is None else found.length)
    modelled = seconds(config, shape, expected, machine)
    return Estimate(
        shape=shape,
        work=expected,
        machine=machine,
        memory=memory(config, shape, expected, num_ranks=machine.num_ranks),
        checkpoint_bytes=shape.parameters * MASTER_BYTES * SAVED_COPIES,
        num_checkpoints=config.train.num_checkpoints,
        seconds=modelled if found is None else modelled.scaled(found.factor),
        measured=found,
        num_updates=config.num_updates,
    )
