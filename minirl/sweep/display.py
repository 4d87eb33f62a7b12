"""What a person sees of a sweep: a live table on a terminal, plain lines elsewhere; always with the time left."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.progress_bar import ProgressBar
from rich.table import Table

from minirl.clock import duration
from minirl.record import State
from minirl.sweep.launch import Job
from minirl.sweep.outcome import BUSY, last_words
from minirl.sweep.status import Standing, Status, read, seconds_left

BAR_WIDTH = 12
LINE_SECONDS = 15.0  # between two plain lines: a log stays readable, a watcher is not left alone

STYLES: dict[str, str] = {
    State.running: "cyan",
    State.finished: "green",
    State.failed: "bold red",
    Standing.lost: "bold red",
    Standing.unknown: "bold red",
    Standing.queued: "blue",
    State.collapsed: "yellow",
    State.diverged: "yellow",
    State.degenerate: "yellow",
    State.interrupted: "magenta",
}
LOUD = (State.failed, Standing.lost, Standing.unknown)  # written in capitals: colour alone says nothing in a log


def table(statuses: Sequence[Status], title: str, left: float | None) -> Table:
    """One line per cell."""
    bars = any(each.state == State.running for each in statuses)
    shown = Table(title=escape(title), box=SIMPLE_HEAD, caption=summary(statuses, left), caption_justify="left")
    shown.add_column("arm", overflow="fold")
    shown.add_column("seed", justify="right")
    shown.add_column("state")
    if bars:
        shown.add_column("", width=BAR_WIDTH)
    for name in ("update", "reward", "eval", "tokens/s", "left"):
        shown.add_column(name, justify="right")
    shown.add_column("remark", overflow="fold")
    for each in statuses:
        state = each.state.upper() if each.state in LOUD else each.state
        style = STYLES.get(each.state, "dim")
        shown.add_row(
            escape(each.arm),
            str(each.seed),
            f"[{style}]{state}[/]",
            *([bar(each)] if bars else []),
            f"{each.updates}/{each.num_updates}" if each.num_updates else "",
            number(each.reward),
            number(each.score),
            f"{each.throughput:.0f}" if each.throughput is not None else "",
            duration(each.seconds_left) if each.state == State.running else "",
            escape((each.remark or "").splitlines()[0] if each.remark else ""),
        )
    return shown


def bar(status: Status) -> ProgressBar | str:
    """How far a run is."""
    if status.state != State.running or not status.num_updates:
        return ""
    return ProgressBar(total=status.num_updates, completed=status.updates, width=BAR_WIDTH)


def code_line(statuses: Sequence[Status]) -> str | None:
    """Says so where runs that are compared were made by several versions of the code."""
    found = Counter(code for each in statuses for code in each.codes)
    if len(found) < 2:
        return None
    parts = ", ".join(f"{code} ({count} run{'s' if count > 1 else ''})" for code, count in found.items())
    mixed = [f"{each.arm} s{each.seed}" for each in statuses if len(each.codes) > 1]
    both = f"; changed in the middle of {', '.join(mixed)}" if mixed else ""
    return f"made by {len(found)} versions of the code: {parts}{both}"


def summary(statuses: Sequence[Status], left: float | None) -> str:
    """How many are how, and how long it takes."""
    counts = Counter(each.state for each in statuses)
    parts = [f"{count} {state}" for state, count in counts.items()]
    goes_on = counts[State.running] or counts[Standing.pending]
    return ", ".join(parts) + (f"; about {duration(left)} left" if goes_on and left is not None else "")


def number(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"


class Display:
    """Watches a launch (`launch.Watcher`) by reading the sweep's folder, as `minirl status` does."""

    def __init__(self, folder: Path, slots: int, console: Console) -> None:
        self.folder, self.slots, self.console = folder, slots, console
        self.spoken = time.monotonic()
        self.live = Live(console=console, refresh_per_second=2, transient=True) if console.is_terminal else None
        if self.live:
            self.live.start()

    def started(self, job: Job) -> None:
        self._say(f"started   {_name(job)}")

    def ended(self, job: Job, state: str) -> None:
        if self.live is not None and state not in LOUD:
            return  # the table tells
        statuses = read(self.folder)
        done = next((each for each in statuses if each.folder == str(job.folder)), None)
        figures = (
            f"  reward {number(done.reward)}  eval {number(done.score)}" if done and done.score is not None else ""
        )
        why = f"  {done.remark.splitlines()[0]}" if done and done.remark else ""
        word = state.upper() if state in LOUD else "runs elsewhere" if state == BUSY else state
        self.said(f"{word:<9} {_name(job)}{figures}{why}")
        if state in LOUD:
            for line in last_words(job.folder):
                self.said(f"    | {line}")
        self._say(f"          {summary(statuses, seconds_left(statuses, self.slots))}")

    def said(self, line: str) -> None:
        self.spoken = time.monotonic()
        self.console.print(line, markup=False, highlight=False, soft_wrap=True)

    def tick(self) -> None:
        if self.live is None and time.monotonic() - self.spoken < LINE_SECONDS:
            return
        statuses = read(self.folder)
        left = seconds_left(statuses, self.slots)
        if self.live:
            self.live.update(table(statuses, self.folder.name, left))
            return
        running = [
            f"{each.arm} s{each.seed} {each.updates}/{each.num_updates or '?'}"
            for each in statuses
            if each.state == State.running
        ]
        if running:
            self._say(f"          {'; '.join(running)}; about {duration(left)} left")

    def close(self) -> None:
        if self.live:
            self.live.stop()

    def _say(self, line: str) -> None:
        if self.live is None:
            self.said(line)


def _name(job: Job) -> str:
    return f"{job.config.run.name} s{job.config.seed}"
