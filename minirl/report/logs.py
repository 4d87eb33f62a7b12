"""Rows out of the log files of other stacks: JSON lines, a CSV export, TRL's trainer_state.json, W&B's offline file."""

from __future__ import annotations

import csv
import json
import math
import re
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from minirl.config import ConfigError
from minirl.report.read import flat

Row = dict[str, float]
FORMATS = "a .jsonl or .csv export, a trainer_state.json, or an offline .wandb file"
BLOCK, HEADER_BYTES, MARK = 32768, 7, b":W&B"  # a .wandb file is a LevelDB log after a header of its own
WHOLE, LAST = 1, 4  # kinds of its pieces that end a record


@dataclass(frozen=True, slots=True)
class Log:
    """rows: the numbers of each logged step, as written · config: flat, where the file has one · origin: what else it
    says of the run (code, host, packages) · remarks: what was left out."""

    rows: tuple[Row, ...]
    config: Mapping[str, Any] = field(default_factory=dict)
    origin: Mapping[str, Any] = field(default_factory=dict)
    remarks: tuple[str, ...] = ()


def log_file(name: str) -> Path | None:
    """The log file that a person means by a path; None where it is none (a run's folder, a run's name)."""
    path = Path(name)
    if path.is_dir():
        found = sorted(path.glob("run-*.wandb"))
        return found[0] if found and not (path / "run.json").is_file() else None
    return path if path.is_file() else None


def read_log(path: Path) -> Log:
    """The file's rows. Raises ConfigError, in one line, where it is none of the known formats or holds no numbers."""
    kinds = {".jsonl": _json_lines, ".csv": _csv, ".json": _trainer_state, ".wandb": _wandb}
    if path.suffix not in kinds:
        raise ConfigError(f"{path}: {path.suffix or 'no suffix'} is no log that can be read: give {FORMATS}")
    try:
        log = kinds[path.suffix](path)
    except (UnicodeDecodeError, json.JSONDecodeError, csv.Error) as error:
        raise ConfigError(f"{path} cannot be read as {path.suffix}: {error}".replace("\n", " ")) from None
    if not any(log.rows):
        raise ConfigError(f"{path} holds no numbers: give {FORMATS}")
    return log


def number(value: Any) -> float | None:
    """A finite number, also one written as text; None for all else."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        found = float(value)
    except ValueError:
        return None
    return found if math.isfinite(found) else None


def _numbers(pairs: Mapping[str, Any]) -> Row:
    return {name: found for name, value in pairs.items() if (found := number(value)) is not None}


def _json_lines(path: Path) -> Log:
    """One object per line; verl's {"step": ..., "data": {...}} is opened. A torn last line is left out."""
    rows, remarks = [], []
    lines = path.read_text(encoding="utf-8").splitlines()
    for place, line in enumerate(lines, 1):
        try:
            row = json.loads(line) if line.strip() else {}
        except json.JSONDecodeError:
            if place < len(lines) or place == 1:
                raise ConfigError(f"{path}: line {place} is not JSON") from None
            remarks.append(f"{path.name}: the last line is torn, left out")
            continue
        if not isinstance(row, dict):
            raise ConfigError(f"{path}: line {place} is no object of metrics")
        inner = row.get("data")
        rows.append(_numbers(row | inner if isinstance(inner, dict) else row))
    return Log(tuple(rows), remarks=tuple(remarks))


def _csv(path: Path) -> Log:
    """A table with one row per step. W&B exports columns as `RUN - METRIC` and their extremes beside them."""
    with path.open(encoding="utf-8-sig", newline="") as file:
        table = list(csv.DictReader(file))
    columns = [name for name in (table[0] if table else {}) if name and not re.search(r"__(MIN|MAX)$", name)]
    runs = {name.rsplit(" - ", 1)[0] for name in columns if " - " in name}
    if len(runs) > 1:
        raise ConfigError(f"{path} holds {len(runs)} runs ({', '.join(sorted(runs)[:3])}, ...): export one run a file")
    return Log(tuple(_numbers({name.rsplit(" - ", 1)[-1]: row[name] for name in columns}) for row in table))


def _trainer_state(path: Path) -> Log:
    """`log_history` of the trainer_state.json that TRL leaves in its checkpoints."""
    state = json.loads(path.read_text(encoding="utf-8"))
    history = state.get("log_history") if isinstance(state, dict) else None
    if not isinstance(history, list) or not all(isinstance(row, dict) for row in history):
        raise ConfigError(f"{path} has no log_history: give {FORMATS}")
    return Log(tuple(map(_numbers, history)))


def _wandb(path: Path) -> Log:
    """History, config and origin of an offline run, as far as it is written."""
    rows: list[Row] = []
    config: dict[str, Any] = {}
    origin: dict[str, Any] = {}
    for record in wandb_records(path):
        kind = record.WhichOneof("record_type")
        if kind == "history":
            rows.append(_numbers(_items(record.history.item)))
        elif kind in ("run", "config"):
            update = record.run.config.update if kind == "run" else record.config.update
            config |= {name: value for name, value in _items(update).items() if not name.startswith("_wandb")}
        if kind == "run":
            origin = {"host": record.run.host or None, "name": record.run.display_name}
            origin["git"] = {"sha": record.run.git.commit} if record.run.git.commit else None
    requirements = path.parent / "files" / "requirements.txt"
    if requirements.is_file():
        pairs = (line.strip().split("==", 1) for line in requirements.read_text(encoding="utf-8").splitlines())
        origin["packages"] = {pair[0]: pair[1] for pair in pairs if len(pair) == 2}
    return Log(tuple(rows), flat(config), origin)


def _items(items: Any) -> dict[str, Any]:
    return {item.key or ".".join(item.nested_key): json.loads(item.value_json) for item in items}


def wandb_records(path: Path) -> Iterator[Any]:
    """The protobuf records of a `.wandb` file. A record that has not been written to its end is the last one's loss."""
    from google.protobuf.message import DecodeError  # with W&B, and only here
    from wandb.proto import wandb_internal_pb2

    content = path.read_bytes()
    if content[:4] != MARK:
        raise ConfigError(f"{path} is no W&B file: it does not begin with {MARK.decode()}")
    position, pieces = HEADER_BYTES, b""
    while position + HEADER_BYTES <= len(content):
        left = BLOCK - position % BLOCK
        if left < HEADER_BYTES:
            position += left
            continue
        _, length, kind = struct.unpack("<IHB", content[position : position + HEADER_BYTES])
        end = position + HEADER_BYTES + length
        if end > len(content):
            return
        pieces += content[position + HEADER_BYTES : end]
        position = end
        if kind in (WHOLE, LAST):
            record = wandb_internal_pb2.Record()  # type: ignore[attr-defined]  # made when it is imported
            try:
                record.ParseFromString(pieces)
            except DecodeError:
                raise ConfigError(f"{path} is broken at byte {position}: sync or export it again") from None
            pieces = b""
            yield record
