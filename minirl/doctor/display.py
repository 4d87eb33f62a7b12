"""The doctor's tables and words in a terminal; plain text where it is none."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from minirl.doctor.environment import Row
from minirl.doctor.gap import Gap
from minirl.doctor.verdict import Finding, Level, Picture, overall

COLOURS = {Level.healthy: "green", Level.watch: "yellow", Level.unhealthy: "red"}
WORDS = {
    Level.healthy: "healthy: engine and trainer are as close as they are elsewhere in health",
    Level.watch: "worth watching: follow mismatch/* and routing/* in the runs",
    Level.unhealthy: "not healthy: do not train before this is understood",
}


def environment_table(rows: Sequence[Row]) -> RenderableType:
    table = Table(title="environment", title_justify="left", box=None, pad_edge=False)
    for heading in ("what", "found", "for"):
        table.add_column(heading)
    for row in rows:
        lacking = f"missing: {row.missing}" if row.missing else "-"
        found = Text(row.found) if row.found else Text(lacking, style="red" if row.missing else "dim")
        table.add_row(row.name, found, row.use)
    return table


def gap_table(seen: Picture) -> RenderableType:
    """One column per routing of the trainer."""
    columns = [("live", seen.live)] + (
        [("replaying the engine's experts (R3)", seen.replayed)] if seen.replayed else []
    )
    table = Table(title="d = log pi_old - log mu, sampled tokens", title_justify="left", box=None, pad_edge=False)
    table.add_column("")
    for heading, _ in columns:
        table.add_column(heading, justify="right")
    for name, values in figures([gap for _, gap in columns]):
        table.add_row(name, *values)
    return table


def figures(gaps: Sequence[Gap]) -> list[tuple[str, list[str]]]:
    def each(name: str, values: Sequence[float]) -> tuple[str, list[str]]:
        return name, [f"{value:.3g}" for value in values]

    return [
        ("tokens", [str(gap.num_tokens) for gap in gaps]),
        each("k1", [gap.k1 for gap in gaps]),
        each("k3", [gap.k3 for gap in gaps]),
        each("|d| mean", [gap.mean for gap in gaps]),
        *(each(f"|d| p{100 * share:g}", [gap.quantile(share) for gap in gaps]) for share in (0.5, 0.95, 0.99)),
        each("|d| max", [gap.largest for gap in gaps]),
        ("extreme tokens", [f"{gap.extreme:.3%}" for gap in gaps]),
    ]


def place_table(seen: Picture) -> RenderableType:
    """Mean |d| by position in the response, beside the share of other experts by layer."""
    table = Table(title="where", title_justify="left", box=None, pad_edge=False)
    table.add_column("response token")
    table.add_column("mean |d| live", justify="right")
    table.add_column("R3", justify="right")
    table.add_column("   layer", justify="right")
    table.add_column("other experts", justify="right")
    replayed = seen.replayed.by_position if seen.replayed else ()
    left = [
        (f"from {start}", f"{mean:.3g}", f"{replayed[i]:.3g}" if i < len(replayed) else "")
        for i, (start, mean) in enumerate(zip(seen.live.positions, seen.live.by_position, strict=True))
    ]
    layers = seen.routing.by_layer.items() if seen.routing else ()
    right = [(str(layer), f"{share:.3%}") for layer, share in layers]
    for i in range(max(len(left), len(right))):
        table.add_row(*(left[i] if i < len(left) else ("", "", "")), *(right[i] if i < len(right) else ("", "")))
    return table


def say(console: Console, found: Sequence[Finding]) -> None:
    for finding in found:
        console.print(
            Text.assemble((f"{finding.level.name:<10}", COLOURS[finding.level]), finding.text), soft_wrap=True
        )
    level = overall(list(found))
    console.print(Text(f"\n{WORDS[level]}", style=f"bold {COLOURS[level]}"), soft_wrap=True)
