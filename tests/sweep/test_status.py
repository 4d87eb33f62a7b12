"""What is read from disk while runs are being written."""

import fcntl
import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from threading import Timer
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from minirl.cli import app
from minirl.record import LOCK, Busy, RunRecord
from minirl.report.read import read_sweep
from minirl.sweep.display import duration, number, table
from minirl.sweep.job import Answer
from minirl.sweep.outcome import Ending, Life, conclude, last_words, life, manner_of_death
from minirl.sweep.status import QUEUE, Standing, Status, find_run, last_rows, run_status, seconds_left


def row(version: int, **figures: Any) -> dict[str, Any]:
    return {
        "version": version,
        "reward/mean": 0.5,
        "time/update": 1.5,
        "time/update_cpu": 9.0,
        "time/eval": 0.5,
    } | figures


def write_run(folder: Path, rows: list[dict[str, Any]], tail: str = "", **record: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "metrics.jsonl").write_text("".join(json.dumps(each) + "\n" for each in rows) + tail)
    whole = {"state": "running", "num_updates": 10, "pid": os.getpid(), "host": socket.gethostname()} | record
    (folder / "run.json").write_text(json.dumps(whole))
    return folder


def test_progress_is_the_last_complete_row(tmp_path: Path) -> None:
    """Wall seconds per row, CPU seconds left aside; a torn line is not there yet; NaN was written as null."""
    rows = [row(0, **{"eval/avg": 0.25}), row(1), row(2, **{"reward/mean": None})]
    status = run_status(write_run(tmp_path, rows, '{"version": 3, "rew'), "a", 0)
    assert (status.state, status.updates, status.num_updates) == ("running", 3, 10)
    assert (status.reward, status.score) == (0.5, 0.25)
    assert status.pace == 2.0 and status.seconds_left == 14.0


def test_the_last_row_holds_the_final_evaluation_only(tmp_path: Path) -> None:
    status = run_status(write_run(tmp_path, [row(version) for version in range(11)], state="finished"), "a", 0)
    assert status.updates == 10 and status.seconds_left == 0.0


def test_a_long_file_is_read_from_its_end(tmp_path: Path) -> None:
    write_run(tmp_path, [row(version, filler="x" * 1000) for version in range(300)])
    rows = last_rows(tmp_path / "metrics.jsonl")
    assert rows[-1]["version"] == 299 and 30 < len(rows) < 100


def test_what_has_not_begun_is_pending(tmp_path: Path) -> None:
    status = run_status(tmp_path / "nowhere", "a", 0)
    assert (status.state, status.updates, status.pace) == ("pending", 0, None)


def cell(state: str, updates: int = 0, pace: float | None = None) -> Status:
    return Status("a", 0, state, updates, 10 if pace else None, pace, None, None, None, 0.0, None, None)


def test_time_left_counts_what_runs_and_what_waits() -> None:
    assert seconds_left([cell("running"), cell("pending")], 2) is None  # nothing is known yet
    assert seconds_left([cell("running", 5, 2.0)], 1) == 10.0
    # 10 s of the running one, 20 s for the one that waits, on two slots
    assert seconds_left([cell("running", 5, 2.0), cell("pending")], 2) == 15.0
    assert seconds_left([cell("running", 5, 2.0), cell("pending")], 1) == 30.0
    # never less than what the slowest run needs by itself
    assert seconds_left([cell("running", 0, 2.0), cell("finished", 10, 2.0)], 8) == 20.0
    assert seconds_left([cell("finished", 10, 2.0), cell(Standing.same), cell(Standing.excluded)], 1) == 0.0


def silent(folder: Path, seconds: float) -> Path:
    """The run's last sign of life is so old."""
    (folder / LOCK).touch()
    then = time.time() - seconds
    os.utime(folder / LOCK, (then, then))
    return folder


