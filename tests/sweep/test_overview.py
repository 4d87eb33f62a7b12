"""`minirl status`: what it finds, and what it says of it."""

import json
import os
import socket
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from minirl.config import ConfigError
from minirl.record import RunRecord
from minirl.sweep import overview
from minirl.sweep.overview import STARTING, look, show, starts_in_work

OUTPUTS = Path("outputs")


def write_run(folder: Path, rows: list[dict[str, Any]] | None = None, **record: Any) -> Path:
    folder.mkdir(parents=True)
    whole = {"state": "finished", "seed": 3, "arm": None, "num_updates": 8, "host": socket.gethostname()} | record
    (folder / "run.json").write_text(json.dumps(whole))
    if rows is not None:
        (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def write_sweep(name: str, age: float) -> Path:
    folder = OUTPUTS / "sweeps" / name
    cell = {"arm": "a", "seed": 3, "folder": str(folder / "abc-s3"), "same_as": None, "excluded": None}
    write_run(folder / "abc-s3", arm="a")
    (folder / "sweep.json").write_text(json.dumps({"cells": [cell]}))
    for path in (folder / "sweep.json", folder / "abc-s3" / "run.json"):
        os.utime(path, (1e9 - age, 1e9 - age))
    return folder


def test_single_runs_are_shown_beside_sweeps_and_the_latest_is_the_usual(own_folder: Path) -> None:
    write_sweep("older", 100.0)
    assert look(None, OUTPUTS).title == "older"
    first = write_run(OUTPUTS / "runs" / "aaa-s0", started=5.0, seed=0)
    write_run(OUTPUTS / "runs" / "bbb-s1", started=4.0, seed=1, arm="mine")
    assert look(None, OUTPUTS).title == "runs"
    assert [each.arm for each in look("runs", OUTPUTS).statuses] == ["mine", "aaa-s0"]
    for name in ("aaa-s0", str(first)):
        (status,) = look(name, OUTPUTS).statuses
        assert (status.arm, status.state, status.folder) == ("aaa-s0", "finished", str(first))
    assert look("abc-s3", OUTPUTS).statuses[0].arm == "a"
    assert look(str(OUTPUTS / "sweeps" / "older"), OUTPUTS).title == "older"
    with pytest.raises(ConfigError, match="did you mean older"):
        look("oldr", OUTPUTS)
    with pytest.raises(ConfigError, match="no run in"):
        look(None, Path("elsewhere"))


def test_a_sweep_waits_for_its_cold_start(own_folder: Path) -> None:
    """Its cells are known before its runs are; who makes the cold start holds its lock."""
    folder = OUTPUTS / "sweeps" / "new"
    folder.mkdir(parents=True)
    (folder / STARTING).write_text(json.dumps([["a", 0], ["b", 0]]))
    found = look(None, OUTPUTS)
    assert found.title == "new" and {each.state for each in found.statuses} == {"pending"}
    assert found.statuses[0].remark == "its cold start was not finished: repeat the command"
    starts = OUTPUTS / "coldstarts"
    starts.mkdir()
    (starts / "0123.log").write_text("step 20  accuracy 0.1\nstep 40  accuracy 0.3\n")
    with (starts / "0123.lock").open("w") as lock:
        overview.fcntl.flock(lock, overview.fcntl.LOCK_EX)
        found = look("new", OUTPUTS)
        assert found.making == ["cold start 0123 is being made: step 40  accuracy 0.3"]
        assert found.statuses[1].remark == "waits for its cold start"
        console = Console(width=100, record=True, force_terminal=False)
        show("new", OUTPUTS, console, watch=False)
        text = console.export_text()
        assert "waits for its cold start" in text and "step 40  accuracy 0.3" in text
    assert starts_in_work(OUTPUTS) == []


def test_a_running_run_has_spent_what_its_rows_say(own_folder: Path) -> None:
    """run.json has the sum only when a process has ended."""
    row = {"time/update": 2.0, "time/update_cpu": 1.5, "time/eval_cpu": 0.5, "tokens/response": 100.0}
    rows = [row | {"version": version} for version in range(3)]
    folder = write_run(OUTPUTS / "runs" / "abc-s3", rows, state="running", pid=os.getpid())
    with RunRecord(folder).locked():
        tree = look("runs", OUTPUTS).tree()
    (status,) = tree["runs"]
    assert (status["state"], status["cpu_seconds"], status["throughput"]) == ("running", 6.0, 50.0)
    RunRecord(folder).update(state="finished", ended=1.0, cpu_seconds=7.5)
    assert look("runs", OUTPUTS).statuses[0].cpu_seconds == 7.5


def test_what_a_killed_process_has_spent_is_not_forgotten(own_folder: Path) -> None:
    """It recorded nothing: its rows say it, those after the checkpoint too, which were put aside."""
    rows = [{"version": version, "time/update_cpu": 2.0} for version in range(3)]
    folder = write_run(OUTPUTS / "runs" / "abc-s3", rows, state="failed", ended=1.0)
    assert look("runs", OUTPUTS).statuses[0].cpu_seconds == 6.0
    (folder / "metrics.cut.jsonl").write_text(json.dumps(rows[2]) + "\n" + '{"version": 3, "time/upd')
    RunRecord(folder).update(cpu_seconds=0.5)
    assert look("runs", OUTPUTS).statuses[0].cpu_seconds == 8.0


def test_runs_of_several_versions_of_the_code_are_told(own_folder: Path) -> None:
    for seed, codes in enumerate([["aa"], ["aa"], ["aa", "bb+1"]]):
        write_run(OUTPUTS / "runs" / f"abc-s{seed}", seed=seed, arm="clip", codes=codes, started=seed)
    console = Console(width=150, record=True, force_terminal=False)
    assert show("runs", OUTPUTS, console, watch=False)
    text = console.export_text()
    assert "made by 2 versions of the code: aa (3 runs), bb+1 (1 run); changed in the middle of clip s2" in text
