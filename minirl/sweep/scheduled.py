"""A scheduler as the site: one submitit job for each run, with SLURM or, to try it, on this machine.

SLURM keeps its jobs when the sweep's command ends; repeating the command finds them again by `queue.json`.
"""

from __future__ import annotations

import fcntl
import json
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import submitit
from submitit.core.utils import DelayedSubmission, FailedJobError, FailedSubmissionError

from minirl.config import ConfigError
from minirl.record import RunRecord, State, write_atomically
from minirl.sweep import cell
from minirl.sweep.batch import Batch, Place
from minirl.sweep.launch import Job, Started
from minirl.sweep.outcome import Ending, Life, life, manner_of_death
from minirl.sweep.processes import GRACE_SECONDS
from minirl.sweep.status import QUEUE

SLURM = "slurm"
UNKNOWN = "UNKNOWN"  # submitit's word for a job of which sacct says nothing
FOLDER = "submitit"  # in the run's folder: submitit's own files
SACCT_SECONDS = 20.0  # between two questions to SLURM for all jobs; an end is seen earlier by the file it leaves
NEW_SECONDS = 120.0  # a job so young may not be in SLURM's books yet
FIRST_PORT, NUM_PORTS = 20000, 20000


@dataclass(frozen=True)
class Turn:
    """What submitit calls on each node of a run: one turn with the machine. When SLURM says that its time is nearly
    up, submitit calls `checkpoint`, and has SLURM put the job back into the queue for another turn."""

    batch: Batch

    def __call__(self) -> int:
        here = submitit.JobEnvironment()
        code = self.batch.run(_name(here.cluster, here.job_id), _place(here))
        if here.cluster == SLURM and RunRecord(self.batch.folder).read().get("state") == State.interrupted:
            # it was told to end: SLURM ends it now, and may put it back into the queue, but not if it has ended itself
            time.sleep(GRACE_SECONDS * 30)
        return code

    def checkpoint(self) -> DelayedSubmission | None:
        """The next turn; None where there is nothing left to do."""
        self.batch.leave()
        state = RunRecord(self.batch.folder).read().get("state", State.running)
        over = state == State.failed or State(state).is_result
        return None if over else DelayedSubmission(Turn(replace(self.batch, child=None)))


def _name(cluster: str, job_id: str) -> str:
    """What the run's record calls the job."""
    return f"{cluster} {job_id}"


def _place(here: submitit.JobEnvironment) -> Place:
    port = FIRST_PORT + int("".join(filter(str.isdecimal, here.job_id))) % NUM_PORTS
    return Place(here.num_nodes, here.node, here.hostnames[0], port)


@dataclass(frozen=True)
class Submitted:
    """A job in the scheduler's hands."""

    cluster: str
    job: submitit.Job[int]
    folder: Path

    @property
    def name(self) -> str:
        return _name(self.cluster, self.job.job_id)

    def has_ended(self) -> bool:
        return self.job.done() or self._is_silent()

    def _is_silent(self) -> bool:
        """Whether the run has begun and shows no sign of life any more (`outcome.life`), in a job that SLURM's
        accounting does not know: where sacct is switched off, nothing else tells that it was killed."""
        if self.cluster != SLURM or self.job.watcher.get_state(self.job.job_id, mode="cache") != UNKNOWN:
            return False
        run = RunRecord(self.folder)
        record = run.read()
        begun = record.get("job") == self.name and record["state"] == State.running
        return begun and life(run) is not Life.alive

    def ending(self) -> Ending:
        (self.folder / QUEUE).unlink(missing_ok=True)
        return Ending(cell.answer(self.folder, self.name), f"{self.name}: {self._manner()}")

    def _manner(self) -> str:
        first = self.job.task(0)
        if first.paths.result_pickle.exists():
            return manner_of_death(first.result())
        if self._is_silent():
            return "it shows no sign of life any more, and sacct does not know it (killed? out of memory?)"
        if self.cluster == SLURM:
            self.job.watcher.update()
        return f"ended by {self.cluster} as {self.job.state}"


