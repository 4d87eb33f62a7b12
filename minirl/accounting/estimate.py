"""All that a run will take, from its configuration alone."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from minirl.accounting.architecture import Architecture, architecture, settings_of
from minirl.accounting.evaluated import num_evaluated
from minirl.accounting.hours import Seconds, seconds
from minirl.accounting.machine import Machine
from minirl.accounting.measured import Measured, measured
from minirl.accounting.memory import MASTER_BYTES, Memory, memory
from minirl.accounting.work import Work, work
from minirl.config import Config
from minirl.validate import own_gpus

SAVED_COPIES = 3  # a checkpoint holds weights and both moments, fp32


@dataclass(frozen=True)
class Estimate:
    """Of one run on `machine`. memory: of one device · checkpoint_bytes: of one checkpoint, num_checkpoints of which
    are on disk at once · seconds: of one update; of the model alone where `measured` is None · evaluated: problems of
    one evaluation, None where that is not known · engine_devices: GPUs that the engine has to itself, beside those of
    `machine` · host_copies: of weights and moments in the memory of a node, beside what a device holds: one where they
    lie while the engine samples (train.offload), kept for the next time, and one from which a checkpoint is written
    while training goes on (train.async_checkpoints)."""

    shape: Architecture
    work: Work
    machine: Machine
    memory: Memory
    checkpoint_bytes: int
    num_checkpoints: int
    seconds: Seconds
    measured: Measured | None
    num_updates: int
    evaluated: int | None
    engine_devices: int
    host_copies: int

    @property
    def disk(self) -> int:
        """The newest, the last good one beside them, and a new one that is complete before an old one goes."""
        return self.checkpoint_bytes * (self.num_checkpoints + 2)

    @property
    def host(self) -> int:
        """Bytes in the memory of a node: rollouts with their routes, the trainer's copies; where there is no GPU,
        everything."""
        ranks = self.machine.devices_per_node
        rollouts = self.work.host_bytes * ranks // self.machine.num_ranks
        devices = 0 if self.machine.on_gpu else ranks * self.memory.peak
        return rollouts + devices + self.host_copies * self.copy_bytes

    @property
    def copy_bytes(self) -> int:
        """Weights and moments of a node's ranks."""
        return self.machine.devices_per_node * (self.memory.parameters + self.memory.optimizer)

    @property
    def device_hours(self) -> float:
        """Of all devices together."""
        return self.seconds.total * self.num_updates * (self.machine.num_ranks + self.engine_devices) / 3600


def estimate(config: Config, start: Path | None, machine: Machine) -> Estimate:
    """start: the folder of the cold start, where it is made already."""
    shape, planned = architecture(settings_of(config, start)), config.machine.gpus_per_node is not None
    trainer = machine.without(own_gpus(config.engine)) if planned else machine
    return sized(config, shape, trainer, measured(config, shape, trainer))


def sized(config: Config, shape: Architecture, machine: Machine, found: Measured | None) -> Estimate:
    """found: what a recorded run says of the seconds and of the length of responses."""
    expected = work(config, shape, expected=None if found is None else found.length)
    evaluated = num_evaluated(config)
    modelled = seconds(config, shape, expected, machine, evaluated or 0)
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
        evaluated=evaluated,
        engine_devices=own_gpus(config.engine),
        host_copies=int(config.train.offload) + int(config.train.async_checkpoints),
    )
