"""What a checkpoint folder holds, as a hash: the same for the same model, wherever and however it is stored."""

from __future__ import annotations

import json
from hashlib import sha256
from pathlib import Path
from typing import Any, BinaryIO

# says who wrote the folder, not what the model is
NOT_CONTENT = ("transformers_version", "_name_or_path")
BLOCK_BYTES = 1 << 24


def content_hash(folder: Path) -> str:
    """sha256 (hex) over the config and every tensor (name, dtype, shape, bytes) in the order of names, so neither the
    number of safetensors files nor their header text matters. Reads the files without torch."""
    digest = sha256()
    config = json.loads((folder / "config.json").read_text())
    digest.update(json.dumps({key: config[key] for key in sorted(config) if key not in NOT_CONTENT}).encode())
    places = {name: (path, entry) for path in sorted(folder.glob("*.safetensors")) for name, entry in entries(path)}
    if not places:
        raise FileNotFoundError(f"{folder}: no .safetensors file")
    for name in sorted(places):
        path, (dtype, shape, start, end) = places[name]
        digest.update(json.dumps([name, dtype, shape]).encode())
        with path.open("rb") as file:
            file.seek(start)
            update(digest, file, end - start)
    return digest.hexdigest()


def entries(path: Path) -> list[tuple[str, tuple[str, list[int], int, int]]]:
    """(name, (dtype, shape, first byte, last byte + 1)) of each tensor: the header is 8 bytes of length, then JSON."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(length))
    return [
        (name, (entry["dtype"], entry["shape"], *(8 + length + offset for offset in entry["data_offsets"])))
        for name, entry in header.items()
        if name != "__metadata__"
    ]


def update(digest: Any, file: BinaryIO, remaining: int) -> None:
    """Feeds `remaining` bytes block by block."""
    while remaining:
        block = file.read(min(BLOCK_BYTES, remaining))
        digest.update(block)
        remaining -= len(block)
