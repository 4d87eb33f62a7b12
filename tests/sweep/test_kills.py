"""kill -9 of a run, of the sweep's command and of both, in every phase: every cell ends with one result, and its
metrics are those of a sweep that nobody killed."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import phase_task
import pytest
from phase_task import BETWEEN, PHASES, ROLLOUT, SAVE, UPDATE
from small_runs import SMALL, rows

SWEEP = Path("outputs/sweeps/killed")
RUN, COMMAND, BOTH = "run", "command", "both"
FAIL_FAST = "hydra.launcher.fail_fast=true"
SIZES = ["eval.every=2", "train.checkpoint_every=2", "num_mini_batches=2"]


def write_sweep(seeds: int, num_updates: int) -> None:
    base = [*SMALL, *SIZES, f"num_updates={num_updates}"]
    arms = {"clip": ["algo=minirl"], "R3, no clip": ["algo=minirl_no_clip", "algo.routing=r3"]}
    Path("killed.yaml").write_text(json.dumps({"base": base, "arms": arms, "seeds": list(range(seeds))}))


def start(*options: str, folder: str = "killed") -> subprocess.Popen[bytes]:
    words = [sys.executable, phase_task.__file__, "hydra.sweeper.file=killed.yaml", f"run.group={folder}"]
    jobs = ["hydra.launcher.jobs=1", "run.device=cpu"]
    return subprocess.Popen([*words, *jobs, *options], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def until(condition: Callable[[], object], process: subprocess.Popen[bytes], seconds: float = 400.0) -> bool:
    """Whether it came true before the command ended by itself."""
    deadline = time.monotonic() + seconds
    while not condition():
        if process.poll() is not None:
            return bool(condition())
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.005)
    return True


def phase(folder: Path) -> str:
    """Where the run was when its process ended."""
    return (folder / "phase").read_text().split()[1]


def aimed(phase_: str, victim: str) -> str | None:
    """Kills the victim while something is held in the phase; the phase, None if nothing came there."""
    (SWEEP / "aim").write_text(phase_)
    process = start(FAIL_FAST)  # a killed run leaves work for the next command
    try:
        if not until((SWEEP / "held").exists, process):
            return None
        pid, where = (SWEEP / "held").read_text().split(" ", 1)
        pids = {RUN: [int(pid)], COMMAND: [process.pid], BOTH: [process.pid, int(pid)]}[victim]
        for each in dict.fromkeys(pids):
            os.kill(each, signal.SIGKILL)
        until(lambda: all(gone(each) for each in pids if each != process.pid), process)
        hit = BETWEEN if phase_ == BETWEEN else phase(Path(where))
        if phase_ == SAVE:
            assert list(Path(where).glob("checkpoints/*.unfinished"))
    finally:
        for name in ("aim", "held"):
            (SWEEP / name).unlink(missing_ok=True)
    process.communicate(timeout=900)
    return hit


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def at_random(victim: str, chance: random.Random) -> str | None:
    """Kills the victim at any time after a run has begun; where the run was, if there was one just then."""
    process = start(FAIL_FAST)
    files = lambda: [path for path in SWEEP.glob("*/phase") if not gone(int(path.read_text().split()[0]))]  # noqa: E731
    until(files, process)
    time.sleep(chance.uniform(0.0, 2.0))
    if victim == RUN:
        until(files, process)  # between two runs nothing would be killed, and the command would do all the rest
    alive, pids = files(), [process.pid] if victim != RUN else []
    pids += [int(path.read_text().split()[0]) for path in alive] if victim != COMMAND else []
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    process.communicate(timeout=900)
    return phase(alive[0].parent) if alive else None


def unkilled() -> dict[str, list[dict[str, object]]]:
    process = start(folder="whole")
    output, _ = process.communicate(timeout=900)
    assert process.returncode == 0, output.decode()
    return {folder.name: rows(folder) for folder in Path("outputs/sweeps/whole").glob("*-s*")}


def check(whole: dict[str, list[dict[str, object]]]) -> None:
    """The last command runs what is missing; then every cell has one result, and the metrics of the unkilled one."""
    process = start()
    output, _ = process.communicate(timeout=900)
    assert process.returncode == 0, output.decode()
    assert Counter((SWEEP / "results.txt").read_text().split()) == dict.fromkeys(whole, 1)
    for name, expected in whole.items():
        assert [row["version"] for row in expected] == list(range(len(expected)))
        assert rows(SWEEP / name) == expected
        assert not list((SWEEP / name / "checkpoints").glob("*.unfinished"))


@pytest.fixture(autouse=True)
def places(small_coldstart: Path, own_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (own_folder / "outputs").mkdir()
    (own_folder / "outputs" / "coldstarts").symlink_to(small_coldstart / "coldstarts")
    monkeypatch.setenv("PYTHONPATH", f"{os.environ['PYTHONPATH']}:{Path(phase_task.__file__).parent}")
    SWEEP.mkdir(parents=True)


def test_what_is_killed_is_run_to_its_end_and_no_more() -> None:
    write_sweep(seeds=1, num_updates=4)
    whole = unkilled()
    assert aimed(SAVE, RUN) == SAVE
    assert aimed(UPDATE, BOTH) == UPDATE
    check(whole)


@pytest.mark.slow
def test_twenty_kills_in_every_phase() -> None:
    """Of a run, of the command, of both; ten in a known phase, ten at any time."""
    write_sweep(seeds=4, num_updates=40)  # more than a fast machine does between twenty kills
    whole = unkilled()
    plan = [(BETWEEN, COMMAND), *((each, victim) for victim in (BOTH, COMMAND, RUN) for each in PHASES)]
    hits = []
    for each in plan:
        hits.append(aimed(*each))
        print("aimed at", *each, "hit", hits[-1], flush=True)
    assert Counter(hits) == {BETWEEN: 1, ROLLOUT: 3, UPDATE: 3, SAVE: 3}
    chance = random.Random(5)
    for victim in [RUN, COMMAND, BOTH] * 3 + [COMMAND]:
        print("at any time:", victim, "hit", at_random(victim, chance), flush=True)
    assert len(set((SWEEP / "results.txt").read_text().split())) < len(whole)  # there was work until the last kill
    check(whole)
