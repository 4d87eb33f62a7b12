"""The tensors of a folder in Hugging Face format, read row by row: no byte that is not asked for, and no code."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path

import torch
from torch import Tensor

from minirl.config import ConfigError
from minirl.models.content import entries

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
# the names that safetensors gives to what a model may be trained from
DTYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


@dataclass(frozen=True)
class Stored:
    """One tensor of a file. start: its first byte."""

    path: Path
    dtype: str
    shape: tuple[int, ...]
    start: int

    def rows(self, begin: int, end: int) -> Tensor:
        """[begin:end] along the first axis, in the dtype of the file; of a scalar, all of it."""
        dtype = DTYPES[self.dtype]
        size = dtype.itemsize * prod(self.shape[1:])
        if begin >= end:
            return torch.empty(0, *self.shape[1:], dtype=dtype)
        content = bytearray(size * (end - begin))
        with self.path.open("rb", buffering=0) as file:
            file.seek(self.start + begin * size)
            read_exactly(file, memoryview(content))
        shape = (end - begin, *self.shape[1:]) if self.shape else ()
        return torch.frombuffer(content, dtype=dtype).view(shape)


def read_exactly(file: object, content: memoryview) -> None:
    """Fills `content`; a read of a large piece may return less than was asked for."""
    filled = 0
    while filled < len(content):
        count = file.readinto(content[filled:])  # type: ignore[attr-defined]
        if not count:
            raise EOFError(f"the file ends {len(content) - filled} bytes early: it was not written to its end")
        filled += count


def weight_files(folder: Path) -> Sequence[Path]:
    """The safetensors files of the model: those of its index, the single one, or all that lie there."""
    if (folder / INDEX).is_file():
        names = json.loads((folder / INDEX).read_text(encoding="utf-8"))["weight_map"].values()
        found = [folder / name for name in sorted(set(names))]
        missing = [path.name for path in found if not path.is_file()]
        if missing:
            raise ConfigError(f"{folder}: {INDEX} names {', '.join(missing[:3])}, which are not there")
        return found
    if (folder / SINGLE).is_file():
        return [folder / SINGLE]
    found = sorted(folder.glob("*.safetensors"))
    if not found:
        raise ConfigError(f"{folder}: no .safetensors file; weights in other formats are not read")
    return found


def stored_tensors(folder: Path) -> dict[str, Stored]:
    """By the name in the files. Refuses what is no floating-point tensor: a quantised model is not trained."""
    found = {}
    for path in weight_files(folder):
        for name, (dtype, shape, start, _) in entries(path):
            if dtype not in DTYPES:
                raise ConfigError(
                    f"{folder}: {name} is stored as {dtype}; a model is trained from one of {', '.join(DTYPES)}: "
                    "give a folder that is not quantised"
                )
            found[name] = Stored(path, dtype, tuple(shape), start)
    return found
