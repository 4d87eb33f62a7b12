"""`--dry-run`: every arm with what it is, what it takes, and the line that a person could type for it."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from minirl.compose import override
from minirl.config import Config
from minirl.identity import coldstart_key
from minirl.sweep.estimate import Estimate, estimate, in_bytes, in_count
from minirl.sweep.expand import SEED, Design
from minirl.sweep.plan import Cell, PlannedArm, made_start, proportional

COLUMNS = (("prompts", 7), ("responses", 9), ("updates per batch", 9), ("on- policy", 6), ("tokens per step ≤", 10))


def show(
    design: Design, arms: Sequence[PlannedArm], cells: Sequence[Cell], starts: Mapping[str, str], console: Console
) -> None:
    """Prints the plan. cells: of `arms`, all seeds."""
    scaled = proportional(arms, starts)
    to_run = sum(cell.runs for cell in cells)
    console.print(_table(design, arms, cells))
    for planned in arms:
        _say(console, "")
        for line in describe(planned, cells, scaled.get(planned.arm.name), design):
            _say(console, line)
    _say(console, "")
    _say(console, f"{to_run} runs, seeds {', '.join(map(str, design.seeds))}, scale {design.scale}")
    for line in _start_lines(arms):
        _say(console, line)


def _say(console: Console, line: str) -> None:
    console.print(line, markup=False, highlight=False, soft_wrap=True)


def _table(design: Design, arms: Sequence[PlannedArm], cells: Sequence[Cell]) -> Table:
    table = Table(title=escape(design.title), box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column("arm", max_width=28)
    table.add_column("identity", no_wrap=True)
    for name, width in COLUMNS:
        table.add_column(name, justify="right", width=width)
    for planned in arms:
        config, size = planned.config, estimate(planned.config, made_start(planned.config))
        table.add_row(
            escape(planned.arm.name),
            "excluded" if planned.excluded else _cell(planned, cells).identity,
            str(size.prompts),
            str(size.responses),
            str(config.num_mini_batches),
            "yes" if config.num_mini_batches == 1 else "no",
            str(size.tokens),
        )
    return table


def _cell(planned: PlannedArm, cells: Sequence[Cell]) -> Cell:
    return next(cell for cell in cells if cell.arm == planned.arm.name)


def describe(planned: PlannedArm, cells: Sequence[Cell], scaled: str | None, design: Design) -> list[str]:
    """An arm in lines: relations to other arms, sizes, evaluation, notes, and how to run it by hand."""
    lines = [planned.arm.name]
    if planned.excluded:
        return [*lines, f"  excluded: {planned.excluded}"]
    same = _cell(planned, cells).same_as
    if same:
        lines.append(f"  same as {same}: one run, shown twice")
    elif scaled:
        lines.append(f"  same up to a constant factor of the loss as {scaled}")
    config = planned.config
    lines += [sizes(estimate(config, made_start(config))), evaluation(config)]
    lines += [f"  note: {note}" for note in planned.notes]
    command = [
        *planned.overrides,
        f"{SEED}={design.seeds[0]}",
        override("run.name", planned.arm.name),
        override("run.group", design.name),
    ]
    return [*lines, f"  minirl run {' '.join(map(in_shell, command))}"]


def in_shell(word: str) -> str:
    """The word as a shell takes it, in double quotes where they are enough: Hydra uses single ones itself."""
    if shlex.quote(word) == word:
        return word
    return shlex.quote(word) if any(sign in word for sign in '"$`\\!') else f'"{word}"'


def sizes(size: Estimate) -> str:
    """One line on memory and disk."""
    vocabulary = "" if size.whole else " (without the vocabulary's)"
    routes = f", routes ≤ {in_bytes(size.route_bytes)} a step" if size.route_bytes else ", no routes (dense)"
    return (
        f"  {in_count(size.parameters)} parameters{vocabulary}: {in_bytes(size.memory)} of memory with gradient, Adam "
        f"and engine, {in_bytes(size.disk)} of checkpoints a run{routes}"
    )


def evaluation(config: Config) -> str:
    """The evaluation block as it takes effect, null keys taken from sampling."""
    part, sampling = config.eval, config.sampling
    temperature = sampling.temperature if part.temperature is None else part.temperature
    limit = sampling.max_response_tokens if part.max_response_tokens is None else part.max_response_tokens
    return (
        f"  eval every {part.every} of {config.num_updates} updates: {part.num_problems} problems x {part.num_samples} "
        f"samples, temperature {temperature:g}, at most {limit} tokens, {part.numerics} numerics, live routing"
    )


def _start_lines(arms: Sequence[PlannedArm]) -> list[str]:
    lines = {}
    for planned in arms:
        folder = made_start(planned.config)
        lines[coldstart_key(planned.config)] = (
            f"cold start {folder}: there"
            if folder
            else f"cold start {coldstart_key(planned.config)}: made first; identities will follow from its weights"
        )
    return list(lines.values())
