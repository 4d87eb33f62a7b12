"""Checkpoints of a sharded policy: weights, Adam moments and version, resharded on load to any number of ranks."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch.distributed.checkpoint as dcp

from minirl.world import World

UNFINISHED = ".unfinished"  # suffix of a folder that is being written


def numbered(checkpoints: Path) -> dict[int, Path]:
    """Finished checkpoints by version: folders whose name is a number."""
    if not checkpoints.is_dir():
        return {}
    return {int(path.name): path for path in checkpoints.iterdir() if path.is_dir() and path.name.isdecimal()}


def newest(checkpoints: Path) -> Path | None:
    """The finished checkpoint of the highest version, if there is one."""
    found = numbered(checkpoints)
    return found[max(found)] if found else None


def save(state: dict[str, Any], checkpoints: Path, version: int, *, num_checkpoints: int, world: World) -> None:
    """Writes checkpoints/<version>: complete or absent, whenever the process dies. Older ones go only afterwards."""
    target, draft = checkpoints / str(version), checkpoints / f"{version}{UNFINISHED}"
    if world.rank == 0:
        checkpoints.mkdir(parents=True, exist_ok=True)
        for left_behind in checkpoints.glob(f"*{UNFINISHED}"):
            shutil.rmtree(left_behind)
    world.barrier()
    dcp.save(state, checkpoint_id=draft)
    world.barrier()
    if world.rank == 0:
        if target.exists():
            shutil.rmtree(target)
        draft.rename(target)
        found = numbered(checkpoints)
        for old in sorted(found)[: -max(num_checkpoints, 1)]:
            shutil.rmtree(found[old])
    world.barrier()


def load(state: Mapping[str, Any], checkpoint: Path) -> None:
    """Fills the tensors of `state` in place; an entry the checkpoint lacks is an error."""
    dcp.load(dict(state), checkpoint_id=checkpoint)
