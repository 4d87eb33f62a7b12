"""`minirl eval`: the figures of a checkpoint, by the evaluator that runs use."""

from __future__ import annotations

from pathlib import Path

from minirl.config import Config, ConfigError
from minirl.evaluate import Evaluator
from minirl.models.load import build as build_model
from minirl.policy.checkpoint import newest
from minirl.policy.fsdp import FsdpPolicy
from minirl.tasks.registry import build as build_task
from minirl.world import World


def is_model(folder: Path) -> bool:
    """Whether the folder holds a model in Hugging Face format, not a run's checkpoint."""
    return (folder / "config.json").is_file()


def run_of(checkpoint: Path) -> Path:
    """The run's folder of RUN, RUN/checkpoints or RUN/checkpoints/VERSION."""
    for folder in (checkpoint, *checkpoint.resolve().parents[:2]):
        if (folder / "run.json").is_file():
            return folder
    raise ConfigError(f"{checkpoint}: neither a model in Hugging Face format nor a run's folder or checkpoint")


def examine(config: Config, checkpoint: Path) -> dict[str, float]:
    """eval/* of the checkpoint under `config.eval`, and its version."""
    world = World.join(config.run.device)
    try:
        task = build_task(config.task, config.coldstart)
        weights = checkpoint if is_model(checkpoint) else None
        policy = FsdpPolicy(
            build_model(config.model, vocab_size=task.vocab_size, checkpoint=weights),
            train=config.train,
            temperature=config.sampling.temperature,
            num_mini_batches=config.num_mini_batches,
            world=world,
        )
        if weights is None:
            policy.load(_saved(checkpoint))
        own = build_model(config.model, vocab_size=task.vocab_size, checkpoint=weights)
        return {"version": policy.version, **Evaluator(config, task, own, world)(policy)}
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
