"""A model written as a folder in Hugging Face format, tensor by tensor: what transformers and vLLM load.

Names are those of published folders (experts one by one), tied parameters are written once, and no more than one file
is held in memory.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers import PreTrainedModel
from transformers.core_model_loading import revert_weight_conversion

from minirl.models.shards import distinct
from minirl.models.stored import DTYPES, INDEX, SINGLE, stored_tensors

MAX_FILE_BYTES = 5_000_000_000  # as published folders have it
# what a folder holds beside weights and config, and a person wants with them
COMPANIONS = (
    *("generation_config.json", "tokenizer*", "vocab.json", "merges.txt"),
    *("special_tokens_map.json", "added_tokens.json", "chat_template*"),
)


def write_folder(
    model: PreTrainedModel, parameters: Iterable[tuple[str, Tensor]], folder: Path, like: Path | None
) -> None:
    """parameters: (name, full tensor) as a policy gives them. like: the folder the model came from, whose precision and
    tokenizer the new one gets; None: fp32 and none."""
    folder.mkdir(parents=True, exist_ok=True)
    precision = Precision.of(like)
    written = distinct(model).keys()
    published = (
        (name, precision.rounded(name, value))
        for own, tensor in parameters
        if own in written
        for name, value in revert_weight_conversion(model, {own: tensor.detach()}).items()
    )
    write_files(published, folder, max_bytes=MAX_FILE_BYTES)
    config = deepcopy(model.config)
    config.architectures = [type(model).__name__.removeprefix("FSDP")]
    config.dtype = str(precision.usual).removeprefix("torch.")
    config.save_pretrained(folder)
    if like is None:
        model.generation_config.save_pretrained(folder)
        return
    for path in sorted({path for pattern in COMPANIONS for path in like.glob(pattern)}):
        shutil.copyfile(path, folder / path.name)


@dataclass(frozen=True)
class Precision:
    """usual: of most numbers · exceptions: by published name (a router's bias that is kept in fp32)."""

    usual: torch.dtype
    exceptions: Mapping[str, torch.dtype]

    @classmethod
    def of(cls, folder: Path | None) -> Precision:
        if folder is None:
            return cls(torch.float32, {})
        dtypes = {name: DTYPES[each.dtype] for name, each in stored_tensors(folder).items()}
        kinds = list(dtypes.values())
        usual = max(set(kinds), key=kinds.count)
        return cls(usual, {name: dtype for name, dtype in dtypes.items() if dtype != usual})

    def rounded(self, name: str, value: Tensor) -> Tensor:
        return value.to("cpu", self.exceptions.get(name, self.usual)).contiguous()


@dataclass
class Draft:
    """The file that is being filled."""

    tensors: dict[str, Tensor] = field(default_factory=dict)
    num_bytes: int = 0

    def add(self, name: str, value: Tensor) -> None:
        self.tensors[name] = value
        self.num_bytes += value.nbytes


def write_files(tensors: Iterable[tuple[str, Tensor]], folder: Path, *, max_bytes: int) -> None:
    """model.safetensors, or model-0000i-of-0000n.safetensors of at most `max_bytes` (or one tensor) and their index."""
    places: list[list[str]] = []
    total = 0
    for number, draft in enumerate(drafts(tensors, max_bytes)):
        save_file(draft.tensors, folder / f"{number}.draft", metadata={"format": "pt"})
        places.append(list(draft.tensors))
        total += draft.num_bytes
    if len(places) == 1:
        (folder / "0.draft").rename(folder / SINGLE)
        return
    weight_map: dict[str, str] = {}
    for number, held in enumerate(places):
        name = f"model-{number + 1:05}-of-{len(places):05}.safetensors"
        (folder / f"{number}.draft").rename(folder / name)
        weight_map |= dict.fromkeys(held, name)
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (folder / INDEX).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")


def drafts(tensors: Iterable[tuple[str, Tensor]], max_bytes: int) -> Iterator[Draft]:
    """One after another, each dropped when the next is asked for."""
    draft = Draft()
    for name, value in tensors:
        if draft.tensors and draft.num_bytes + value.nbytes > max_bytes:
            yield draft
            draft = Draft()
        draft.add(name, value)
    yield draft
