"""Recorded rollout batches: what was sampled, its rewards and pi_old, so that other algorithms can be run on it.

RUN/rollouts/VERSION/ holds rank-R.safetensors, the tensors of that rank with everything else in its header, and
batch.json: what the batch is of. The folder is complete or absent, whenever the process dies, and a resumed run makes
it again, the same.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import Any, TypeVar, get_args, get_type_hints

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from minirl.config import ConfigError
from minirl.record import write_atomically
from minirl.types import OldPolicy, Rewards, RolloutBatch, TrainBatch, select
from minirl.world import World

FORMAT = 1  # of the files; a change that old readers would misread counts it up
DESCRIPTION = "batch.json"
UNFINISHED = ".unfinished"
VALUES = "values"  # the key of a header under which what is no tensor stands, as JSON

Stage = TypeVar("Stage")


@dataclass(frozen=True, slots=True)
class Sampled:
    """The stages of a batch that do not depend on an algorithm, but for the routing of pi_old."""

    rollouts: RolloutBatch
    rewards: Rewards
    old: OldPolicy

    def __len__(self) -> int:
        return len(self.rollouts)


@dataclass(frozen=True)
class Recorder:
    """Writes batches below `folder`. description: JSON values that say of which run they are."""

    folder: Path
    world: World
    description: Mapping[str, Any]

    def __call__(self, batch: TrainBatch) -> None:
        """Collective: every rank writes its own responses."""
        version = batch.rollouts.version
        target, draft = self.folder / str(version), self.folder / f"{version}{UNFINISHED}"
        if self.world.rank == 0:
            for left_behind in self.folder.glob(f"*{UNFINISHED}"):
                shutil.rmtree(left_behind)
            draft.mkdir(parents=True)
        self.world.barrier()
        old = replace(batch.old, scores=None)  # a metric's sample of the routers' scores: no algorithm reads it
        write(Sampled(batch.rollouts, batch.rewards, old), draft / f"rank-{self.world.rank}.safetensors")
        self.world.barrier()
        if self.world.rank == 0:
            about = {"format": FORMAT, "version": version, "num_ranks": self.world.size, **self.description}
            write_atomically(draft / DESCRIPTION, json.dumps(about, indent=1, ensure_ascii=False) + "\n")
            if target.exists():
                shutil.rmtree(target)
            draft.rename(target)
        self.world.barrier()


def keep_nothing(batch: TrainBatch) -> None:
    """run.record_rollouts=false"""


def write(stage: Any, path: Path) -> None:
    """One dataclass of tensors, nested ones included, whatever fields it has."""
    tensors, values = dict[str, Tensor](), dict[str, Any]()
    _flatten(stage, "", tensors, values)
    save_file(tensors, path, metadata={VALUES: json.dumps(values)})


def _flatten(node: Any, prefix: str, tensors: dict[str, Tensor], values: dict[str, Any]) -> None:
    for spec in fields(node):
        part, name = getattr(node, spec.name), f"{prefix}{spec.name}"
        if isinstance(part, Tensor):
            tensors[name] = part.detach().cpu().contiguous().clone()  # no two share memory
        elif is_dataclass(part):
            _flatten(part, f"{name}.", tensors, values)
        else:
            values[name] = part


def read(kind: type[Stage], path: Path) -> Stage:
    """The dataclass that `write` wrote."""
    with safe_open(path, framework="pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (no mapping)
        values = json.loads(file.metadata()[VALUES])
    return _rebuilt(kind, "", tensors, values)


def _rebuilt(kind: type[Stage], prefix: str, tensors: Mapping[str, Tensor], values: Mapping[str, Any]) -> Stage:
    parts: dict[str, Any] = {}
    for name, hint in get_type_hints(kind).items():
        key = f"{prefix}{name}"
        inner = next((one for one in (hint, *get_args(hint)) if is_dataclass(one)), None)
        if key in tensors:
            parts[name] = tensors[key]
        elif key in values:
            parts[name] = tuple(values[key]) if isinstance(values[key], list) else values[key]
        elif inner is not None:
            parts[name] = _rebuilt(inner, f"{key}.", tensors, values)  # type: ignore[arg-type]
        else:
            raise ConfigError(f"the recorded batch lacks {key}: it is of another version of minirl")
    return kind(**parts)


@dataclass(frozen=True)
class Recorded:
    """A batch as it was recorded, of all ranks, in the order of its prompts. about: what batch.json says."""

    sampled: Sampled
    about: Mapping[str, Any]

    @property
    def version(self) -> int:
        return int(self.about["version"])


def find(place: Path) -> Path:
    """The folder of a recorded batch: itself, or the latest of a run. Raises ConfigError."""
    if (place / DESCRIPTION).is_file():
        return place
    found = {int(path.parent.name): path.parent for path in place.glob(f"rollouts/*/{DESCRIPTION}")}
    if not found:
        raise ConfigError(f"{place}: no recorded batch; a run with run.record_rollouts=true keeps RUN/rollouts/VERSION")
    return found[max(found)]


def load(folder: Path) -> Recorded:
    """Raises ConfigError where the files are of a format that is not known here."""
    about = json.loads((folder / DESCRIPTION).read_text(encoding="utf-8"))
    if about.get("format") != FORMAT:
        raise ConfigError(f"{folder}: format {about.get('format')} of a recorded batch, this minirl reads {FORMAT}")
    parts = [read(Sampled, folder / f"rank-{rank}.safetensors") for rank in range(about["num_ranks"])]
    return Recorded(in_order(joined(parts)), about)


def joined(parts: Sequence[Stage]) -> Stage:
    """The responses of several batches one after another."""
    first = parts[0]
    changed: dict[str, Any] = {}
    for spec in fields(first):  # type: ignore[arg-type]
        every = [getattr(part, spec.name) for part in parts]
        axis = spec.metadata.get("axis")
        if is_dataclass(every[0]):
            changed[spec.name] = joined(every)
        elif axis == "boundaries":
            changed[spec.name] = torch.cat(
                [every[0].new_zeros(1), torch.cat([part.diff() for part in every]).cumsum(0)]
            )
        elif axis is not None and every[0] is not None:
            changed[spec.name] = torch.cat(every)
        else:
            changed[spec.name] = every[0]
    return type(first)(**changed)


def in_order(sampled: Sampled) -> Sampled:
    """Ranks hold slices of each mini-batch; by the positions of the prompts the batch is whole again."""
    order = sampled.rollouts.positions.argsort(stable=True)
    return taken(sampled, order)


def taken(sampled: Sampled, responses: Tensor) -> Sampled:
    """Only these responses, in this order."""
    mask = sampled.rollouts.response_mask
    nothing = torch.zeros(len(sampled))
    batch = TrainBatch(sampled.rollouts, sampled.rewards, nothing, sampled.old, mask, mask, None)
    chosen = select(batch, responses)
    return Sampled(chosen.rollouts, chosen.rewards, chosen.old)
