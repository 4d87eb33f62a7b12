"""`minirl eval`: the figures of a checkpoint, by the evaluator that runs use."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import PreTrainedModel

from minirl.config import Config, ConfigError
from minirl.evaluate import Evaluator
from minirl.interfaces import Task
from minirl.policy.build import build as build_policy
from minirl.policy.checkpoint import newest
from minirl.policy.fsdp import FsdpPolicy
from minirl.record import RunRecord
from minirl.tasks.registry import build as build_task
from minirl.world import World


def is_model(folder: Path) -> bool:
    """Whether the folder holds a model in Hugging Face format, not a run's checkpoint."""
    return (folder / "config.json").is_file()


def run_of(checkpoint: Path) -> Path:
    """The run's folder of RUN, RUN/checkpoints or RUN/checkpoints/VERSION."""
    found = _run(checkpoint)
    if found is None:
        raise ConfigError(f"{checkpoint}: neither a model in Hugging Face format nor a run's folder or checkpoint")
    return found


def _run(checkpoint: Path) -> Path | None:
    folders = (checkpoint, *checkpoint.resolve().parents[:2])
    return next((folder for folder in folders if (folder / "run.json").is_file()), None)


def recorded_start(checkpoint: Path) -> Path | None:
    """The folder that the checkpoint's run began from: its config (rotary base, how experts are mixed) is that of the
    trained model. None if it is gone, or the checkpoint has left its run."""
    run = _run(checkpoint)
    recorded = RunRecord(run).read().get("coldstart") if run is not None else None
    folder = Path(recorded["folder"]) if recorded else None
    return folder if folder is not None and is_model(folder) else None


@dataclass(frozen=True)
class Restored:
    """A policy with the weights of a checkpoint, its task, and how to make another instance of its model."""

    task: Task
    policy: FsdpPolicy
    model: Callable[[], PreTrainedModel]


def restored(config: Config, checkpoint: Path | None, world: World) -> Restored:
    """checkpoint: a run or one of its checkpoints, a Hugging Face folder, or None: the weights `model` begins with."""
    torch.set_num_threads(config.run.num_threads)
    task = build_task(config.task, config.coldstart)
    of_run = checkpoint is not None and not is_model(checkpoint)
    folder = recorded_start(checkpoint) if checkpoint is not None and of_run else checkpoint
    trainee = build_policy(config, vocab_size=task.vocab_size, checkpoint=folder, world=world)
    if checkpoint is not None and of_run:
        trainee.policy.load(_saved(checkpoint))
    return Restored(task, trainee.policy, trainee.model)


def examine(config: Config, checkpoint: Path) -> dict[str, float]:
    """eval/* of the checkpoint under `config.eval`, and its version."""
    world = World.join(config.run.device)
    try:
        found = restored(config, checkpoint, world)
        evaluator = Evaluator(config, found.task, found.model(), world)
        return {"version": found.policy.version, **evaluator(found.policy)}
    finally:
        world.leave()


def _saved(checkpoint: Path) -> Path:
    """The checkpoint itself, or the newest one of a run."""
    if checkpoint.name.isdecimal():
        return checkpoint
    found = newest(checkpoint if checkpoint.name == "checkpoints" else checkpoint / "checkpoints")
    if found is None:
        raise ConfigError(f"{checkpoint}: this run has saved no checkpoint yet")
    return found
