"""What is installed here, and what is missing for what."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

import torch

from minirl.config import Config
from minirl.engine.vllm_engine import BUILT_FOR, fp8_is_native, installed


@dataclass(frozen=True, slots=True)
class Row:
    """name · found: what is there, None if nothing is · use: what it is good for · missing: how to get it where the
    configuration asks for it, empty where it does not."""

    name: str
    found: str | None
    use: str
    missing: str


# packages of the extras: what they are for, which extra brings them
OPTIONAL = {
    "reasoning-gym": ("task=reasoning_gym", "pip install 'minirl[tasks]'"),
    "math-verify": ("grading of mathematics", "pip install 'minirl[math]'"),
    "submitit": ("sweeps on SLURM", "pip install 'minirl[slurm]'"),
    "ray": ("sweeps on Ray", "pip install 'minirl[ray]'"),
}


def environment(config: Config) -> list[Row]:
    """The machine, the packages every run needs, then those that this configuration or another may ask for."""
    rows = [
        Row("python", platform.python_version(), "everything", ""),
        Row("cores", f"{len(os.sched_getaffinity(0))}, run.num_threads={config.run.num_threads}", "everything", ""),
        *_gpus(config),
        *(Row(name, package(name), "everything", "") for name in ("torch", "transformers", "wandb")),
        _vllm(config),
    ]
    for name, (use, how) in OPTIONAL.items():
        asked = name == "reasoning-gym" and config.task.name == "reasoning_gym"
        rows.append(Row(name, package(name), use, how if asked else ""))
    return rows


def package(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _vllm(config: Config) -> Row:
    how = f"pip install 'vllm=={BUILT_FOR}.*' (GPU), docs/engines.md (CPU)" if config.engine.name == "vllm" else ""
    return Row("vllm", installed(), f"engine=vllm (built for {BUILT_FOR})", how)


def _gpus(config: Config) -> list[Row]:
    if not torch.cuda.is_available():
        missing = "a CUDA device and a CUDA build of torch" if config.run.device == "cuda" else ""
        return [Row("gpu", None, "run.device=cuda", missing)]
    rows = []
    for index in range(torch.cuda.device_count()):
        device = torch.cuda.get_device_properties(index)
        fp8 = "fp8 in hardware" if fp8_is_native() else "no fp8 in hardware"
        found = f"{device.name}, {device.total_memory >> 30} GiB, capability {device.major}.{device.minor}, {fp8}"
        rows.append(Row(f"gpu {index}", found, "run.device=cuda", ""))
    return rows
