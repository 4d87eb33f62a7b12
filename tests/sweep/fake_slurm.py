"""SLURM's commands on one machine, for as much of it as submitit and we use: `install(folder)` puts sbatch, srun,
sacct, squeue, scontrol and scancel into a folder for the PATH. Jobs really run. Signals go to the tasks that srun
starts and not to what these start, as with SLURM's cgroups.

Beside SLURM's own: `preempt JOB` takes the machine away and gives it back; a file `hold` keeps new jobs pending.
"""

from __future__ import annotations

import fcntl
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path

COMMANDS = ("sbatch", "srun", "sacct", "squeue", "scontrol", "scancel", "preempt")
GRACE_SECONDS = 5.0  # between SIGTERM and SIGKILL
STATE = Path(os.environ.get("FAKE_SLURM", "."))


def install(folder: Path) -> dict[str, str]:
    """The environment in which this folder is SLURM."""
    (folder / "bin").mkdir(parents=True)
    for name in COMMANDS:
        path = folder / "bin" / name
        path.write_text(f'#!/bin/sh\nexec {sys.executable} -S {Path(__file__).resolve()} {name} "$@"\n')
        path.chmod(0o755)
    return {"PATH": f"{folder / 'bin'}:{os.environ['PATH']}", "FAKE_SLURM": str(folder)}


def jobs(folder: Path) -> dict[int, str]:
    """Number -> state of every job that was ever submitted."""
    return {int(path.name): (path / "state").read_text() for path in folder.glob("[0-9]*")}


def sbatch(script: str) -> None:
    lines = Path(script).read_text().splitlines()
    options = dict(
        shlex.split(line.removeprefix("#SBATCH --"))[0].partition("=")[::2]
        for line in lines
        if line.startswith("#SBATCH")
    )
    with (STATE / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        number = 1 + max([*jobs(STATE), 100])
        job = STATE / str(number)
        job.mkdir()
        (job / "state").write_text("PENDING")
    (job / "script.sh").write_text("\n".join(lines))
    (job / "options.json").write_text(json.dumps(options))
    words = [sys.executable, "-S", __file__, "control", str(number)]
    quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    subprocess.Popen(words, start_new_session=True, **quiet)
    print(f"Submitted batch job {number}")


def control(number: str) -> None:
    """The life of a job: turn after turn, for as long as somebody puts it back into the queue."""
    job = STATE / number
    options = json.loads((job / "options.json").read_text())
    nodes, tasks = int(options.get("nodes", 1)), int(options.get("ntasks-per-node", 1))
    environment = {
        "SLURM_JOB_ID": number,
        "SLURM_JOB_NUM_NODES": str(nodes),
        "SLURM_NTASKS": str(nodes * tasks),
        "SLURM_JOB_NODELIST": ",".join(["localhost"] * nodes),
    }
    while True:
        while (STATE / "hold").exists():
            time.sleep(0.05)
        if (job / "state").read_text() == "CANCELLED":
            return
        (job / "state").write_text("RUNNING")
        turns = job / "turns"
        turns.write_text(str(int(turns.read_text() if turns.exists() else 0) + 1))
        done = subprocess.run(["bash", str(job / "script.sh")], env=os.environ | environment, check=False)
        if (job / "requeue").exists():
            (job / "requeue").unlink()
            (job / "state").write_text("PENDING")
        else:
            cancelled = (job / "state").read_text() == "CANCELLED"
            (job / "state").write_text("CANCELLED" if cancelled else "FAILED" if done.returncode else "COMPLETED")
            return


def srun(*words: str) -> int:
    begin = next(index for index, word in enumerate(words) if "python" in word)
    options = dict(pairwise(words[:begin]))
    job, count = STATE / os.environ["SLURM_JOB_ID"], int(os.environ["SLURM_NTASKS"])
    each = count // int(os.environ["SLURM_JOB_NUM_NODES"])
    started = []
    with ExitStack() as files:
        for rank in range(count):
            place = {"PROCID": rank, "NODEID": rank // each, "LOCALID": rank % each}
            streams = {}
            for stream, option in (("stdout", "--output"), ("stderr", "--error")):
                name = options[option].replace("%j", job.name).replace("%t", str(rank))
                streams[stream] = files.enter_context(Path(name).open("ab"))
            environment = os.environ | {f"SLURM_{name}": str(value) for name, value in place.items()}
            started.append(subprocess.Popen(words[begin:], env=environment, start_new_session=True, **streams))
        (job / "tasks").write_text(" ".join(str(task.pid) for task in started))
        return max(abs(task.wait()) for task in started)


def sacct(*words: str) -> None:
    print("JobID|State|NodeList")
    for flag, number in pairwise(words):
        if flag == "-j":
            print(f"{number}|{(STATE / number / 'state').read_text()}|localhost")


def squeue(*words: str) -> None:
    """Of one job. It knows no job that has ended."""
    options = dict(word.removeprefix("--").partition("=")[::2] for word in words)
    state = (STATE / options["jobs"] / "state").read_text()
    if state not in ("PENDING", "RUNNING"):
        sys.exit("slurm_load_jobs error: Invalid job id specified")
    if state in options["states"].split(","):
        print(options["jobs"])


def scontrol(verb: str, number: str) -> None:
    """Ends the job's tasks on all nodes; `control` begins the next turn when they are gone."""
    assert verb == "requeue"
    (STATE / number / "requeue").touch()
    quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    subprocess.Popen([sys.executable, "-S", __file__, "end", number], start_new_session=True, **quiet)


def scancel(*words: str) -> None:
    number = next(word for word in words if word.isdecimal())
    if "--signal" in words:
        tell(tasks(number), getattr(signal, f"SIG{words[words.index('--signal') + 1].removeprefix('SIG')}"))
        return
    (STATE / number / "state").write_text("CANCELLED")
    end(number)


def preempt(number: str) -> None:
    (STATE / number / "requeue").touch()
    end(number)


def end(number: str) -> None:
    """SIGTERM, then SIGKILL to those that are left."""
    pids = tasks(number)
    tell(pids, signal.SIGTERM)
    deadline = time.monotonic() + GRACE_SECONDS
    while time.monotonic() < deadline and tell(pids, 0):
        time.sleep(0.1)
    tell(pids, signal.SIGKILL)


def tasks(number: str) -> list[int]:
    """The processes that srun has started in this turn."""
    path = STATE / number / "tasks"
    return list(map(int, path.read_text().split())) if path.exists() else []


def tell(pids: list[int], what: int) -> bool:
    """Sends a signal to them; whether any is there."""
    there = False
    for pid in pids:
        try:
            os.kill(pid, what)
            there = True
        except ProcessLookupError:
            continue
    return there


if __name__ == "__main__":
    sys.exit(globals()[sys.argv[1]](*sys.argv[2:]))
