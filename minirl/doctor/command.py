"""`minirl doctor`, from a configuration to words."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from minirl.config import Config
from minirl.doctor.display import environment_table, gap_table, place_table, say
from minirl.doctor.environment import environment
from minirl.doctor.gap import gap, routing
from minirl.doctor.measure import Measurement, measure
from minirl.doctor.plot import write_plot
from minirl.doctor.verdict import Finding, Level, Picture, findings, overall


def diagnose(config: Config, checkpoint: Path | None, plot: Path, console: Console) -> bool:
    """Shows the environment and the mismatch, writes the plot; whether nothing is unhealthy."""
    rows = environment(config)
    console.print(environment_table(rows))
    console.print()
    weights = "its own weights, before any training" if checkpoint is None else str(checkpoint)
    engine = f"engine={config.engine.name} engine.numerics={config.engine.numerics}"
    title = f"model={config.model.name} ({weights}), {engine}, train.compute_dtype={config.train.compute_dtype}"
    console.print(title, soft_wrap=True)
    seen = picture(config, measure(config, checkpoint))
    if seen is None:
        say(console, [Finding(Level.unhealthy, "no response has finite log-probabilities: nothing can be compared")])
        return False
    for part in (gap_table(seen), place_table(seen)):
        console.print(part)
        console.print()
    found = findings(config, seen)
    say(console, found)
    write_plot(seen, title, plot)
    console.print(f"plot: {plot}", soft_wrap=True)
    return overall(found) is not Level.unhealthy


def picture(config: Config, measured: Measurement) -> Picture | None:
    """The figures of a measurement; None where no response is valid."""
    rollouts, ratio = measured.rollouts, config.metrics.extreme_ratio
    live = gap(rollouts, measured.live, extreme_ratio=ratio)
    if live is None:
        return None
    replayed = None if measured.replayed is None else gap(rollouts, measured.replayed, extreme_ratio=ratio)
    return Picture(
        live=live,
        replayed=replayed,
        routing=routing(measured, measured.live, floor=config.metrics.min_route_overlap),
        num_invalid=int((~rollouts.valid).sum()),
        num_responses=len(rollouts),
    )
