"""How many runs fit side by side on this machine, and which GPU each one gets. Asks no CUDA library."""

from __future__ import annotations

import os
from itertools import cycle, islice
from pathlib import Path

from minirl.config import RunConfig


def visible_gpus() -> list[str]:
    """The GPUs that this process may use, by the names that CUDA_VISIBLE_DEVICES takes."""
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is not None:
        return [name for name in chosen.split(",") if name]
    return sorted(path.name.removeprefix("nvidia") for path in Path("/dev").glob("nvidia[0-9]*"))


def gpus(run: RunConfig) -> list[str]:
    """The GPUs that runs of this configuration use; none on a CPU."""
    return [] if run.device == "cpu" else visible_gpus()


def num_slots(run: RunConfig, asked: int | None) -> int:
    """Runs side by side: as asked, else one per GPU, else one per `run.num_threads` cores."""
    cores = len(os.sched_getaffinity(0))
    return asked or len(gpus(run)) or max(cores // run.num_threads, 1)


def environments(run: RunConfig, slots: int) -> list[dict[str, str]]:
    """What the processes of each slot have in their environment: threads, and a GPU where there are any."""
    threads = {name: str(run.num_threads) for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")}
    names = gpus(run)
    if not names:
        return [threads] * slots
    return [threads | {"CUDA_VISIBLE_DEVICES": name} for name in islice(cycle(names), slots)]
