"""Rows of parquet, JSONL and CSV files, local ones or those of a dataset on the hub. No torch.

Values only: nothing is unpickled, and no code of a dataset's repository is fetched or run.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from glob import glob
from hashlib import sha256
from pathlib import Path
from typing import Any

from minirl.config import ConfigError

Row = Mapping[str, Any]
HUB = "hf://datasets/"
BATCH_ROWS = 8192  # of a parquet file, held in memory at once


def rows(path: str, key: str, *, columns: Sequence[str], where: Mapping[str, Any]) -> Iterator[Row]:
    """The asked columns of every row whose columns equal those of `where`, in the order of the files.

    A column a.b is the entry b of the column a. `key`: what chose the path, for the message of a ConfigError.
    """
    asked = [*columns, *where]
    for file in files(path, key):
        if file.suffix not in READERS:
            raise ConfigError(f"{key}={path}: {file.name} is none of {', '.join(READERS)}")
        for row in READERS[file.suffix](file, key, list(dict.fromkeys(name.partition(".")[0] for name in asked))):
            found = {name: entry(row, name, f"{key}: {file}") for name in asked}
            if all(str(found[name]) == str(wanted) for name, wanted in where.items()):
                yield found


def files(path: str, key: str) -> list[Path]:
    """The files that a path or pattern names, sorted; those of the hub are fetched once and kept in its cache."""
    if path.startswith(HUB):
        folder, pattern = fetched(path, key)
        found = sorted(folder.glob(pattern))
    else:
        found = [Path(name) for name in sorted(glob(path, recursive=True)) if Path(name).is_file()]
    if not found:
        raise ConfigError(
            f"{key}={path}: no such file; expected a file, a pattern, or {HUB}OWNER/NAME@REVISION/PATTERN"
        )
    return found


def fetched(path: str, key: str) -> tuple[Path, str]:
    """(the folder of the hub's snapshot, the pattern in it) of hf://datasets/OWNER/NAME@REVISION/PATTERN."""
    owner, _, rest = path.removeprefix(HUB).partition("/")
    name, _, pattern = rest.partition("/")
    name, _, revision = name.partition("@")
    if not (owner and name and pattern):
        raise ConfigError(f"{key}={path}: expected {HUB}OWNER/NAME@REVISION/PATTERN")
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    try:
        folder = snapshot_download(
            f"{owner}/{name}", repo_type="dataset", revision=revision or None, allow_patterns=[pattern]
        )
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        reason = str(error).strip().splitlines()[0]
        raise ConfigError(f"{key}={path}: not in the local cache and not to be had from the hub: {reason}") from error
    return Path(folder), pattern


def content(path: str, key: str) -> str:
    """sha256 (hex) of the bytes of a path's files, whatever they are called and wherever they lie; a path on the hub
    is its own text: a revision in it says which bytes they are."""
    if path.startswith(HUB):
        return path
    digest = sha256()
    for file in files(path, key):
        digest.update(_digest(file, file.stat().st_size, file.stat().st_mtime_ns))
    return digest.hexdigest()


@cache
def _digest(file: Path, size: int, changed: int) -> bytes:
    """Of one file; a file that looks the same is not read again."""
    return sha256(file.read_bytes()).digest()


def entry(row: Row, name: str, place: str) -> Any:
    """row[a][b] of the column a.b. Raises ConfigError where there is none."""
    if name in row:
        return row[name]
    value: Any = row
    for part in name.split("."):
        if not isinstance(value, Mapping) or part not in value:
            known = ", ".join(map(str, value)) if isinstance(value, Mapping) else f"a {type(value).__name__}"
            raise ConfigError(f"{place} has no column {name}: at {part!r} it has {known}")
        value = value[part]
    return value


def _parquet(file: Path, key: str, columns: list[str]) -> Iterator[Row]:
    try:
        from pyarrow import ArrowInvalid
        from pyarrow.parquet import ParquetFile
    except ImportError as error:
        raise ConfigError(f"{key}={file}: parquet files need the package pyarrow: pip install minirl[math]") from error
    try:
        source = ParquetFile(file)
    except ArrowInvalid as error:
        raise ConfigError(f"{key}={file}: not a parquet file ({error})") from error
    present = source.schema_arrow.names
    wanted = [name for name in present if name in columns or any(name.startswith(f"{part}.") for part in columns)]
    for batch in source.iter_batches(BATCH_ROWS, columns=wanted):
        for row in batch.to_pylist():
            yield row if len(wanted) >= len(columns) else dict.fromkeys(present) | row


def _jsonl(file: Path, key: str, columns: list[str]) -> Iterator[Row]:
    with file.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except json.JSONDecodeError as error:
                raise ConfigError(f"{key}={file}: line {number} is not JSON ({error})") from error
            if not isinstance(row, dict):
                raise ConfigError(f"{key}={file}: line {number} is not a JSON object")
            yield row


def _csv(file: Path, key: str, columns: list[str]) -> Iterator[Row]:
    with file.open(encoding="utf-8", newline="") as lines:
        try:
            yield from csv.DictReader(lines)
        except csv.Error as error:
            raise ConfigError(f"{key}={file}: not a CSV file ({error})") from error


READERS: dict[str, Callable[[Path, str, list[str]], Iterator[Row]]] = {
    ".parquet": _parquet,
    ".jsonl": _jsonl,
    ".csv": _csv,
}
