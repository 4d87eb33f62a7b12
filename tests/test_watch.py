"""Dying, hanging and ending, in processes of their own, with an engine that sleeps instead of sampling."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from minirl.record import RunRecord
from minirl.watch import WatchedEngine, note

PROGRAM = """
import os, sys, time
from pathlib import Path
from minirl.record import RunRecord
from minirl.watch import WatchedEngine

class Sleeper:
    version = 3
    def load_parameters(self, parameters, version):
        time.sleep(version)
    def generate(self, prompts, sampling, group_size):
        print("sampling", flush=True)
        time.sleep(sampling)
        return "batch"
    def close(self): print("closed", flush=True)

record = RunRecord(Path(sys.argv[1]))
with record.locked():
    record.update(state="running", pid=os.getpid(), reason=None)
    engine = WatchedEngine(Sleeper(), record, float(sys.argv[3]))
    assert engine.version == 3
    engine.load_parameters([], float(sys.argv[5]))
    assert engine.generate([], float(sys.argv[2]), 1) == "batch"
    print("updating", flush=True)
    time.sleep(float(sys.argv[4]))
    engine.close()
    record.update(state="finished")
"""


def started(folder: Path, *, rollout: float, limit: float, update: float, load: float = 0) -> subprocess.Popen[str]:
    words = [sys.executable, "-c", PROGRAM, str(folder), str(rollout), str(limit), str(update), str(load)]
    return subprocess.Popen(words, stdout=subprocess.PIPE, text=True)


def settled(record: RunRecord) -> dict[str, object]:
    """The record once its watcher has spoken."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        if record.path.exists() and record.read()["state"] != "running":
            return record.read()
        time.sleep(0.05)
    raise AssertionError(f"still {record.read()}")


@pytest.mark.parametrize(("line", "where"), [("sampling", "in the middle of a rollout"), ("updating", "outside")])
def test_a_killed_process_leaves_a_record(tmp_path: Path, line: str, where: str) -> None:
    patience = {"sampling": {"rollout": 60.0, "update": 0.0}, "updating": {"rollout": 0.0, "update": 60.0}}[line]
    process = started(tmp_path / "run", limit=100.0, **patience)
    while process.stdout.readline().strip() != line:
        pass
    process.kill()
    process.wait()
    record = settled(RunRecord(tmp_path / "run"))
    assert record["state"] == "failed" and where in record["reason"] and "repeat the command" in record["reason"]


@pytest.mark.parametrize(("rollout", "load", "said"), [(60.0, 0.0, "a rollout"), (0.0, 60.0, "a load of weights")])
def test_a_hanging_engine_is_ended(tmp_path: Path, rollout: float, load: float, said: str) -> None:
    process = started(tmp_path / "run", rollout=rollout, limit=0.5, update=0.0, load=load)
    assert process.wait(timeout=30) == -signal.SIGKILL
    reason = settled(RunRecord(tmp_path / "run"))["reason"]
    assert f"{said} did not end within engine.max_rollout_seconds=0.5" in reason


def test_an_update_may_take_as_long_as_it_likes(tmp_path: Path) -> None:
    process = started(tmp_path / "run", rollout=0.0, limit=0.5, update=1.5)
    out, _ = process.communicate(timeout=30)
    assert process.returncode == 0 and out.split() == ["sampling", "updating", "closed"]
    assert RunRecord(tmp_path / "run").read()["state"] == "finished"


def test_a_run_outlives_its_watcher(tmp_path: Path) -> None:
    class Engine:
        version = 0

        def generate(self, prompts: object, sampling: object, group_size: int) -> str:
            return "batch"

        def close(self) -> None: ...

    engine = WatchedEngine(Engine(), RunRecord(tmp_path / "run"), 60.0)
    engine.watcher.kill()
    engine.watcher.wait()
    assert engine.generate([], None, 1) == "batch"
    engine.close()


def test_a_run_that_was_taken_up_again_is_left_alone(tmp_path: Path) -> None:
    record = RunRecord(tmp_path / "run")
    with record.locked():
        record.update(state="running", pid=os.getpid())
    note(record, os.getpid() + 1, "dead")
    assert record.read()["state"] == "running"
    note(record, os.getpid(), "dead")
    assert record.read()["state"] == "failed"
