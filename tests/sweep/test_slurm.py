"""The way through SLURM, with a SLURM that is a few commands on this machine: everything but SLURM itself is real."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import fake_slurm
import pytest
import stub_sweep
from stub_sweep import begun, finish, record, start, states, until, write_sweep

from minirl.record import LOCK
from minirl.sweep.scheduled import ScheduledSite, Submitted

LAUNCHER = "hydra/launcher=submitit_slurm"


@pytest.fixture(autouse=True)
def slurm(own_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    stub_sweep.prepare(own_folder, monkeypatch)
    folder = own_folder / "slurm"
    for name, value in fake_slurm.install(folder).items():
        monkeypatch.setenv(name, value)
    yield folder
    for number, state in fake_slurm.jobs(folder).items():
        if state in ("PENDING", "RUNNING"):
            subprocess.run([folder / "bin" / "scancel", str(number)], check=True)


def test_every_run_is_a_job_and_ends_as_it_does_anywhere(slurm: Path) -> None:
    """One finishes, one raises, one is killed with its process; the same command again submits what is missing."""
    write_sweep(["good", "raises", "is killed"], [0])
    code, output = finish(start(LAUNCHER))
    assert code == 1, output
    assert states() == {("good", 0): "finished", ("raises", 0): "failed", ("is killed", 0): "failed"}
    assert record("good")["job"].startswith("slurm 10") and len(fake_slurm.jobs(slurm)) == 3
    assert record("raises")["reason"] == "RuntimeError: this arm raises"
    assert record("is killed")["reason"].endswith("its process was killed by SIGKILL (out of memory?)")
    for told in ("FAILED raises s0: RuntimeError: this arm raises", "| a line of the log", "log.txt"):
        assert told in output

    code, output = finish(start(LAUNCHER, "hydra.launcher.fail_fast=true", "hydra.launcher.jobs=1"))
    assert code == 1 and "1 of 3 runs have their result already" in output
    assert [line.split()[0] for line in begun()[3:]] == ["raises"]  # the first failure keeps the other from starting
    assert len(fake_slurm.jobs(slurm)) == 4


@pytest.mark.parametrize("notice", ["time limit", pytest.param("preemption", marks=pytest.mark.slow)])
def test_a_run_that_loses_its_machine_saves_and_goes_on_in_another_turn(slurm: Path, notice: str) -> None:
    write_sweep(["leaves when asked"], [0])
    process = start(LAUNCHER)
    until(lambda: len(begun()) == 1)
    (number,) = fake_slurm.jobs(slurm)
    words = {"time limit": ["scancel", str(number), "--signal", "USR2"], "preemption": ["preempt", str(number)]}
    subprocess.run([slurm / "bin" / words[notice][0], *words[notice][1:]], check=True)
    code, output = finish(process)
    assert code == 0, output
    assert states() == {("leaves when asked", 0): "finished"} and len(begun()) == 2
    assert fake_slurm.jobs(slurm) == {number: "COMPLETED"} and (slurm / str(number) / "turns").read_text() == "2"
    assert "asked to stop" in Path(record("leaves when asked")["folder"], "log.txt").read_text()


@pytest.mark.parametrize("ending", [pytest.param(signal.SIGINT, marks=pytest.mark.slow), signal.SIGKILL])
def test_slurm_keeps_its_jobs_when_the_command_ends_and_repeating_it_finds_them(slurm: Path, ending: int) -> None:
    """Two commands at once, both ended while the jobs wait: the next one submits nothing, for all is there."""
    (slurm / "hold").touch()
    write_sweep(["good", "also good"], [0])
    processes = [start(LAUNCHER), start(LAUNCHER)]
    until(lambda: len(fake_slurm.jobs(slurm)) == 2 and set(states().values()) == {"queued"})
    for process in processes:
        process.send_signal(ending)
    for code, output in map(finish, processes):
        assert code == (130 if ending == signal.SIGINT else -signal.SIGKILL), output
        assert ending == signal.SIGKILL or "or end them by `scancel 10" in output
    again = start(LAUNCHER)
    (slurm / "hold").unlink()
    code, output = finish(again)
    assert code == 0, output
    assert len(fake_slurm.jobs(slurm)) == 2 and len(begun()) == 2
    assert set(states().values()) == {"finished"}


def test_without_accounting_a_run_killed_without_a_word_is_not_waited_for(slurm: Path) -> None:
    """sacct is switched off: that the job is gone is known by the run, which shows no sign of life any more."""
    (slurm / "bin" / "sacct").write_text("#!/bin/sh\necho 'Slurm accounting storage is disabled' >&2\nexit 1\n")
    write_sweep(["sleeps"], [0])
    process = start(LAUNCHER)
    until(lambda: len(begun()) == 1)
    (number,) = fake_slurm.jobs(slurm)
    held = [record("sleeps")["pid"], *map(int, (slurm / str(number) / "tasks").read_text().split())]
    for pid in held:
        os.kill(pid, signal.SIGKILL)
    code, output = finish(process)
    assert code == 1 and f"slurm {number}: it shows no sign of life any more" in output, output
    assert states() == {("sleeps", 0): "failed"}


@pytest.mark.parametrize(
    ("state", "age", "kept"),
    [
        ("PENDING", 3600.0, True),
        ("RUNNING", 3600.0, True),  # its run has shown no sign of life yet
        ("CANCELLED", 3600.0, False),
        ("CANCELLED", 60.0, True),  # as far as is known
    ],
)
def test_without_accounting_a_job_that_waits_long_is_found_by_squeue(
    slurm: Path, state: str, age: float, kept: bool
) -> None:
    """What is not found is submitted again."""
    (slurm / "bin" / "sacct").write_text("#!/bin/sh\nexit 1\n")
    (slurm / "101").mkdir()
    (slurm / "101" / "state").write_text(state)
    note = {"cluster": "slurm", "job": "101", "submitted": time.time() - age}
    folder = slurm.parent / "run"
    folder.mkdir()
    (folder / "queue.json").write_text(json.dumps(note))
    site = ScheduledSite(
        task="task", cluster="slurm", slots=1, processes=1, environment={}, max_num_timeout=1, parameters={}
    )
    assert (site._queued(folder) is not None) is kept
    if kept and age > 1000:
        (slurm / "bin" / "squeue").unlink()
        assert site._queued(folder) is None
    (slurm / "101" / "state").write_text("CANCELLED")


@dataclass
class Accounted:
    """A job of which sacct says this."""

    state: str
    job_id: str = "7"

    @property
    def watcher(self) -> "Accounted":
        return self

    def get_state(self, job_id: str, mode: str) -> str:
        return self.state

    def done(self) -> bool:
        return False


@pytest.mark.parametrize(
    ("sacct", "silence", "changes", "ended"),
    [
        ("UNKNOWN", 3600.0, {}, True),
        ("UNKNOWN", 200.0, {}, False),  # fewer than five minutes
        ("RUNNING", 3600.0, {}, False),  # SLURM knows better
        ("UNKNOWN", 3600.0, {"job": "slurm 6"}, False),  # an earlier job's run: this one waits for its turn
        ("UNKNOWN", 3600.0, {"state": "interrupted"}, False),  # saved, and put back into the queue
    ],
)
def test_a_job_that_sacct_does_not_know_has_ended_when_its_run_is_silent(
    tmp_path: Path, sacct: str, silence: float, changes: dict[str, str], ended: bool
) -> None:
    whole = {"state": "running", "host": "elsewhere", "job": "slurm 7", "pid": 1}
    (tmp_path / "run.json").write_text(json.dumps(whole | changes))
    (tmp_path / LOCK).touch()
    then = time.time() - silence
    os.utime(tmp_path / LOCK, (then, then))
    assert Submitted("slurm", Accounted(sacct), tmp_path).has_ended() is ended


@pytest.mark.slow
def test_a_run_on_two_nodes_has_all_their_ranks(slurm: Path) -> None:
    write_sweep(["tells its rank"], [0])
    ranks = ["hydra.launcher.parameters.nodes=2", "hydra.launcher.processes=2"]
    code, output = finish(start(LAUNCHER, *ranks))
    assert code == 0, output
    told = sorted(Path(record("tells its rank")["folder"]).glob("rank*.json"))
    environments = [json.loads(path.read_text()) for path in told]
    assert [each["RANK"] for each in environments] == ["0", "1", "2", "3"]
    assert [each["LOCAL_RANK"] for each in environments] == ["0", "1", "0", "1"]
    assert {each["WORLD_SIZE"] for each in environments} == {"4"}
    assert len({each["MASTER_PORT"] for each in environments}) == 1


def test_what_slurm_refuses_is_told_in_one_line(slurm: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (slurm / "bin" / "sbatch").write_text(
        "#!/bin/sh\necho 'sbatch: error: invalid partition specified: gold' >&2\nexit 1\n"
    )
    write_sweep(["good"], [0])
    code, output = finish(start(LAUNCHER, "hydra.launcher.parameters.slurm_partition=gold"))
    assert code != 0 and "invalid partition specified: gold" in output
    monkeypatch.setenv("PATH", os.environ["PATH"].partition(":")[2])
    code, output = finish(start(LAUNCHER))
    assert code != 0 and 'hydra/launcher=submitit_slurm: Could not detect "srun"' in output