def test_a_dead_process_is_lost_and_one_elsewhere_is_believed_while_it_shows_signs_of_life(tmp_path: Path) -> None:
    gone = 2**22 + 12345  # above the largest process number
    assert run_status(write_run(tmp_path / "a", [row(0)], pid=gone), "a", 0).state == "lost"
    elsewhere = write_run(tmp_path / "b", [row(0)], pid=gone, host="elsewhere")
    assert run_status(silent(elsewhere, 20.0), "b", 0).state == "running"
    status = run_status(silent(elsewhere, 3600.0), "b", 0)
    assert status.state == "unknown" and "no sign of life from elsewhere for 60 minutes" in str(status.remark)
    assert run_status(write_run(tmp_path / "c", [row(0)], pid=gone, state="finished"), "c", 0).state == "finished"
    assert life(RunRecord(tmp_path / "nowhere")) is Life.gone


def test_a_run_that_is_held_gives_signs_of_life(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("minirl.record.BEAT_SECONDS", 0.01)
    record = RunRecord(tmp_path)
    with record.locked():
        silent(tmp_path, 3600.0)
        deadline = time.monotonic() + 30
        while record.silence() > 60:
            assert time.monotonic() < deadline
            time.sleep(0.01)
    silent(tmp_path, 3600.0)
    time.sleep(0.1)
    assert record.silence() > 60  # nobody holds it any more


def test_looking_at_a_run_does_not_make_it_busy(tmp_path: Path) -> None:
    """`is_abandoned` holds the lock for a moment, in which a starting run may find it taken."""
    with (tmp_path / LOCK).open("w") as file:
        fcntl.flock(file, fcntl.LOCK_SH)
        Timer(0.2, file.close).start()
        with RunRecord(tmp_path).locked():
            pass


def test_a_run_that_somebody_else_works_on_is_busy(tmp_path: Path) -> None:
    with RunRecord(tmp_path).locked(), pytest.raises(Busy), RunRecord(tmp_path).locked():
        pass


def test_a_process_number_that_was_given_again_is_not_the_run(tmp_path: Path) -> None:
    """After a restart of the machine (or of a container) another process may have the recorded number."""
    record = RunRecord(write_run(tmp_path, [row(0)]))
    with record.locked():
        assert life(record) is Life.alive
    assert life(record) is Life.gone
    assert run_status(tmp_path, "a", 0).state == "lost"


HOLDER = """
import os, sys, time
from pathlib import Path
from minirl.record import RunRecord, environment
run = RunRecord(Path(sys.argv[1]))
with run.locked():
    run.update(**environment(), state="running", num_updates=10, arm="a", seed=0)
    print("held", flush=True)
    time.sleep(60)
"""


def test_a_report_is_of_records_that_killed_runs_could_not_write(own_folder: Path) -> None:
    """kill -9 of a run that nobody watches: `minirl status` sees it, and `minirl report` has it recorded first. What
    still runs, or may do so elsewhere, is left as it is."""
    words = [sys.executable, "-c", HOLDER]
    killed, alive = [
        subprocess.Popen([*words, f"outputs/sweeps/mine/{name}-s0"], stdout=subprocess.PIPE) for name in ("k", "l")
    ]
    sweep = Path("outputs/sweeps/mine")
    elsewhere = silent(write_run(sweep / "e-s0", [row(0)], host="elsewhere", arm="a", seed=0), 3600.0)
    try:
        for process in (killed, alive):
            assert process.stdout is not None and process.stdout.readline() == b"held\n"
        killed.kill()
        killed.wait()
        status = run_status(sweep / "k-s0", "a", 0)
        assert status.state == "lost" and f"process {killed.pid} on {socket.gethostname()} died" in str(status.remark)
        cells = [
            {"arm": name, "seed": 0, "folder": f"{name}-s0", "same_as": None, "excluded": None} for name in ("k", "l")
        ]
        plan = {"name": "mine", "arms": {"k": [], "l": []}, "seeds": [0], "cells": cells}
        (sweep / "sweep.json").write_text(json.dumps(plan))
        done = CliRunner().invoke(app, ["report", "mine"])
        assert f"a s0 is failed by its record: process {killed.pid}" in done.output, done.output
        assert "a s0 is running by its record: no sign of life from elsewhere for 60 minutes" in done.output
        assert "repeat the command to go on from the newest checkpoint" in RunRecord(sweep / "k-s0").read()["reason"]
        assert {arm.runs[0].state for arm in read_sweep(sweep).arms.values()} == {"failed", "running"}
        assert RunRecord(elsewhere).read()["state"] == "running"
    finally:
        alive.kill()
        alive.wait()


@pytest.mark.parametrize(
    ("state", "shown"),
    [(None, "queued"), ("interrupted", "queued"), ("finished", "finished"), ("failed", "failed")],
)
def test_a_run_that_waits_for_its_turn_is_queued(tmp_path: Path, state: str | None, shown: str) -> None:
    if state is not None:
        write_run(tmp_path, [row(0)], state=state)
    (tmp_path / QUEUE).write_text(json.dumps({"cluster": "slurm", "job": "77", "submitted": 0.0}))
    status = run_status(tmp_path, "a", 0)
    assert status.state == shown
    assert shown != "queued" or status.remark == "slurm job 77"


@pytest.mark.parametrize(
    ("before", "answer", "exit_code", "after", "reason"),
    [
        (None, None, -11, "failed", "its process was killed by SIGSEGV"),
        (None, None, 3, "failed", "its process ended with exit code 3 and without a word"),
        (None, Answer(None, "ConfigError", "no"), 0, "failed", "ConfigError: no"),
        (None, Answer("finished"), 0, "finished", None),
        ("running", None, -9, "failed", "its process was killed by SIGKILL (out of memory?)"),
        ("running", Answer("interrupted"), 0, "interrupted", "stopped by Ctrl-C: repeat the command to go on"),
        ("failed", Answer(None, "ValueError", "x"), 0, "failed", "as recorded"),
        ("diverged", Answer("diverged"), 0, "diverged", "as recorded"),
    ],
)
def test_the_record_is_set_right_where_the_process_could_not(
    tmp_path: Path, before: str | None, answer: Answer | None, exit_code: int, after: str, reason: str | None
) -> None:
    if before is not None:
        write_run(tmp_path, [], state=before, job="mine", reason="as recorded")
    ending = Ending(answer, manner_of_death(exit_code))
    assert conclude(tmp_path, {"arm": "a", "seed": 1}, "mine", ending) == after
    record = json.loads((tmp_path / "run.json").read_text())
    assert (record["state"], record["reason"], record["job"]) == (after, reason, "mine")


def test_a_run_of_another_process_is_left_alone(tmp_path: Path) -> None:
    write_run(tmp_path, [row(0)], job="another")
    before = (tmp_path / "run.json").read_bytes()
    assert conclude(tmp_path, {}, "mine", Ending(Answer(None, "Busy", "is being run"), "")) == "busy"
    assert (tmp_path / "run.json").read_bytes() == before
    write_run(tmp_path, [row(0)], state="finished", job="another")
    before = (tmp_path / "run.json").read_bytes()
    assert conclude(tmp_path, {}, "mine", Ending(Answer("finished"), "")) == "finished"  # by an earlier process
    assert (tmp_path / "run.json").read_bytes() == before


def test_a_second_failure_replaces_the_first_ones_reason(tmp_path: Path) -> None:
    write_run(tmp_path, [], state="failed", job="the first", reason="the first time")
    assert conclude(tmp_path, {}, "mine", Ending(None, manner_of_death(-9))) == "failed"
    assert "SIGKILL" in json.loads((tmp_path / "run.json").read_text())["reason"]


def test_last_words_are_the_end_of_the_log(tmp_path: Path) -> None:
    assert last_words(tmp_path) == []
    (tmp_path / "log.txt").write_text("\n".join(map(str, range(9))) + "\n\n")
    assert last_words(tmp_path) == ["5", "6", "7", "8"]
    assert manner_of_death(-15) == "its process was killed by SIGTERM"


def test_a_run_is_found_by_path_and_by_name(own_folder: Path) -> None:
    folder = write_run(Path("outputs/sweeps/x/abc-s0"), [])
    assert find_run("abc-s0", Path("outputs")) == find_run(str(folder), Path("outputs")) == folder


def test_the_table_is_plain_text_without_a_terminal() -> None:
    console = Console(width=100, record=True, force_terminal=False)
    console.print(table([cell("failed"), cell("running", 5, 2.0)], "[x]", 75.0))
    text = console.export_text()
    assert "[x]" in text and "FAILED" in text and "5/10" in text and "about 1:15 left" in text
    assert (duration(3723), duration(59.6), duration(None), number(None)) == ("1:02:03", "1:00", "?", "")
