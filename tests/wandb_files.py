"""What W&B recorded: a reader of its offline files."""

import json
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from wandb.proto import wandb_internal_pb2

BLOCK = 32768  # the file is a LevelDB log: records in blocks of this size, after a header of 7 bytes
WHOLE, LAST = 1, 4


def records(path: Path) -> Iterator[Any]:
    """The protobuf records of a `.wandb` file, as far as they are written."""
    content = path.read_bytes()
    assert content[:4] in (b":W&B", b"")
    position, record = 7, b""
    while position + 7 <= len(content):
        left = BLOCK - position % BLOCK
        if left < 7:
            position += left
            continue
        _, length, kind = struct.unpack("<IHB", content[position : position + 7])
        position += 7 + length
        if position > len(content):
            return
        record += content[position - length : position]
        if kind in (WHOLE, LAST):
            parsed = wandb_internal_pb2.Record()
            parsed.ParseFromString(record)
            record = b""
            yield parsed


def unflatten(items: Any) -> dict[str, Any]:
    return {item.key or ".".join(item.nested_key): json.loads(item.value_json) for item in items}


class OfflineRun:
    """One `.wandb` file, read back."""

    def __init__(self, path: Path) -> None:
        self.history: list[dict[str, Any]] = []
        self.summary: dict[str, Any] = {}
        self.metrics: list[Any] = []
        self.exit_code: int | None = None
        for record in records(path):
            kind = record.WhichOneof("record_type")
            if kind == "run":
                self.run = record.run
                self.config = {item.key: json.loads(item.value_json) for item in record.run.config.update}
            elif kind == "history":
                self.history.append(unflatten(record.history.item))
            elif kind == "summary":
                self.summary |= unflatten(record.summary.update)
            elif kind == "metric":
                self.metrics.append(record.metric)
            elif kind == "exit":
                self.exit_code = record.exit.exit_code

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The figures: without W&B's own keys and without the parts of tables and histograms."""
        return [
            {k: v for k, v in row.items() if k[0] != "_" and f"{k.rpartition('.')[0]}._type" not in row}
            for row in self.history
        ]


def offline_runs(folder: Path) -> list[OfflineRun]:
    """The finished runs of a folder. W&B's service process may write the last records after `finish` has returned."""
    deadline = time.monotonic() + 60
    while True:
        runs = [OfflineRun(path) for path in sorted(folder.glob("wandb/offline-run-*/*.wandb"))]
        if all(run.exit_code is not None for run in runs) or time.monotonic() > deadline:
            return runs
        time.sleep(0.05)
