"""Files of JSON rows that can be killed, resumed and cut back."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path

from minirl.record import write_atomically


def finite(value: object) -> object:
    """The value as JSON can hold it: NaN and the infinities have no spelling there and become null."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


class JsonLines:
    """One JSON object a line, `version` first, versions never falling.

    Each row is handed to the operating system as one whole line, so a process killed at any moment loses no row that
    `append` had returned from; a line torn all the same (a full disk, a lost machine) is dropped at the next opening.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        self._drop_torn_line()
        lines = path.read_text(encoding="ascii").splitlines()
        self.last: int | None = json.loads(lines[-1])["version"] if lines else None
        self._file = path.open("a", encoding="ascii")

    def append(self, version: int, row: Mapping[str, object]) -> dict[str, object]:
        """The row as written: `version` first, non-finite numbers as null."""
        written = {"version": version} | {name: finite(value) for name, value in row.items()}
        # ASCII only: a line separator inside a sampled text must not look like the end of a row
        self._file.write(json.dumps(written, allow_nan=False) + "\n")
        self._file.flush()
        self.last = version
        return written

    def cut(self, version: int) -> None:
        """Moves the rows of `version` and later to the end of NAME.cut.jsonl. Killed in between, it can be repeated."""
        lines = self.path.read_text(encoding="ascii").splitlines(keepends=True)
        kept = [line for line in lines if json.loads(line)["version"] < version]
        moved = "".join(lines[len(kept) :])
        if not moved:
            return
        aside = self.path.with_name(f"{self.path.stem}.cut{self.path.suffix}")
        before = aside.read_text(encoding="ascii") if aside.exists() else ""
        if not before.endswith(moved):
            write_atomically(aside, before + moved)
        self._file.close()
        write_atomically(self.path, "".join(kept))
        self._file = self.path.open("a", encoding="ascii")
        self.last = json.loads(kept[-1])["version"] if kept else None

    def close(self) -> None:
        self._file.close()

    def _drop_torn_line(self) -> None:
        content = self.path.read_bytes()
        whole = content.rfind(b"\n") + 1
        if whole < len(content):
            os.truncate(self.path, whole)
