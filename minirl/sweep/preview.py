"""`--dry-run`: every arm with what it is, what it takes, and the line that a person could type for it."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from minirl.accounting.estimate import Estimate
from minirl.compose import override
from minirl.config import Config
from minirl.identity import coldstart_key
from minirl.sweep.accounts import (
    estimates,
    memory_table,
    refuse_what_cannot_fit,
    sizes_line,
    time_line,
    total_line,
)
from minirl.sweep.expand import SEED, Design
from minirl.sweep.plan import Cell, PlannedArm, made_start, proportional

COLUMNS = (
    ("prompts", 7),
    ("responses", 9),
    ("mini-batches, updates per batch", 13),
    ("on- policy", 6),
    ("tokens per step ≤", 10),
)


def show(
    design: Design, arms: Sequence[PlannedArm], cells: Sequence[Cell], starts: Mapping[str, str], console: Console
) -> None:
    """Prints the plan. cells: of `arms`, all seeds. Raises ConfigError at the end where something cannot fit."""
    scaled, sizes = proportional(arms, starts), estimates(arms)
    to_run = sum(cell.runs for cell in cells)
    console.print(_table(design, arms, cells, sizes))
    for planned in arms:
        _say(console, "")
        for line in describe(planned, cells, scaled.get(planned.arm.name), design, sizes):
            _say(console, line)
    _say(console, "")
    if sizes:
        console.print(memory_table(sizes))
    _say(console, f"{to_run} runs, seeds {', '.join(map(str, design.seeds))}, scale {design.scale}")
    _say(console, total_line(sizes, cells))
    for line in _start_lines(arms):
        _say(console, line)
    elsewhere = arms[0].config.machine.gpu is not None  # of that machine's disk nothing is known
    refuse_what_cannot_fit(arms, sizes, [] if elsewhere else cells)


def _say(console: Console, line: str) -> None:
    console.print(line, markup=False, highlight=False, soft_wrap=True)


def _table(design: Design, arms: Sequence[PlannedArm], cells: Sequence[Cell], sizes: Mapping[str, Estimate]) -> Table:
    table = Table(title=escape(design.title), box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column("arm", max_width=28)
    table.add_column("identity", no_wrap=True)
    for name, width in COLUMNS:
        table.add_column(name, justify="right", width=width)
    for planned in arms:
        if planned.excluded:
            table.add_row(escape(planned.arm.name), "excluded")
            continue
        batch = sizes[planned.arm.name].work
        table.add_row(
            escape(planned.arm.name),
            _cell(planned, cells).identity,
            str(batch.prompts),
            str(batch.responses),
            str(batch.num_mini_batches),
            "yes" if batch.num_mini_batches == 1 else "no",
            str(batch.tokens),
        )
    return table


def _cell(planned: PlannedArm, cells: Sequence[Cell]) -> Cell:
    return next(cell for cell in cells if cell.arm == planned.arm.name)


def describe(
    planned: PlannedArm, cells: Sequence[Cell], scaled: str | None, design: Design, sizes: Mapping[str, Estimate]
) -> list[str]:
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
    size = sizes[planned.arm.name]
    lines += [sizes_line(size), time_line(size), evaluation(config)]
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


def evaluation(config: Config) -> str:
    """The evaluation block as it takes effect, null keys taken from sampling."""
    part, sampling = config.eval, config.sampling
    temperature = sampling.temperature if part.temperature is None else part.temperature
    limit = sampling.max_response_tokens if part.max_response_tokens is None else part.max_response_tokens
    number = "all" if part.num_problems is None else part.num_problems
    share = "" if part.top_p is None else f", top-p {part.top_p:g}"
    sets = f" of each of {', '.join(config.task.eval_sets)}" if config.task.eval_sets else ""
    numerics = "the engine of the rollouts" if part.numerics is None else f"{part.numerics} numerics"
    return (
        f"  eval every {part.every} of {config.num_updates} updates: {number} problems{sets} x {part.num_samples} "
        f"samples, temperature {temperature:g}{share}, at most {limit} tokens, {numerics}, live routing"
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
