"""Sizes from a config.json, against the models that transformers builds from it."""

import json
from pathlib import Path

import pytest
import torch
from accounting_cases import MODEL, QWEN3_30B_A3B
from moe_families import LAYOUTS, family_config, family_model
from transformers import AutoModelForCausalLM

from minirl.accounting.architecture import architecture, moe_layers, settings_of
from minirl.compose import load
from minirl.models.load import build as build_model
from minirl.models.load import tiny_config
from minirl.models.tape import RoutingTape

LARGE = {"hidden_size": 256, "intermediate_size": 512, "num_attention_heads": 8, "num_key_value_heads": 4}


@pytest.mark.parametrize("name", ["tiny_moe", "tiny_dense", "tiny_moe_deep"])
def test_parameters_are_those_of_the_model(name: str, tmp_path: Path) -> None:
    """Known before the vocabulary is, but for its two matrices."""
    config = load([f"model={name}"])
    model = build_model(config.model, vocab_size=20, checkpoint=None)
    built = sum(parameter.numel() for parameter in model.parameters())
    tiny_config(config.model, 20).save_pretrained(tmp_path)
    known, guess = architecture(settings_of(config, tmp_path)), architecture(settings_of(config, None))
    assert known.parameters == built and known.vocab_size == 20
    assert guess.parameters == built - 2 * 20 * config.model.hidden_size and guess.vocab_size is None


@pytest.mark.parametrize("layout", LAYOUTS)
def test_parameters_of_every_family(layout: str) -> None:
    """Biases and small gates apart, which are nothing in a real model: here 0.3 %."""
    own = {name: LARGE.get(name, value) for name, value in LAYOUTS[layout][1].items()}
    config = family_config(layout, **(LARGE | own | {"vocab_size": 5000}))
    with torch.device("meta"):
        built = sum(parameter.numel() for parameter in AutoModelForCausalLM.from_config(config).parameters())
    assert architecture(config.to_dict()).parameters == pytest.approx(built, rel=3e-3)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layers_that_route_are_those_of_the_model(layout: str, tmp_path: Path) -> None:
    """Dense layers hold no routes: a dry run counts them as the tape finds them."""
    family_config(layout).save_pretrained(tmp_path)
    settings = json.loads((tmp_path / "config.json").read_text())
    assert moe_layers(settings) == len(RoutingTape(family_model(layout)).layers)


def test_a_published_model() -> None:
    """Qwen3-30B-A3B: 30.5G parameters of which 3.3G are active (its card counts the embedding too)."""
    shape = architecture(QWEN3_30B_A3B)
    assert shape.parameters == 30_532_122_624
    assert shape.met + shape.vocabulary // 2 == pytest.approx(3.35e9, rel=0.01)
    assert shape.cached_numbers == 48 * 2 * 4 * 128


def test_the_keys_of_a_model_that_is_not_fetched_say_the_same(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(QWEN3_30B_A3B))
    by_keys = architecture(settings_of(load(MODEL), None))
    assert by_keys.parameters == architecture(settings_of(load([f"model.path={tmp_path}"]), None)).parameters
    smaller = architecture(settings_of(load([*MODEL, "model.vocab_size=1000"]), None))
    assert by_keys.parameters - smaller.parameters == 2 * 2048 * (151936 - 1000)
