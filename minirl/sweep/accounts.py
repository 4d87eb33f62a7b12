"""What the arms of a sweep take, as a dry run tells it: memory of a device, of a node, disk, hours; what cannot fit."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.markup import escape
from rich.table import Table

from minirl.accounting.architecture import architecture, settings_of
from minirl.accounting.estimate import Estimate, estimate, sized
from minirl.accounting.fits import crowding, problems
from minirl.accounting.machine import here, machine
from minirl.accounting.memory import shown_parts
from minirl.accounting.readable import in_bytes, in_count, in_time
from minirl.config import Config, ConfigError
from minirl.sweep.devices import gpus, num_slots, visible_gpus
from minirl.sweep.plan import Cell, PlannedArm, made_start
from minirl.validate import own_gpus


def estimates(arms: Sequence[PlannedArm]) -> dict[str, Estimate]:
    """Of every arm that is not excluded, by name."""
    found = {}
    for planned in arms:
        if planned.excluded is None:
            config = planned.config
            place = machine(config.machine, config.run, visible_gpus())
            found[planned.arm.name] = estimate(config, made_start(config), place)
    return found


def estimates_here(arms: Sequence[PlannedArm], ranks: int) -> dict[str, Estimate]:
    """The same for runs of so many ranks on this machine, whatever `machine` plans for; the seconds are the model's."""
    found = {}
    for planned in arms:
        if planned.excluded is None:
            config = planned.config
            shape = architecture(settings_of(config, made_start(config)))
            found[planned.arm.name] = sized(
                config, shape, here(config.machine, config.run, gpus(config.run), ranks), None
            )
    return found


def alike(sizes: Mapping[str, Estimate]) -> list[tuple[str, Estimate]]:
    """(arms, what each of them takes), those of one size together."""
    groups: list[tuple[list[str], Estimate]] = []
    for name, size in sizes.items():
        members = next((names for names, other in groups if other == size), None)
        if members is None:
            groups.append(([name], size))
        else:
            members.append(name)
    several = len(groups) > 1
    return [(", ".join(names) if several else f"all {len(names)} arms", size) for names, size in groups]


