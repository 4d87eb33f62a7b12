"""A sweep of stubs (stub_task.py), run by a program of its own as `minirl sweep` is."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from stub_checkpoint import write as write_checkpoint

from minirl.sweep.status import read

HERE = Path(__file__).parent
SWEEP = Path("outputs/sweeps/stub")
# the tests may be a shell's background job, whose children inherit that SIGINT is ignored
PROGRAM = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
from stub_task import task
from minirl.sweep.multirun import multirun
multirun(task, sys.argv[1:], ())
"""


def prepare(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Children find the stub, and there is a checkpoint to start from."""
    monkeypatch.setenv("PYTHONPATH", f"{os.environ['PYTHONPATH']}:{HERE}")
    monkeypatch.setenv("COLUMNS", "120")
    write_checkpoint(folder / "start", b"1")


def write_sweep(arms: list[str], seeds: list[int]) -> None:
    """Arms named after what the stub does; each is an experiment of its own."""
    tree = {
        "base": ["coldstart.checkpoint=start", "num_updates=8", "run.device=cpu"],
        "arms": {name: [f"group_size={2 + index}"] for index, name in enumerate(arms)},
        "seeds": seeds,
    }
    Path("stub.yaml").write_text(json.dumps(tree))


def start(*options: str) -> subprocess.Popen[str]:
    words = [sys.executable, "-c", PROGRAM, "hydra.sweeper.file=stub.yaml", *options]
    return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def finish(process: subprocess.Popen[str]) -> tuple[int, str]:
    output, _ = process.communicate(timeout=300)
    return process.returncode, output


def begun() -> list[str]:
    """One line for each time that a run has begun."""
    path = SWEEP / "starts.txt"
    return path.read_text().splitlines() if path.exists() else []


def until(condition: Callable[[], Any], seconds: float = 90.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.05)


def states() -> dict[tuple[str, int], str]:
    return {(each.arm, each.seed): each.state for each in read(SWEEP)}


def record(arm: str) -> dict[str, Any]:
    """What is recorded of the arm's run, and its folder."""
    for path in SWEEP.glob("*/run.json"):
        tree: dict[str, Any] = json.loads(path.read_text())
        if tree["arm"] == arm:
            return tree | {"folder": str(path.parent)}
    raise AssertionError(f"no run of {arm}")
