"""Where a model lies: a folder in Hugging Face format, or a hub id whose files are fetched once and kept. No torch.

Weights are read from safetensors only, and no code of a repository is ever fetched or run.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from minirl.config import ConfigError

HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
CONFIG = "config.json"
# weights, their index, the configuration and the tokenizer: nothing that is a program
FETCHED = (
    *("*.safetensors", "*.safetensors.index.json", CONFIG, "generation_config.json", "tokenizer*", "*.txt"),
    *("vocab.json", "merges.txt", "special_tokens_map.json", "added_tokens.json", "chat_template*"),
)


def is_folder(name: str) -> bool:
    """Whether a model in Hugging Face format lies in the folder of this name."""
    return (Path(name) / CONFIG).is_file()


def is_hub_id(name: str) -> bool:
    """OWNER/NAME, where no such folder is: a folder that lacks its config is a mistake, not a hub id."""
    return HUB_ID.fullmatch(name) is not None and not Path(name).exists()


def settings(name: str) -> dict[str, Any] | None:
    """What config.json says; None where it is not known yet."""
    found = settings_path(name)
    return None if found is None else json.loads(found.read_text(encoding="utf-8"))


def settings_path(name: str) -> Path | None:
    """The config.json of a folder, or of a hub id in the local cache; None where it is not here. Asks nobody."""
    if is_folder(name):
        return Path(name) / CONFIG
    if not is_hub_id(name):
        return None
    from huggingface_hub import try_to_load_from_cache

    found = try_to_load_from_cache(name, CONFIG)
    return Path(found) if isinstance(found, str) else None


def folder_of(name: str, key: str) -> Path:
    """The folder of a model; a hub id is fetched if it is not in the cache. `key`: what chose it, for the message."""
    if is_folder(name):
        return Path(name)
    if not is_hub_id(name):
        raise ConfigError(f"{key}={name}: no {CONFIG} there; expected a folder in Hugging Face format, or a hub id")
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    try:
        # weights in a folder of the repository (original/, onnx/) are the same ones in another format
        return Path(snapshot_download(name, allow_patterns=list(FETCHED), ignore_patterns=["*/*"]))
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        reason = str(error).strip().splitlines()[0]
        raise ConfigError(f"{key}={name}: not in the local cache and not to be had from the hub: {reason}") from error