def memory_table(sizes: Mapping[str, Estimate]) -> Table:
    """A column per group of equal arms, a row per part: it stays legible in 80 columns."""
    groups = alike(sizes)
    table = Table(title=f"memory of one device: {where(groups[0][1])}", box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("part")
    for names, _ in groups:
        table.add_column(escape(names), justify="right", max_width=24)
    for part in shown_parts(groups[0][1].memory):
        table.add_row(part, *(in_bytes(shown_parts(size.memory)[part]) for _, size in groups))
    table.add_section()
    for phase in groups[0][1].memory.phases:
        table.add_row(f"{phase} phase", *(in_bytes(size.memory.phases[phase]) for _, size in groups))
    table.add_row("host, a node", *(in_bytes(size.host) for _, size in groups))
    table.add_row("checkpoint", *(in_bytes(size.checkpoint_bytes) for _, size in groups))
    return table


def where(size: Estimate) -> str:
    """The machine in words."""
    place = size.machine
    nodes = place.num_ranks // place.devices_per_node
    of = f"{nodes} nodes of {place.devices_per_node}" if nodes > 1 else f"{place.num_ranks}"
    if size.engine_devices:
        of = f"{place.num_ranks} and, for the engine, {size.engine_devices}"
    return f"{of} {place.device.name}, {in_bytes(place.device.memory)}"


def sizes_line(size: Estimate) -> str:
    """Parameters, routes and disk of a run."""
    shape = size.shape
    vocabulary = "" if shape.vocab_size is not None else " (without the vocabulary's)"
    met = f", {in_count(shape.met)} of them met by a token" if shape.num_experts else ""
    routes = f"routes ≤ {in_bytes(size.work.route_bytes)} a step" if size.work.route_bytes else "no routes (dense)"
    return (
        f"  {in_count(shape.parameters)} parameters{vocabulary}{met}; {routes}; "
        f"{in_bytes(size.disk)} of checkpoints a run while one is replaced"
    )


def time_line(size: Estimate) -> str:
    """Seconds of an update by phase, and what the figure rests on."""
    spent = size.seconds
    phases = ", ".join(
        f"{name} {in_time(value)}"
        for name, value in (
            ("rollout", spent.rollout),
            ("pi_old", spent.old),
            ("update", spent.update),
            ("eval", spent.eval),
        )
    )
    unit = "GPU-hours" if size.machine.on_gpu else "hours of its processes"
    unknown = "" if size.evaluated is not None else "; no evaluation counted: how many problems it has is not known yet"
    return (
        f"  an update {in_time(spent.total)} ({phases}), a run {size.num_updates} of them, "
        f"{size.device_hours:.3g} {unit}; {_source(size)}{unknown}"
    )


def _source(size: Estimate) -> str:
    """What the figures of time rest on."""
    found = size.measured
    if found is None:
        return f"responses of {size.work.expected:.0f} tokens assumed, no recorded run to calibrate by"
    several = f"the last {len(found.runs)} runs like it" if len(found.runs) > 1 else f"run {found.runs[0]}"
    return f"as {several} measured: {found.factor:.2g} times the model, responses of {found.length:.0f} tokens"


def total_line(sizes: Mapping[str, Estimate], cells: Sequence[Cell]) -> str:
    """All runs of the sweep, on all devices."""
    running = [sizes[cell.arm] for cell in cells if cell.runs]
    hours, disk = sum(size.device_hours for size in running), sum(size.disk for size in running)
    unit = "GPU-hours" if any(size.machine.on_gpu for size in running) else "hours of one process"
    return f"{hours:.3g} {unit}, {in_bytes(disk)} of checkpoints in all"


def refuse_what_cannot_fit(arms: Sequence[PlannedArm], sizes: Mapping[str, Estimate], cells: Sequence[Cell]) -> None:
    """Raises ConfigError with a line for each thing too large, naming the key to change and the arms that need it.
    cells: those whose checkpoints the disk of this machine is to hold."""
    lines: dict[str, list[str]] = {}
    for planned in arms:
        if planned.arm.name in sizes:
            for line in problems(planned.config, sizes[planned.arm.name]):
                lines.setdefault(line, []).append(planned.arm.name)
    found = [f"{', '.join(names) if len(names) < len(sizes) else 'every arm'}: {line}" for line, names in lines.items()]
    found += _disk(Path(arms[0].config.run.outputs), sizes, cells)
    if found:
        raise ConfigError("\n".join(found))


def refuse_crowding(config: Config, sizes: Mapping[str, Estimate], cells: Sequence[Cell], *, jobs: int | None) -> None:
    """Raises ConfigError where the runs of `cells`, each of which fits, do not fit side by side. config: of any of
    them, for what they have in common; jobs: runs at a time as asked, None for as many as there are devices."""
    ranks, engine_gpus, names = sizes[cells[0].arm].machine.num_ranks, own_gpus(config.engine), gpus(config.run)
    slots = num_slots(config.run, jobs, processes=ranks, engine_gpus=engine_gpus)
    num_places = max(len(names) // (ranks + engine_gpus), 1)
    found = list(crowding([sizes[cell.arm] for cell in cells], slots=slots, num_places=num_places))
    if found:
        raise ConfigError("\n".join(found))


def _disk(outputs: Path, sizes: Mapping[str, Estimate], cells: Sequence[Cell]) -> Iterator[str]:
    """Of runs that are not begun; what is there has its place already."""
    whole = outputs.absolute()
    there = next(folder for folder in (whole, *whole.parents) if folder.is_dir())
    free = shutil.disk_usage(there).free
    needed = sum(sizes[cell.arm].disk for cell in cells if cell.runs and not Path(str(cell.folder)).exists())
    if needed > free:
        yield (
            f"{in_bytes(needed)} of checkpoints, {in_bytes(free)} are free at {there}: use another run.outputs, or a "
            "smaller train.num_checkpoints"
        )
