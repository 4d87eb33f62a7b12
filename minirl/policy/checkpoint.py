"""Checkpoints of a sharded policy: weights, Adam moments and version, resharded on load to any number of ranks."""

from __future__ import annotations

import pickle
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.filesystem import FileSystemReader

from minirl.config import ConfigError
from minirl.record import write_atomically
from minirl.world import World

UNFINISHED = ".unfinished"  # suffix of a folder that is being written
GOOD = "last_good"  # a file beside the checkpoints: the last version that is known to be good
METADATA = ".metadata"  # what stands where: torch pickles it
# all that the description of a checkpoint is made of, beside dtypes; nothing here acts when it is called
DESCRIPTION = {
    "torch": ("Size", "strided"),
    "torch.serialization": ("_get_layout",),
    "torch.distributed.checkpoint.filesystem": ("_StorageInfo", "_StoragePrefix"),
    "torch.distributed.checkpoint.metadata": (
        "Metadata",
        "StorageMeta",
        "MetadataIndex",
        "TensorStorageMetadata",
        "TensorProperties",
        "ChunkStorageMetadata",
        "BytesStorageMetadata",
        "_MEM_FORMAT_ENCODING",
    ),
    "pathlib": ("PosixPath",),
    "pathlib._local": ("PosixPath",),
}


def numbered(checkpoints: Path) -> dict[int, Path]:
    """Finished checkpoints by version: folders whose name is a number."""
    if not checkpoints.is_dir():
        return {}
    return {int(path.name): path for path in checkpoints.iterdir() if path.is_dir() and path.name.isdecimal()}


def newest(checkpoints: Path) -> Path | None:
    """The finished checkpoint of the highest version, if there is one."""
    found = numbered(checkpoints)
    return found[max(found)] if found else None


def mark_good(checkpoints: Path, version: int) -> None:
    """Pruning keeps the newest checkpoint that is not newer than this version."""
    checkpoints.mkdir(parents=True, exist_ok=True)
    write_atomically(checkpoints / GOOD, f"{version}\n")


def good(checkpoints: Path) -> Path | None:
    """The newest checkpoint of a version that is known to be good, if there is one."""
    mark = checkpoints / GOOD
    limit = int(mark.read_text(encoding="utf-8")) if mark.exists() else -1
    found = {version: path for version, path in numbered(checkpoints).items() if version <= limit}
    return found[max(found)] if found else None


def prune(checkpoints: Path, num_checkpoints: int) -> None:
    """Keeps the newest `num_checkpoints`, and the last good one."""
    found, kept = numbered(checkpoints), good(checkpoints)
    for old in sorted(found)[: -max(num_checkpoints, 1)]:
        if found[old] != kept:
            shutil.rmtree(found[old])


def save(state: dict[str, Any], checkpoints: Path, version: int, *, num_checkpoints: int, world: World) -> None:
    """Writes checkpoints/<version>: complete or absent, whenever the process dies. Older ones go only afterwards."""
    draft = begin(checkpoints, version, world)
    dcp.save(state, checkpoint_id=draft)
    world.barrier()
    if world.rank == 0:
        publish(draft, checkpoints, version, num_checkpoints=num_checkpoints)
    world.barrier()


def begin(checkpoints: Path, version: int, world: World) -> Path:
    """The folder to write to, after what an earlier process left unfinished has gone."""
    if world.rank == 0:
        checkpoints.mkdir(parents=True, exist_ok=True)
        for left_behind in checkpoints.glob(f"*{UNFINISHED}"):
            shutil.rmtree(left_behind)
    world.barrier()
    return checkpoints / f"{version}{UNFINISHED}"


def publish(draft: Path, checkpoints: Path, version: int, *, num_checkpoints: int) -> None:
    """What all ranks have written becomes checkpoints/<version>; then older ones go."""
    target = checkpoints / str(version)
    if target.exists():
        shutil.rmtree(target)
    draft.rename(target)
    prune(checkpoints, num_checkpoints)


def load(state: Mapping[str, Any], checkpoint: Path) -> None:
    """Fills the tensors of `state` in place; an entry the checkpoint lacks is an error."""
    reader = PlainReader(checkpoint)
    reader.read_metadata()  # what is wrong with it is said here; torch would wrap it in an error of its own
    dcp.load(dict(state), storage_reader=reader)


class Description(pickle.Unpickler):
    """Reads the description of a checkpoint and runs no code that somebody else has written into it."""

    def find_class(self, module: str, name: str) -> Any:
        dtype = module == "torch" and isinstance(getattr(torch, name, None), torch.dtype)
        if not dtype and name not in DESCRIPTION.get(module, ()):
            raise pickle.UnpicklingError(f"it names {module}.{name}, which no checkpoint of minirl holds")
        return super().find_class(module, name)


class PlainReader(FileSystemReader):
    """torch's reader, which reads tensors as nothing but tensors and would unpickle anything as their description."""

    def read_metadata(self, *args: Any, **kwargs: Any) -> dcp.Metadata:
        path = Path(self.path) / METADATA
        with path.open("rb") as file:
            try:
                metadata: dcp.Metadata = Description(file).load()
            except pickle.UnpicklingError as error:
                raise ConfigError(f"{path}: {error}") from error
        if metadata.storage_meta is not None:
            metadata.storage_meta.load_id = self.load_id
        return metadata