class ScheduledSite:
    """cluster: slurm or local. parameters: submitit's, for every job. processes: ranks of a run on each of its nodes.
    slots: jobs in the scheduler's hands at a time."""

    def __init__(
        self,
        *,
        task: str,
        cluster: str,
        slots: int,
        processes: int,
        environment: Mapping[str, str],
        max_num_timeout: int,
        parameters: Mapping[str, Any],
    ) -> None:
        self.task, self.cluster, self.slots, self.processes = task, cluster, slots, processes
        self.environment, self.max_num_timeout, self.parameters = environment, max_num_timeout, parameters
        self.asked = time.monotonic()

    def start(self, job: Job) -> Submitted:
        """The job that this run has in the queue already, whoever submitted it, or a new one."""
        folder = job.folder.resolve()
        with _alone(folder):
            return self._queued(folder) or self._new(job, folder)

    def _new(self, job: Job, folder: Path) -> Submitted:
        cell.write(folder, self.task, job.config)
        shutil.rmtree(folder / FOLDER, ignore_errors=True)
        submitted = self._submit(folder, f"{job.config.run.group}: {job.config.run.name} s{job.config.seed}")
        note = {"cluster": self.cluster, "job": submitted.job_id, "submitted": time.time()}
        write_atomically(folder / QUEUE, json.dumps(note))
        return Submitted(self.cluster, submitted, folder)

    def _queued(self, folder: Path) -> Submitted | None:
        if self.cluster != SLURM or not (folder / QUEUE).exists():
            return None
        note = json.loads((folder / QUEUE).read_text(encoding="utf-8"))
        job: submitit.SlurmJob[int] = submitit.SlurmJob(folder / FOLDER, note["job"])
        there = time.time() - note["submitted"] < NEW_SECONDS or _waits(note["job"])
        run = RunRecord(folder)
        gone = job.done(force_check=True) or (job.state == UNKNOWN and not there and life(run) is not Life.alive)
        if gone and not State(run.read().get("state", State.failed)).is_result:
            return None
        return Submitted(self.cluster, job, folder)

    def _submit(self, folder: Path, name: str) -> submitit.Job[int]:
        timeouts = {f"{SLURM}_max_num_timeout": self.max_num_timeout} if self.cluster == SLURM else {}
        try:
            executor = submitit.AutoExecutor(folder / FOLDER, cluster=self.cluster, **timeouts)
            executor.update_parameters(name=name, **self.parameters)
            return executor.submit(Turn(Batch(folder, self.processes, self.environment)))
        except (RuntimeError, FailedJobError, FailedSubmissionError) as error:
            raise ConfigError(f"hydra/launcher=submitit_{self.cluster}: {error}") from error

    def wait(self, started: Sequence[Started], seconds: float) -> None:
        time.sleep(seconds)
        if self.cluster == SLURM and time.monotonic() - self.asked > SACCT_SECONDS:
            submitit.SlurmJob.watcher.update()
            self.asked = time.monotonic()

    def stop(self, started: Sequence[Started]) -> None:
        for each in _submitted(started):
            each.job.cancel(check=False)
        deadline = time.monotonic() + GRACE_SECONDS
        while time.monotonic() < deadline and any(_holds(each) for each in _submitted(started)):
            time.sleep(0.2)

    def parting(self, started: Sequence[Started]) -> str:
        if self.cluster != SLURM:
            return "stopping: every run finishes its step and saves it"
        ids = " ".join(each.job.job_id for each in _submitted(started))
        return f"SLURM keeps the jobs: repeat the command to follow them, or end them by `scancel {ids}`"

    def part(self, started: Sequence[Started]) -> bool:
        if self.cluster == SLURM:
            return False
        self.stop(started)
        return True


def _submitted(started: Sequence[Started]) -> list[Submitted]:
    return [each for each in started if isinstance(each, Submitted)]


def _holds(each: Submitted) -> bool:
    """Whether the job's process is still at its run."""
    record = RunRecord(each.folder)
    return record.read().get("state") == State.running and not record.is_abandoned()


def _waits(job_id: str) -> bool:
    """Whether SLURM still has the job to do, by squeue, which keeps no books and so answers where sacct is off."""
    words = ["squeue", "--noheader", f"--jobs={job_id}", "--states=PENDING,CONFIGURING,RUNNING,SUSPENDED"]
    try:
        done = subprocess.run([*words, "--format=%i"], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return False
    return done.returncode == 0 and bool(done.stdout.strip())


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """One command at a time looks whether the run has a job and, if not, gives it one."""
    with (folder / f".{QUEUE}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
