"""The loop's stopwatch, and how a time is told."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager


class Clock:
    """Wall and CPU seconds of this process by phase: `with clock("rollout"):`. A phase met twice adds up."""

    def __init__(self) -> None:
        self._seconds: defaultdict[str, float] = defaultdict(float)

    @contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        wall, cpu = time.perf_counter(), time.process_time()
        try:
            yield
        finally:
            self._seconds[f"time/{phase}"] += time.perf_counter() - wall
            self._seconds[f"time/{phase}_cpu"] += time.process_time() - cpu

    def seconds(self) -> dict[str, float]:
        """`time/PHASE` (wall) and `time/PHASE_cpu` (all threads) since the last call."""
        seconds, self._seconds = dict(self._seconds), defaultdict(float)
        return seconds


def duration(seconds: float | None) -> str:
    """1:02:03 or 2:03."""
    if seconds is None:
        return "?"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
