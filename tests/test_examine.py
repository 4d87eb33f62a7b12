"""The model of a checkpoint is the one that was trained, also where `model` alone does not say which that is."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from minirl.compose import load
from minirl.config import ConfigError, Numerics
from minirl.engine.torch_engine import TorchEngine
from minirl.examine import recorded_start, restored, run_of
from minirl.models.load import build as build_model
from minirl.policy.fsdp import FsdpPolicy
from minirl.tasks.registry import build as build_task
from minirl.world import World

CONFIG = load(["model.hidden_size=32", "model.num_layers=1", "model.num_experts=4", "run.device=cpu"])


@pytest.fixture
def world() -> Iterator[World]:
    joined = World.join("cpu")
    yield joined
    joined.leave()


@pytest.fixture
def run(own_folder: Path, world: World) -> Path:
    """A run that began from a checkpoint whose mixing weights do not sum to 1, unlike those of `model`."""
    vocab_size = build_task(CONFIG.task, CONFIG.coldstart).vocab_size
    model = build_model(CONFIG.model, vocab_size=vocab_size, checkpoint=None)
    model.config.norm_topk_prob = False
    model.save_pretrained(own_folder / "start")
    model = build_model(CONFIG.model, vocab_size=vocab_size, checkpoint=own_folder / "start")
    policy = FsdpPolicy(model, train=CONFIG.train, temperature=1.0, num_mini_batches=1, world=world)
    policy.save(own_folder / "run" / "checkpoints")
    record = {"coldstart": {"folder": str(own_folder / "start"), "content": "x"}}
    (own_folder / "run" / "run.json").write_text(json.dumps(record))
    return own_folder / "run"


def test_a_run_is_examined_as_the_model_it_trained(run: Path, world: World) -> None:
    """Instances of it too: those the evaluation's engine samples with."""
    trained = build_model(CONFIG.model, vocab_size=16, checkpoint=run.parent / "start")
    tokens = torch.arange(10)[None]
    for checkpoint in (run, run / "checkpoints", run / "checkpoints" / "0"):
        found = restored(CONFIG, checkpoint, world)
        assert found.policy.model.config.norm_topk_prob is False
        engine = TorchEngine(found.model(), numerics=Numerics.fp32, max_sequences=1, pad=0, device=world.device)
        engine.load_parameters(found.policy.parameters(), found.policy.version)
        with torch.no_grad():
            assert torch.allclose(engine.model(tokens).logits, trained(tokens).logits, atol=1e-5)


def test_a_start_that_is_gone_leaves_what_the_configuration_says(run: Path, world: World) -> None:
    (run.parent / "start" / "config.json").unlink()
    assert recorded_start(run) is None
    assert restored(CONFIG, run, world).policy.model.config.norm_topk_prob is True
    (run / "checkpoints").rename(run.parent / "elsewhere")
    assert recorded_start(run.parent / "elsewhere") is None
    with pytest.raises(ConfigError, match="neither a model in Hugging Face format nor a run's folder"):
        run_of(run.parent / "elsewhere")
