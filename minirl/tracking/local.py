"""`metrics.jsonl`: the truth about a run. Every other record of its numbers is a copy of these rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from minirl.tracking.jsonlines import JsonLines


class Mirror(Protocol):
    """Gets each row after it has been written, as it was written."""

    def begin(self, version: int) -> None:
        """Once, before the first row: the run starts at `version`, and the files hold what is before it."""

    def row(self, row: Mapping[str, object]) -> None: ...

    def samples(self, version: int, rows: Sequence[Mapping[str, object]]) -> None: ...

    def histograms(self, version: int, counts: Mapping[str, tuple[Sequence[float], Sequence[float]]]) -> None: ...

    def close(self, ending: str) -> None: ...


class LocalTracker:
    """One row per version in `metrics.jsonl`, sampled texts in `samples.jsonl`, counts in `histograms.jsonl`.

    Figures logged but not yet written live in memory only: whatever kills the run between the two, the row's version
    is not behind the newest checkpoint, and its figures are made again on resume. A figure that is not finite is
    written as null: it was computed, and it is not a number; a figure that was not computed is absent.
    """

    def __init__(self, folder: Path, mirrors: Sequence[Mirror]) -> None:
        self._metrics = JsonLines(folder / "metrics.jsonl")
        self._samples = JsonLines(folder / "samples.jsonl")
        self._histograms = JsonLines(folder / "histograms.jsonl")
        self._mirrors = mirrors
        self._version: int | None = None
        self._pending: dict[str, float] = {}

    def log(self, version: int, values: Mapping[str, float]) -> None:
        """Gathers figures of the row of `version`."""
        if self._pending and version != self._version:
            raise ValueError(f"figures of version {version} while the row of version {self._version} is not written")
        if twice := self._pending.keys() & values.keys():
            raise ValueError(f"{min(twice)} has two values at version {version}")
        self._version = version
        self._pending |= {name: float(value) for name, value in values.items()}

    def write(self, version: int, values: Mapping[str, float]) -> None:
        """Completes the row of `version` and appends it."""
        self.log(version, values)
        last = self._metrics.last
        if last is not None and version <= last:
            raise ValueError(f"{self._metrics.path} has version {last} already: cut it back before writing {version}")
        row = self._metrics.append(version, self._pending)
        self._pending = {}
        for mirror in self._mirrors:
            mirror.row(row)

    def samples(self, version: int, rows: Sequence[Mapping[str, object]]) -> None:
        """A few responses of this version as text."""
        for row in rows:
            self._samples.append(version, row)
        for mirror in self._mirrors:
            mirror.samples(version, rows)

    def histograms(self, version: int, counts: Mapping[str, tuple[Sequence[float], Sequence[float]]]) -> None:
        """Of each named quantity: the [n + 1] edges of its bins and the [n] counts in them."""
        for name, (edges, numbers) in counts.items():
            self._histograms.append(version, {"name": name, "edges": list(edges), "counts": list(numbers)})
        for mirror in self._mirrors:
            mirror.histograms(version, counts)

    def truncate(self, version: int) -> None:
        """Begins at `version`: what was written of it and later moves to `*.cut.jsonl`, for the run makes it again."""
        for file in (self._metrics, self._samples, self._histograms):
            file.cut(version)
        for mirror in self._mirrors:
            mirror.begin(version)

    def close(self, ending: str) -> None:
        """Writes the row that is still open (a stopped run's last evaluation) and lets go of the files."""
        if self._pending and self._version is not None:
            self.write(self._version, {})
        for file in (self._metrics, self._samples, self._histograms):
            file.close()
        for mirror in self._mirrors:
            mirror.close(ending)
