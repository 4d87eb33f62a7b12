"""The model of time: that of the paper, and how it answers to each key."""

from dataclasses import replace

import pytest
from accounting_cases import paper

from minirl.accounting.architecture import architecture, settings_of
from minirl.accounting.estimate import Estimate, estimate
from minirl.accounting.hours import seconds
from minirl.accounting.machine import machine
from minirl.accounting.work import work
from minirl.compose import load
from minirl.config import Config


def of(config: Config) -> Estimate:
    return estimate(config, None, machine(config.machine, config.run, []))


def test_an_update_of_the_paper() -> None:
    """arXiv 2512.01374: 5 to 6 GPU-hours per update; on 8 GPUs about 40 minutes, 33 days for 1,200 of them."""
    size = of(paper())
    assert 5 <= size.seconds.total * 8 / 3600 <= 6
    assert size.seconds.total / 60 == pytest.approx(40, abs=5)
    assert size.device_hours / 8 / 24 == pytest.approx(33, abs=4)


def test_a_checkpoint_of_the_paper() -> None:
    """Weights and both moments in fp32: 366 GB; the last good one is kept, and a new one made, beside the
    newest."""
    size = of(paper())
    assert size.checkpoint_bytes == pytest.approx(366e9, rel=0.01)
    assert size.disk == 3 * size.checkpoint_bytes
    assert of(paper("train.num_checkpoints=3")).disk == 5 * size.checkpoint_bytes


def test_more_devices_share_the_arithmetic_and_not_the_weights() -> None:
    one, two = of(paper()), of(paper("machine.num_nodes=2"))
    assert two.seconds.update == pytest.approx(one.seconds.update / 2)
    assert one.seconds.rollout / 2 < two.seconds.rollout < one.seconds.rollout


def test_activation_checkpointing_costs_a_forward_pass() -> None:
    plain, again = (of(paper(f"train.activation_checkpointing={value}")) for value in ("false", "true"))
    assert again.seconds.update - plain.seconds.update == pytest.approx(plain.seconds.old)
    assert plain.seconds.update == pytest.approx(3 * plain.seconds.old)


def test_attention_grows_with_the_square_of_the_length() -> None:
    """Twice the tokens, each with twice the context: between two and four times the time."""
    config = paper()
    shape, place = architecture(settings_of(config, None)), machine(config.machine, config.run, [])
    short, long = (seconds(config, shape, work(config, shape, expected=n), place, 90) for n in (8000, 16000))
    assert 2 < long.update / short.update < 4
    thin = replace(shape, head_dims=0)
    short, long = (seconds(config, thin, work(config, thin, expected=n), place, 90) for n in (8000, 16000))
    prompt = work(config, thin, expected=None).prompt
    assert long.update / short.update == pytest.approx((16000 + prompt) / (8000 + prompt))


def test_a_larger_batch_shares_its_decoding_steps() -> None:
    """All responses of N mini-batches are decoded side by side."""
    roomy = ("prompts_per_mini_batch=8", "engine.cache_mib=1000000")
    one, eight = (of(paper(*roomy, f"num_mini_batches={n}")) for n in (1, 8))
    assert eight.work.responses == 8 * one.work.responses
    assert eight.seconds.rollout < one.seconds.rollout
    assert eight.seconds.update == pytest.approx(one.seconds.update)


def test_devices_that_share_an_engine_share_its_weights() -> None:
    """With few responses on each device, reading the weights is what decoding takes."""
    few = ("prompts_per_mini_batch=8", "engine.cache_mib=30000")
    alone, together = (of(paper(*few, f"engine.tensor_parallel={n}")) for n in (1, 4))
    assert alone.seconds.rollout / 4 < together.seconds.rollout < alone.seconds.rollout / 2


def test_sequences_tokens_and_routes() -> None:
    config = load(["num_mini_batches=8", "num_updates=8", "prompts_per_mini_batch=3", "group_size=5"])
    batch = of(config).work
    assert (batch.prompts, batch.responses, batch.tokens) == (24, 120, 120 * 12)
    assert batch.route_bytes == 120 * 12 * 3 * 4  # layers, experts per token, one byte each
    assert of(load(["model=tiny_dense"])).work.route_bytes == 0
    assert of(load(["model.num_experts=300"])).work.route_bytes == 16 * 8 * 12 * 3 * 4 * 2


def test_what_the_trainer_copies_to_the_memory_of_a_node() -> None:
    """Weights and both moments, 12 bytes a parameter: once while the engine samples, once while a checkpoint is
    written. Without a GPU they lie beside the trainer's own."""
    plain = of(paper())
    copy = pytest.approx(12 * plain.shape.parameters, rel=1e-6)
    for key in ("train.offload=true", "train.async_checkpoints=true"):
        assert of(paper(key)).host - plain.host == copy
    assert of(paper("train.offload=true", "train.async_checkpoints=true")).host - plain.host == pytest.approx(
        24 * plain.shape.parameters, rel=1e-6
    )
    two = of(paper("train.offload=true", "machine.num_nodes=2"))
    assert two.copy_bytes == pytest.approx(6 * plain.shape.parameters, rel=1e-6)
    toy = (of(load([f"train.async_checkpoints={value}"])) for value in ("true", "false"))
    assert next(toy).host - next(toy).host == 12 * of(load([])).shape.parameters
