"""`minirl eval`: the figures of a checkpoint, by the evaluator that runs use."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path

import torch
from scipy.stats import t
from torch import Tensor
from transformers import PreTrainedModel

from minirl.config import Config, ConfigError
from minirl.engine.registry import build as build_engine
from minirl.evaluate import TABLES, Evaluator, figures_of_sets, mean_and_error, passes
from minirl.interfaces import Task
from minirl.policy.build import build as build_policy
from minirl.policy.checkpoint import newest
from minirl.policy.fsdp import FsdpPolicy
from minirl.record import RunRecord, State
from minirl.tasks.registry import build as build_task
from minirl.tracking.designation import of_evaluation
from minirl.tracking.registry import build_aside
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


@dataclass(frozen=True)
class Examined:
    """A measured checkpoint. figures: what a run logs of an evaluation · lines: avg@k and pass@k with 95 % intervals,
    for a person · table: the file with the outcome of every sample."""

    version: int
    figures: dict[str, float]
    lines: list[str]
    table: Path


def examine(config: Config, checkpoint: Path | None) -> Examined:
    """The checkpoint (None: the weights of `model`) under `config.eval`."""
    world = World.join(config.run.device)
    try:
        found = restored(config, checkpoint, world)
        evaluator = Evaluator.of(
            config,
            found.task,
            model=found.model,
            rollouts=lambda: build_engine(config, found.model(), pad=found.task.pad, world=world),
            world=world,
        )
        version = found.policy.version
        table = table_path(config, checkpoint, version)
        run = None if checkpoint is None else _run(checkpoint)
        designation = of_evaluation(config, table.stem, {} if run is None else RunRecord(run).read())
        tracker = build_aside(config, table.with_suffix(""), designation, world.rank)
        tracker.truncate(version)
        try:
            outcomes = evaluator.outcomes(found.policy)
        finally:
            evaluator.engine.close()
        evaluator.save(outcomes, version, table)
        tracker.write(version, figures_of_sets(outcomes))
        tracker.close(State.finished)
        return Examined(version, figures_of_sets(outcomes), told(outcomes), table)
    finally:
        world.leave()


def table_path(config: Config, checkpoint: Path | None, version: int) -> Path:
    """OUTPUTS/evaluations/NAME-VERSION-SETTINGS.jsonl: another temperature or set of problems is another file."""
    run = None if checkpoint is None else _run(checkpoint)
    place = run or checkpoint or Path(config.model.path or config.model.name)
    settings = {"eval": asdict(config.eval), "sets": {n: asdict(part) for n, part in config.task.eval_sets.items()}}
    digest = sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:8]
    return Path(config.run.outputs) / TABLES / f"{place.resolve().name}-{version}-{digest}.jsonl"


def told(outcomes: Mapping[str, Tensor]) -> list[str]:
    """One line per set and figure: avg@k and the unbiased pass@j for j = 1, 2, 4, ..., k. Intervals are t intervals
    over problems: samples of one problem are no independent evidence of how many problems are solved."""
    lines = []
    for name, part in outcomes.items():
        num_problems, num_samples = part.shape[:2]
        powers = [2**power for power in range(num_samples.bit_length()) if 2**power < num_samples]
        rows = {f"avg@{num_samples}": part[..., 0].mean(1)}
        rows |= {f"pass@{k}": passes(part, k) for k in [*powers, num_samples]}
        for figure, by_problem in rows.items():
            mean, error = mean_and_error(by_problem)
            reach = float(t.ppf(0.975, num_problems - 1)) * error
            interval = f"{mean - reach:.3f} to {mean + reach:.3f}"
            lines.append(f"{name:<12}{figure:<9}{mean:.4f}  95 % {interval}  ({num_problems} problems)")
    return lines


def _saved(checkpoint: Path) -> Path:
    """The checkpoint itself, or the newest one of a run."""
    if checkpoint.name.isdecimal():
        return checkpoint
    found = newest(checkpoint if checkpoint.name == "checkpoints" else checkpoint / "checkpoints")
    if found is None:
        raise ConfigError(f"{checkpoint}: this run has saved no checkpoint yet")
    return found
