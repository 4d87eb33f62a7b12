"""What a person sees of one run: a bar on a terminal, plain lines in a log."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from minirl.interfaces import Tracker

QUIET_SECONDS = 5.0  # between two plain lines: a log stays readable, a watcher is not left alone

SHOWN = {  # column -> metric
    "reward": "reward/mean",
    "eval": "eval/avg",
    "|A|": "reward/advantage_abs",
    "grad": "optim/grad_norm",
    "k3": "mismatch/kl_k3",
}


class ConsoleTracker:
    """Passes everything on to the tracker it wraps and shows progress; silent on ranks above 0."""

    def __init__(self, inner: Tracker, num_updates: int, rank: int) -> None:
        self.inner, self.num_updates, self.silent = inner, num_updates, rank != 0
        self.latest: dict[str, float] = {}
        self.begun: tuple[float, int] | None = None
        self.shown = 0.0
        self.bar: Progress | None = None
        console = Console()
        if console.is_terminal and not self.silent:
            columns = (TextColumn("update"), BarColumn(), TextColumn("{task.fields[line]}"), TimeRemainingColumn())
            self.bar = Progress(*columns, console=console)
            self.task = self.bar.add_task("updates", total=num_updates, line="")
            self.bar.start()

    def log(self, version: int, values: Mapping[str, float]) -> None:
        self.latest |= values
        self.inner.log(version, values)

    def write(self, version: int, values: Mapping[str, float]) -> None:
        self.latest |= values
        self.inner.write(version, values)
        if not self.silent:
            self._show(version)

    def samples(self, version: int, rows: Sequence[Mapping[str, object]]) -> None:
        self.inner.samples(version, rows)

    def histograms(self, version: int, counts: Mapping[str, tuple[Sequence[float], Sequence[float]]]) -> None:
        self.inner.histograms(version, counts)

    def truncate(self, version: int) -> None:
        self.inner.truncate(version)
        if version and not self.silent:
            print(f"resuming at update {version}")

    def close(self, ending: str) -> None:
        if self.bar is not None:
            self.bar.stop()
        self.inner.close(ending)

    def _show(self, version: int) -> None:
        now = time.monotonic()
        if self.begun is None:
            self.begun = now, version
        figures = "  ".join(f"{name} {self.latest[key]:.3g}" for name, key in SHOWN.items() if key in self.latest)
        line = f"{version}/{self.num_updates}  {figures}"
        if self.bar is not None:
            self.bar.update(self.task, completed=version, line=line)
        elif now - self.shown > QUIET_SECONDS or version == self.num_updates:
            self.shown = now
            began, first = self.begun
            pace = (now - began) / max(version - first, 1)
            left = time.strftime("%H:%M:%S", time.gmtime(pace * (self.num_updates - version)))
            print(f"update {line}" + (f"  {pace:.2f} s/update  {left} left" if version > first else ""), flush=True)
