"""Sizes before anything is built, against what is built."""

import json
from pathlib import Path

import pytest
import torch
from moe_families import LAYOUTS, family_config, family_model

from minirl.compose import load
from minirl.models.load import build as build_model
from minirl.models.load import tiny_config
from minirl.models.tape import RoutingTape
from minirl.sweep.estimate import estimate, in_bytes, in_count, moe_layers
from minirl.tasks.registry import build as build_task

MODELS = ("tiny_moe", "tiny_dense", "tiny_moe_deep")


@pytest.mark.parametrize("name", MODELS)
def test_parameters_are_those_of_the_model(name: str, tmp_path: Path) -> None:
    config = load([f"model={name}"])
    vocab_size = build_task(config.task, config.coldstart).vocab_size
    model = build_model(config.model, vocab_size=vocab_size, checkpoint=None)
    built = sum(parameter.numel() for parameter in model.parameters())
    tiny_config(config.model, vocab_size).save_pretrained(tmp_path)
    guess, known = estimate(config, None), estimate(config, tmp_path)
    assert known.parameters == built and known.whole
    assert guess.parameters == built - 2 * vocab_size * config.model.hidden_size and not guess.whole
    assert known.memory == 4 * built * 5 and known.disk == 4 * built * 3 * config.train.num_checkpoints


def test_sequences_tokens_and_routes() -> None:
    config = load(["num_mini_batches=8", "num_updates=8", "prompts_per_mini_batch=3", "group_size=5"])
    size = estimate(config, None)
    assert (size.prompts, size.responses, size.tokens) == (24, 120, 120 * 12)
    assert size.route_bytes == 120 * 12 * 3 * 4  # layers, experts per token, one byte each
    assert estimate(load(["model=tiny_dense"]), None).route_bytes == 0
    wide = estimate(load(["model.num_experts=300"]), None)
    assert wide.route_bytes == 16 * 8 * 12 * 3 * 4 * torch.int16.itemsize


def test_numbers_are_readable() -> None:
    assert [in_bytes(number) for number in (0, 999, 18_400, 4_470_000, 10**16)] == [
        "0 B",
        "999 B",
        "18.4 kB",
        "4.47 MB",
        "1e+04 TB",
    ]
    assert [in_count(number) for number in (950, 338_000, 30_500_000_000)] == ["950", "338k", "30.5G"]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layers_that_route_are_those_of_the_model(layout: str, tmp_path: Path) -> None:
    """Dense layers hold no routes: `--dry-run` counts them as the tape finds them."""
    family_config(layout).save_pretrained(tmp_path)
    settings = json.loads((tmp_path / "config.json").read_text())
    assert moe_layers(settings, settings["num_hidden_layers"]) == len(RoutingTape(family_model(layout)).layers)
