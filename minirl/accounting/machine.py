"""What a run is placed on: GPUs by name with the figures of their data sheets, or the processors of this host."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from minirl.config import ConfigError, Gpu, MachineConfig, RunConfig
from minirl.validate import num_ranks

GIB = 1 << 30


class UnknownGpu(ConfigError):
    """Of this machine's GPU there are no figures."""


@dataclass(frozen=True)
class Device:
    """memory in bytes, arithmetic in floating-point operations per second (dense bf16), bandwidth of its memory in
    bytes per second."""

    name: str
    memory: float
    arithmetic: float
    bandwidth: float


# memory in GiB as the driver shows it, dense bf16 TFLOP/s, TB/s: the makers' data sheets
SHEETS: dict[Gpu, tuple[float, float, float]] = {
    Gpu.a100_40gb: (40, 312, 1.555),
    Gpu.a100_80gb: (80, 312, 2.039),
    Gpu.h100: (80, 989, 3.35),
    Gpu.h200: (140, 989, 4.8),
    Gpu.h20: (96, 148, 4.0),
    Gpu.b200: (180, 2250, 8.0),
    Gpu.l40s: (45, 362, 0.864),
    Gpu.rtx_4090: (24, 165, 1.008),
}
# One thread of a laptop on the toy models: what training and sampling reach, overhead included (docs/accounting.md).
THREAD_ARITHMETIC, THREAD_BANDWIDTH = 2.0e10, 5.0e9


@dataclass(frozen=True)
class Machine:
    """num_ranks processes, one device each, devices_per_node of them beside the host_memory (bytes) of a node. is_here:
    it is this host as it was found, and no plan that could say more of it."""

    device: Device
    num_ranks: int
    devices_per_node: int
    host_memory: float
    on_gpu: bool
    is_here: bool

    def without(self, gpus: int) -> Machine:
        """What is left to the trainer beside an engine with so many GPUs to itself."""
        ranks = self.num_ranks - gpus
        return replace(self, num_ranks=ranks, devices_per_node=min(self.devices_per_node, ranks))


def machine(config: MachineConfig, run: RunConfig, visible: Sequence[str]) -> Machine:
    """As `machine.*` says, else as found: `visible` GPUs, or this host's processors, one process for each rank that
    torchrun has started. A single run without torchrun uses one GPU."""
    host = config.host_memory_gib * GIB if config.host_memory_gib is not None else _host_memory()
    if config.gpu is None and (run.device == "cpu" or not visible):
        if config.gpus_per_node is not None:
            raise ConfigError(
                f"machine.gpus_per_node={config.gpus_per_node}: of which kind? set machine.gpu to one of "
                f"{', '.join(Gpu)}"
            )
        return Machine(_processors(run, host), num_ranks(), num_ranks(), host, on_gpu=False, is_here=False)
    per_node = config.gpus_per_node or min(num_ranks(), max(len(visible), 1))
    sheet = _sheet(config.gpu or _kind_here())
    return Machine(sheet, config.num_nodes * per_node, per_node, host, on_gpu=True, is_here=False)


def here(config: MachineConfig, run: RunConfig, visible: Sequence[str], ranks: int) -> Machine:
    """This host, as a run of so many ranks has it that is started here. Where it has GPUs, they are of the kind that
    the driver says, or `machine.gpu` where that has no row; where it has none, a `machine` with GPUs is another one,
    and nothing of it counts. `machine.host_memory_gib` can leave runs less memory than there is, not give them more."""
    elsewhere, host = config.gpu is not None and not visible, _host_memory()
    if config.host_memory_gib is not None and not elsewhere:
        host = min(host, config.host_memory_gib * GIB)
    if run.device == "cpu" or not visible:
        return Machine(_processors(run, host), ranks, ranks, host, on_gpu=False, is_here=True)
    sheet = _sheet(kind_of(_model_here()) or config.gpu or _kind_here())
    return Machine(sheet, ranks, ranks, host, on_gpu=True, is_here=True)


def _processors(run: RunConfig, host: float) -> Device:
    return Device("CPU", host, THREAD_ARITHMETIC * run.num_threads, THREAD_BANDWIDTH * run.num_threads)


def _sheet(kind: Gpu) -> Device:
    memory, arithmetic, bandwidth = SHEETS[kind]
    return Device(kind.value, memory * GIB, arithmetic * 1e12, bandwidth * 1e12)


def _host_memory() -> float:
    """Bytes that the processes of this host may use: of the machine, or of the container around them."""
    whole = float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    limit = Path("/sys/fs/cgroup/memory.max")
    text = limit.read_text().strip() if limit.is_file() else "max"
    return min(whole, float(text)) if text.isdecimal() else whole


def kind_of(model: str) -> Gpu | None:
    """The row of a GPU that the driver calls by this name: every part of the row's name is in it."""
    name = model.lower().replace("-", " ")
    return next((kind for kind in Gpu if all(part in name for part in kind.split("_"))), None)


def _model_here() -> str:
    """What the driver calls the first GPU."""
    files = sorted(Path("/proc/driver/nvidia/gpus").glob("*/information"))
    lines = files[0].read_text().splitlines() if files else []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("Model")), "of this machine")


def _kind_here() -> Gpu:
    model = _model_here()
    found = kind_of(model)
    if found is None:
        raise UnknownGpu(f"the GPU {model} has no row in minirl/accounting/machine.py: set machine.gpu to the nearest")
    return found
