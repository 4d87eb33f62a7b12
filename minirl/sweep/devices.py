"""How many runs fit side by side on this machine, and which GPU each one gets. Asks no CUDA library."""

from __future__ import annotations

import os
from itertools import cycle, islice
from pathlib import Path

from minirl.config import ConfigError, RunConfig


def visible_gpus() -> list[str]:
    """The GPUs that this process may use, by the names that CUDA_VISIBLE_DEVICES takes."""
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is not None:
        return [name for name in chosen.split(",") if name]
    return sorted(path.name.removeprefix("nvidia") for path in Path("/dev").glob("nvidia[0-9]*"))


def gpus(run: RunConfig) -> list[str]:
    """The GPUs that runs of this configuration use; none on a CPU."""
    return [] if run.device == "cpu" else visible_gpus()


def num_slots(run: RunConfig, asked: int | None, *, processes: int, engine_gpus: int) -> int:
    """Runs side by side: as asked, else one per `processes` GPUs and those that its engine has to itself, else per
    `processes` x `run.num_threads` cores."""
    names = gpus(run)
    if names and len(names) < processes + engine_gpus:
        engine = f" and the {engine_gpus} of its engine (engine.placement=separate)" if engine_gpus else ""
        raise ConfigError(
            f"hydra.launcher.processes={processes}: this machine has {len(names)} GPUs for a run's ranks{engine}"
        )
    cores = len(os.sched_getaffinity(0))
    return asked or len(names) // (processes + engine_gpus) or max(cores // (run.num_threads * processes), 1)


def threads(run: RunConfig) -> dict[str, str]:
    """What every process of a run has in its environment."""
    return {name: str(run.num_threads) for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")}


def environments(run: RunConfig, slots: int, size: int) -> list[dict[str, str]]:
    """What the processes of each slot have in their environment: threads, and where there are GPUs `size` of them."""
    names = gpus(run)
    if not names:
        return [threads(run)] * slots
    sets = [",".join(names[start : start + size]) for start in range(0, len(names) - size + 1, size)]
    return [threads(run) | {"CUDA_VISIBLE_DEVICES": name} for name in islice(cycle(sets), slots)]
