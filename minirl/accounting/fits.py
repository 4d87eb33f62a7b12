"""What cannot fit, told with the key to change: found by trying the change in the model."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import deepcopy
from itertools import accumulate
from math import ceil

from minirl.accounting.estimate import Estimate
from minirl.accounting.memory import memory
from minirl.accounting.readable import in_bytes
from minirl.config import Config

USABLE = 0.95  # of a device's memory: the rest is the driver's, the allocator's and the communicators'


def problems(config: Config, size: Estimate) -> Iterator[str]:
    """One line for each thing that is too large for the machine."""
    machine = size.machine
    if machine.on_gpu and size.memory.peak > USABLE * machine.device.memory:
        phase = max(size.memory.phases, key=size.memory.phases.__getitem__)
        yield (
            f"{in_bytes(size.memory.peak)} in the {phase} phase on each of {machine.num_ranks} {machine.device.name}, "
            f"which have {in_bytes(machine.device.memory)}: {remedy(config, size)}"
        )
    if size.host > USABLE * machine.host_memory:
        more = "" if machine.is_here else ", or say more with machine.host_memory_gib"
        yield (
            f"{in_bytes(size.host)} in the memory of a node that has {in_bytes(machine.host_memory)}: "
            f"use {host_remedy(config, size)}{more}"
        )


def crowding(sizes: Sequence[Estimate], *, slots: int, num_places: int) -> Iterator[str]:
    """A line for each memory that one run fits into, and not as many as may share it: at worst the largest of `sizes`,
    one for each run to come. All `slots` share the node's memory; num_places: sets of devices, dealt out in turn."""
    machine, slots = sizes[0].machine, min(slots, len(sizes))
    fit = _side_by_side((size.host for size in sizes), machine.host_memory)
    if 0 < fit < slots:
        room = in_bytes(machine.host_memory)
        yield f"{slots} runs at a time in the memory of a node that has {room}: use --jobs={fit}"
    device, share = machine.device, ceil(slots / num_places)
    fit = _side_by_side((size.memory.peak for size in sizes), device.memory)
    if machine.on_gpu and 0 < fit < share:
        room = in_bytes(device.memory)
        yield f"{share} runs at a time on one {device.name}, which has {room}: use --jobs={fit * num_places}"


def _side_by_side(needs: Iterable[float], memory: float) -> int:
    """How many of the largest fit into the memory together."""
    return sum(total <= USABLE * memory for total in accumulate(sorted(needs, reverse=True)))


def host_remedy(config: Config, size: Estimate) -> str:
    """What takes less of a node's memory, and enough: no copy to write checkpoints from; else fewer rollouts at a time;
    else more nodes to share them and the states, of which this machine is one."""
    room, copies = USABLE * size.machine.host_memory, size.host_copies * size.copy_bytes
    if config.train.async_checkpoints and size.host - size.copy_bytes <= room:
        return "train.async_checkpoints=false"
    if not size.machine.on_gpu:
        return "a smaller model" if size.machine.is_here else "a smaller model, or machine.gpu"
    num = config.num_mini_batches
    while num > 1:
        num //= 2
        if copies + (size.host - copies) * num / config.num_mini_batches <= room:
            return f"num_mini_batches={num}"
    if size.machine.is_here:
        return "a machine with more memory"
    nodes = ceil(size.machine.num_ranks / size.machine.devices_per_node)
    return f"machine.num_nodes={ceil(nodes * size.host / room)}"


def remedy(config: Config, size: Estimate) -> str:
    """The first change that helps alone, else all of them together, else more devices."""
    tried = list(_changes(config, size))
    for text, change in tried:
        if _fits(config, size, [change], size.machine.num_ranks):
            return f"use {text}"
    everything = [change for _, change in tried]
    together = " ".join(text for text, _ in tried)
    if everything and _fits(config, size, everything, size.machine.num_ranks):
        return f"use {together}"
    ranks = size.machine.num_ranks
    for factor in (2, 4, 8, 16):
        if _fits(config, size, everything, factor * ranks):
            per_node = config.machine.gpus_per_node or size.machine.devices_per_node
            nodes = -(-(factor * ranks + size.engine_devices) // per_node)
            return f"use {' '.join(filter(None, [f'machine.num_nodes={nodes}', together]))}"
    whole = in_bytes(size.memory.engine + size.memory.evaluator)
    return f"no number of devices helps, engine and evaluator take {whole} of each: choose another model or machine.gpu"


Change = Callable[[Config], None]


def _changes(config: Config, size: Estimate) -> Iterator[tuple[str, Change]]:
    """What makes a device hold less without changing what is computed, the cheapest first."""
    if config.engine.name == "vllm" and not config.engine.sleep and not size.memory.engine_apart:
        yield "engine.sleep=true", lambda c: setattr(c.engine, "sleep", True)
    if not config.train.activation_checkpointing:
        yield "train.activation_checkpointing=true", lambda c: setattr(c.train, "activation_checkpointing", True)
    least = size.work.longest + 1
    tokens = max(config.train.max_tokens_per_micro_batch // 4, least)
    if tokens < config.train.max_tokens_per_micro_batch:
        yield (
            f"train.max_tokens_per_micro_batch={tokens}",
            lambda c: setattr(c.train, "max_tokens_per_micro_batch", tokens),
        )
    rows = config.engine.max_sequences // 8
    if config.engine.name == "torch" and rows:
        yield f"engine.max_sequences={rows}", lambda c: setattr(c.engine, "max_sequences", rows)


def _fits(config: Config, size: Estimate, changes: list[Change], num_ranks: int) -> bool:
    other = deepcopy(config)
    for change in changes:
        change(other)
    peak = memory(other, size.shape, size.work, num_ranks=num_ranks).peak
    return peak <= USABLE * size.machine.device.memory
