"""Folders and hub ids: told apart, looked up without asking anybody, fetched without programs."""

import json

import huggingface_hub
import pytest
from huggingface_hub.errors import LocalEntryNotFoundError

from minirl import hub
from minirl.compose import load
from minirl.config import ConfigError
from minirl.identity import coldstart_key
from minirl.validate import num_experts, validate

HUB_MODEL = ["model=qwen3_30b_a3b", "coldstart.checkpoint=${model.path}"]


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """A local cache that holds a small org/moe and nothing else."""
    snapshot = tmp_path / "models--org--moe" / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text(json.dumps({"model_type": "qwen3_moe", "num_experts": 4}))
    (tmp_path / "models--org--moe" / "refs").mkdir()
    (tmp_path / "models--org--moe" / "refs" / "main").write_text("abc")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    return snapshot


def test_a_folder_a_hub_id_and_neither(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    assert hub.is_folder(str(tmp_path)) and not hub.is_hub_id(str(tmp_path))
    assert hub.is_hub_id("Qwen/Qwen3-30B-A3B") and not hub.is_folder("Qwen/Qwen3-30B-A3B")
    (tmp_path / "made").mkdir()
    assert not hub.is_hub_id(str(tmp_path / "made")) and not hub.is_hub_id("nowhere") and not hub.is_hub_id("../a/b")
    with pytest.raises(ConfigError, match=r"model\.path=nowhere: no config\.json there"):
        hub.folder_of("nowhere", "model.path")


def test_a_folder_of_that_name_that_lacks_its_config_is_a_mistake(tmp_path):
    (tmp_path / "org" / "name").mkdir(parents=True)  # relative to the working folder of the test
    assert not hub.is_hub_id("org/name")


def test_before_it_is_fetched_the_sizes_of_the_choice_are_believed():
    config = load(HUB_MODEL)
    assert num_experts(config.model) == 128 and hub.settings(config.model.path) is None
    validate(load([*HUB_MODEL, "algo.routing=r3"]))
    with pytest.raises(ConfigError, match="needs a MoE model"):
        validate(load(["model=qwen3_4b", "algo.routing=r3"]))
    assert coldstart_key(config) == coldstart_key(load(HUB_MODEL)) != coldstart_key(load(["model=qwen3_4b"]))


def test_once_it_is_here_its_own_config_is(cache, monkeypatch):
    monkeypatch.setattr("huggingface_hub.file_download.constants.HF_HUB_CACHE", str(cache.parents[2]))
    config = load([*HUB_MODEL, "model.path=org/moe"])
    assert hub.settings("org/moe") == {"model_type": "qwen3_moe", "num_experts": 4}
    assert num_experts(config.model) == 4


def test_weights_in_safetensors_and_no_program_are_fetched(cache, monkeypatch):
    asked = {}
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda name, **words: asked.update(words) or str(cache))
    assert hub.folder_of("org/moe", "model.path") == cache
    patterns = asked["allow_patterns"]
    assert asked["ignore_patterns"] == ["*/*"]  # original/model.safetensors is the same model once more
    from fnmatch import fnmatch

    wanted = ("config.json", "model-00001-of-00002.safetensors", "model.safetensors.index.json", "tokenizer.json")
    refused = ("pytorch_model.bin", "modeling_evil.py", "model.pt", "consolidated.pth", "training_args.bin")
    assert all(any(fnmatch(name, pattern) for pattern in patterns) for name in wanted)
    assert not any(fnmatch(name, pattern) for name in refused for pattern in patterns)


def test_what_cannot_be_had_is_said_in_one_line(monkeypatch):
    def fail(name, **words):
        raise LocalEntryNotFoundError("cannot reach it\nand more")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fail)
    with pytest.raises(ConfigError, match=r"^model\.path=org/absent: not in the local cache.*cannot reach it$"):
        hub.folder_of("org/absent", "model.path")
