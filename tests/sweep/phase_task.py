"""A real run that says where it is, and stops there if somebody aims at it. For tests that kill; nothing of this is in
minirl. `aim` (in the sweep's folder) names a phase: the first process to come there writes `held` and waits, for its
end or for the aim to be gone."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

ROLLOUT, UPDATE, SAVE, BETWEEN, ELSEWHERE = "rollout", "update", "save", "between", "elsewhere"
PHASES = (ROLLOUT, UPDATE, SAVE)  # of a run; the command is between two of them


def task(cfg: DictConfig) -> str:
    from minirl import run
    from minirl.engine.torch_engine import TorchEngine
    from minirl.policy import checkpoint
    from minirl.policy.fsdp import FsdpPolicy
    from minirl.record import RunRecord, State

    folder = Path(HydraConfig.get().runtime.output_dir)
    TorchEngine.generate = inside(folder, ROLLOUT, TorchEngine.generate)
    FsdpPolicy.update = inside(folder, UPDATE, FsdpPolicy.update)
    checkpoint.dcp.save = inside(folder, SAVE, checkpoint.dcp.save)
    update = RunRecord.update

    def noted(record: RunRecord, **changes: Any) -> None:
        update(record, **changes)
        if changes.get("state") in [state for state in State if state.is_result]:
            with (folder.parent / "results.txt").open("a") as results:
                print(folder.name, file=results)

    RunRecord.update = noted
    mark(folder, ELSEWHERE)
    return str(run.run(cfg, list(HydraConfig.get().overrides.task)))


def inside(folder: Path, phase: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, during which the run's phase is `phase`. Held when its work is done and nobody has been told."""

    def marked(*args: Any, **kwargs: Any) -> Any:
        mark(folder, phase)
        found = function(*args, **kwargs)
        hold(folder.parent, phase, folder)
        mark(folder, ELSEWHERE)
        return found

    return marked


def mark(folder: Path, phase: str) -> None:
    path = folder / "phase.new"
    path.write_text(f"{os.getpid()} {phase}")
    path.replace(folder / "phase")


def hold(sweep: Path, phase: str, where: Path) -> None:
    aim = sweep / "aim"
    if aim.exists() and aim.read_text() == phase and not (sweep / "held").exists():
        (sweep / "held.new").write_text(f"{os.getpid()} {where}")
        (sweep / "held.new").replace(sweep / "held")
        while aim.exists():
            time.sleep(0.01)


def main() -> None:
    """The sweep's command, which can be held before it starts a run."""
    from minirl.sweep.launch import Launch
    from minirl.sweep.multirun import multirun

    start = Launch._start

    def held(launch: Launch, job: Any) -> None:
        if launch.states:  # a run has ended before
            hold(job.folder.parent, BETWEEN, job.folder.parent)
        start(launch, job)

    Launch._start = held
    multirun(task, sys.argv[1:], ())


if __name__ == "__main__":
    from phase_task import main

    main()
