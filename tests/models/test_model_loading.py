"""Tiny models depend on their seed alone; folders are read strictly; the content hash is of the content."""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from minirl.config import ConfigError, ModelConfig
from minirl.models.content import content_hash
from minirl.models.load import build

SIZES = {
    "name": "test",
    "path": None,
    "family": "qwen3_moe",
    "hidden_size": 16,
    "num_layers": 2,
    "num_heads": 2,
    "num_kv_heads": 1,
    "head_dim": 8,
    "intermediate_size": 24,
    "num_experts": 4,
    "num_experts_per_token": 2,
    "moe_intermediate_size": 8,
    "initializer_range": 0.1,
    "init_seed": 0,
}


def model(checkpoint=None, vocab=11, **changes):
    return build(ModelConfig(**(SIZES | changes)), vocab_size=vocab, checkpoint=checkpoint)


def same(left, right):
    return all(torch.equal(a, b) for a, b in zip(left.parameters(), right.parameters(), strict=True))


def edited(folder, **settings):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | settings))


@pytest.fixture
def folder(tmp_path):
    model(init_seed=7).save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def test_weights_depend_on_the_seed_and_nothing_else():
    torch.manual_seed(1)
    first = model()
    torch.manual_seed(2)
    before = torch.get_rng_state()
    second = model()
    assert torch.equal(before, torch.get_rng_state())  # and the global stream is left alone
    assert same(first, second) and not same(first, model(init_seed=1))


def test_a_tiny_model_is_the_stock_class_in_fp32_untied_and_normalised():
    built = model()
    assert type(built).__name__ == "Qwen3MoeForCausalLM" and type(model(family="qwen3")).__name__ == "Qwen3ForCausalLM"
    assert built.dtype == torch.float32 and not built.training
    assert built.config.norm_topk_prob and not built.config.tie_word_embeddings
    assert built.lm_head.weight is not built.model.embed_tokens.weight
    assert built.config._attn_implementation == "sdpa"


def test_a_checkpoint_replaces_the_weights(folder):
    assert same(model(checkpoint=folder), model(init_seed=7))


def test_a_folder_is_loaded_by_path(folder):
    assert same(model(path=str(folder)), model(init_seed=7))


def test_a_checkpoint_of_another_model_is_refused_with_the_difference(folder):
    with pytest.raises(ConfigError, match="hidden_size is 16, model= has 32"):
        model(checkpoint=folder, hidden_size=32)
    with pytest.raises(ConfigError, match="model_type is qwen3_moe, model= has qwen3"):
        model(checkpoint=folder, family="qwen3")


def test_an_unknown_moe_family_is_refused_before_weights_are_read(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "phimoe", "num_local_experts": 4}))
    with pytest.raises(ConfigError, match="'phimoe' is not supported"):
        model(path=str(tmp_path))  # there are no weights to read


def test_an_unknown_tiny_family_is_refused():
    with pytest.raises(ConfigError, match=r"model\.family=mamba"):
        model(family="mamba")


def test_a_folder_without_a_config_or_safetensors_is_refused(tmp_path, folder):
    with pytest.raises(ConfigError, match=r"no config\.json"):
        model(path=str(tmp_path))
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(ConfigError, match=r"no \.safetensors"):
        model(path=str(folder))


def test_a_missing_weight_is_never_left_to_chance(folder):
    weights = load_file(folder / "model.safetensors")
    del weights["model.norm.weight"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ConfigError, match=r"missing keys.*model\.norm\.weight"):
        model(path=str(folder))


def test_a_vocabulary_too_small_for_the_task_is_refused(folder):
    with pytest.raises(ConfigError, match="11 tokens, the task needs 12"):
        model(path=str(folder), vocab=12)


def test_dropout_is_off(folder):
    edited(folder, attention_dropout=0.5)
    assert model(path=str(folder)).config.attention_dropout == 0.0


def test_code_of_a_folder_is_never_run(folder):
    edited(folder, auto_map={"AutoModelForCausalLM": "evil.Model"})
    (folder / "evil.py").write_text("raise SystemExit('ran')")
    assert same(model(path=str(folder)), model(init_seed=7))


def test_the_hash_is_of_config_and_weights_not_of_files(folder, tmp_path):
    first = content_hash(folder)
    model(init_seed=7).save_pretrained(tmp_path / "sharded", max_shard_size="4KB")
    assert len(list((tmp_path / "sharded").glob("*.safetensors"))) > 2
    assert content_hash(tmp_path / "sharded") == first
    edited(folder, transformers_version="0")
    assert content_hash(folder) == first
    edited(folder, rms_norm_eps=1e-5)
    assert content_hash(folder) != first


def test_the_hash_sees_one_changed_bit_and_one_renamed_tensor(folder, tmp_path):
    first = content_hash(folder)
    weights = load_file(folder / "model.safetensors")
    for name, changed in {
        "bit": weights | {"model.norm.weight": weights["model.norm.weight"].nextafter(torch.tensor(2.0))},
        "name": {("x" if name == "model.norm.weight" else name): value for name, value in weights.items()},
    }.items():
        copy = shutil.copytree(folder, tmp_path / name)
        save_file(changed, copy / "model.safetensors", metadata={"format": "pt"})
        assert content_hash(copy) != first


def test_the_hash_of_a_folder_without_weights_is_an_error(folder):
    (folder / "model.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match="safetensors"):
        content_hash(folder)
