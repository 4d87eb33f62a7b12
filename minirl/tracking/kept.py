"""What a run's own files hold, for a mirror that was not there when it was written."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Counts = Mapping[str, tuple[Sequence[float], Sequence[float]]]


@dataclass(frozen=True, slots=True)
class Kept:
    """rows: of metrics.jsonl · samples, histograms: by version."""

    rows: list[dict[str, Any]]
    samples: dict[int, list[dict[str, Any]]]
    histograms: dict[int, Counts]

    @classmethod
    def of(cls, folder: Path) -> Kept:
        samples: dict[int, list[dict[str, Any]]] = {}
        for row in _rows(folder / "samples.jsonl"):
            samples.setdefault(row.pop("version"), []).append(row)
        histograms: dict[int, dict[str, Any]] = {}
        for row in _rows(folder / "histograms.jsonl"):
            histograms.setdefault(row["version"], {})[row["name"]] = (row["edges"], row["counts"])
        return cls(_rows(folder / "metrics.jsonl"), samples, dict(histograms))

    @property
    def end(self) -> int:
        """The version after the last row."""
        return self.rows[-1]["version"] + 1 if self.rows else 0


def _rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="ascii").splitlines()] if path.exists() else []
