"""The cold start: SFT on demonstrations until a measured accuracy, made once and shared by every run that asks for it.

An accuracy, not a number of steps: accuracy climbs from 0.15 to 0.6 within 50 steps, and where it does depends on
rounding. It is measured at temperature 1 on training problems that no run reaches.
"""

from __future__ import annotations

import fcntl
import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

from minirl.config import Config, ConfigError, TargetMissed
from minirl.hub import folder_of
from minirl.identity import coldstart_key
from minirl.interfaces import Task
from minirl.models.load import folder_config
from minirl.sft import Course, Examination, Progress, learn, longest_demonstration
from minirl.tasks.registry import build as build_task
from minirl.tracking.designation import of_coldstart
from minirl.tracking.registry import announce
from minirl.tracking.registry import require as require_tracker
from minirl.world import World

RECORD, METRICS = "coldstart.json", "metrics.jsonl"


def ensure(cfg: Config, world: World, report: Callable[[str], None]) -> Path:
    """The folder, in Hugging Face format, from which the run starts: `coldstart.checkpoint`, or else
    OUTPUTS/coldstarts/KEY, which is made if it is not there. Processes that ask at once make it once.

    Raises ConfigError if the checkpoint cannot serve, TargetMissed if the accuracy asked for is not reached.
    """
    task = build_task(cfg.task, cfg.coldstart)
    for note in task.notes:
        report(note)
    if cfg.coldstart.checkpoint is not None:
        return checked(folder_of(cfg.coldstart.checkpoint, "coldstart.checkpoint"), task)
    folder = Path(cfg.run.outputs) / "coldstarts" / coldstart_key(cfg)
    if not (folder / RECORD).is_file():
        refuse_long_demonstrations(task, cfg)
        require_tracker(cfg)
    with held(folder.with_suffix(".lock"), world, report):
        # one rank looks, so that all do the same
        if not world.gather((folder / RECORD).is_file())[0]:
            make(folder, cfg, Course.of(cfg, task, world), report)
            announce(cfg, folder, of_coldstart(cfg, folder.name), world.rank)
    return folder


def make(folder: Path, cfg: Config, course: Course, report: Callable[[str], None]) -> None:
    """The cold start, in a folder beside its own until it is whole; there a killed one goes on."""
    partial = cleared(folder.with_suffix(".partial"), course.world)
    progress = Progress(partial, course)
    try:
        examinations = learn(cfg.coldstart, course, progress, save_every=cfg.train.checkpoint_every, report=report)
    except TargetMissed:
        if course.world.rank == 0:
            shutil.rmtree(partial)
        raise
    finally:
        progress.close()
    save(folder, cfg, course, examinations)


def cleared(partial: Path, world: World) -> Path:
    """The folder with nothing in it but what a cold start goes on from."""
    if world.rank == 0:
        partial.mkdir(parents=True, exist_ok=True)
        for path in partial.iterdir():
            if path.is_file() and path.name != METRICS:
                path.unlink()
    world.barrier()
    return partial


def checked(folder: Path, task: Task) -> Path:
    """The folder, if it holds a model that can speak the task."""
    config = folder_config(folder, "coldstart.checkpoint")
    if not any(folder.glob("*.safetensors")):
        raise ConfigError(f"coldstart.checkpoint={folder}: no .safetensors file there")
    if config.vocab_size < task.vocab_size:
        raise ConfigError(
            f"coldstart.checkpoint={folder}: it has {config.vocab_size} tokens, the task needs {task.vocab_size}"
        )
    return folder


def refuse_long_demonstrations(task: Task, cfg: Config) -> None:
    """A model that is shown responses longer than it may sample learns to be cut off."""
    needed, limit = longest_demonstration(task, cfg.coldstart.seed), cfg.sampling.max_response_tokens
    if needed > limit:
        raise ConfigError(
            f"sampling.max_response_tokens={limit} is too small: demonstrations of "
            f"coldstart.style={cfg.coldstart.style} have up to {needed} tokens, EOS included; "
            f"set sampling.max_response_tokens={needed} or more"
        )


@contextmanager
def held(path: Path, world: World, report: Callable[[str], None]) -> Iterator[None]:
    """All ranks inside, of one run at a time. The kernel drops the lock of a process that dies; the file stays."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as lock:
        if world.rank == 0:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                report(f"waiting for another process that makes the cold start {path.stem}")
                fcntl.flock(lock, fcntl.LOCK_EX)
        world.barrier()
        yield
        world.barrier()


def save(folder: Path, cfg: Config, course: Course, examinations: list[Examination]) -> None:
    """The weights in Hugging Face format and how they came about; the folder appears whole or not at all."""
    partial = folder.with_suffix(".partial")
    like = None if cfg.model.path is None else folder_of(cfg.model.path, "model.path")
    course.policy.export(partial, like)
    spent = sum(course.world.gather(examinations[-1].cpu_seconds))
    if course.world.rank == 0:
        last = examinations[-1]
        record = {
            "accuracy": last.accuracy,
            "loss": last.loss,
            "steps": last.step,
            "cpu_seconds": spent,
            "examinations": [asdict(each) for each in examinations],
            "config": {
                name: asdict(part) for name, part in vars(cfg).items() if name in ("task", "model", "coldstart")
            },
        }
        (partial / RECORD).write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
        course.task.save_tokenizer(partial)
        for left_behind in (partial / "checkpoints", folder):
            shutil.rmtree(left_behind, ignore_errors=True)
        partial.rename(folder)
