"""Bytes of the parts, against what a backward pass really keeps and against known figures of a large model."""

from typing import Any

import pytest
import torch
from accounting_cases import paper
from torch import Tensor

from minirl.accounting.architecture import architecture, settings_of
from minirl.accounting.memory import Memory, memory
from minirl.accounting.work import work
from minirl.compose import load
from minirl.config import Config
from minirl.models.load import build as build_model


def of(config: Config, num_ranks: int = 8) -> Memory:
    shape = architecture(settings_of(config, None))
    return memory(config, shape, work(config, shape, expected=None), num_ranks=num_ranks)


@pytest.mark.parametrize(
    "overrides",
    [
        ["model=tiny_moe"],
        ["model=tiny_moe", "model.hidden_size=256", "model.head_dim=64", "model.moe_intermediate_size=96"],
        ["model=tiny_dense"],
        ["model=tiny_dense", "model.hidden_size=256", "model.intermediate_size=768"],
    ],
)
def test_activations_are_what_backward_keeps(overrides: list[str]) -> None:
    model: Any = build_model(load(overrides).model, vocab_size=20, checkpoint=None)
    weights = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    kept: dict[int, Tensor] = {}

    def keep(tensor: Tensor) -> Tensor:
        if tensor.untyped_storage().data_ptr() not in weights:
            kept[tensor.untyped_storage().data_ptr()] = tensor  # held, so that no address is used twice
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        output = model.base_model(input_ids=torch.randint(20, (64, 32)), use_cache=False)
    assert output.last_hidden_state.requires_grad
    measured = sum(tensor.untyped_storage().nbytes() for tensor in kept.values()) / (64 * 32 * 4)
    assert architecture(model.config.to_dict()).saved_numbers == pytest.approx(measured, rel=0.1)


def test_states_of_a_large_model() -> None:
    """Weights, gradients and Adam of Qwen3-30B-A3B in fp32: 61 GB on each of 8, half of that on each of 16."""
    assert of(paper()).states == pytest.approx(61e9, rel=0.01)
    assert of(paper(), num_ranks=16).states == pytest.approx(30.5e9, rel=0.01)


def test_an_engine_that_rests_gives_its_memory_to_the_update() -> None:
    awake, resting = of(paper("engine.sleep=false")), of(paper())
    given = awake.engine + awake.cache
    assert awake.phases["update"] - resting.phases["update"] == given
    assert awake.phases["rollout"] == resting.phases["rollout"]
    assert resting.cache == 32768 << 20


APART = (
    "engine.placement=separate",
    "engine.sleep=false",
    "engine.tensor_parallel=4",
    "engine.numerics=bf16",
    "eval.numerics=null",
    "engine.cache_mib=8192",
)


def test_an_engine_is_where_its_placement_puts_it() -> None:
    """Beside the trainer on its GPUs, in its processes or not, or on GPUs of its own."""
    colocated, shared = (of(paper(f"engine.placement={name}")) for name in ("colocated", "shared"))
    assert colocated == shared and colocated.phases["rollout"] > colocated.engine + colocated.cache
    beside, apart = of(paper(*APART[1:])), of(paper(*APART))
    assert apart.engine == beside.engine == pytest.approx(61e9 / 4, rel=0.01)  # cut over four GPUs
    given = beside.engine + beside.cache
    assert {name: beside.phases[name] - apart.phases[name] for name in apart.phases} == {
        "rollout": given,
        "update": given,
    }
    large = of(paper(*APART, "engine.cache_mib=70000"))
    assert large.phases["rollout"] == large.engine + large.cache  # the engine's GPUs are the fuller ones
    resting = of(paper(*APART, "train.offload=true", "engine.cache_mib=1024"))
    assert resting.phases["rollout"] == max(resting.parameters, resting.engine + resting.cache)


def test_numerics_are_bytes_of_the_engine() -> None:
    fp8, bf16 = of(paper()), of(paper("engine.numerics=bf16"))
    assert bf16.engine == 2 * fp8.engine == pytest.approx(61e9, rel=0.01)
    # vLLM is given rounded weights and computes in fp32 on them
    assert of(paper("engine.numerics=fp8_weights")).engine == of(paper("engine.numerics=fp32")).engine
    # the embedded engine emulates them in fp32
    assert of(load(["engine.numerics=fp8"])).engine == of(load(["engine.numerics=fp32"])).engine


def test_what_makes_a_micro_batch_smaller() -> None:
    plain = of(paper("train.activation_checkpointing=false"))
    assert of(paper()).activations < plain.activations / 4
    assert of(paper("train.max_tokens_per_micro_batch=69632")).activations > 1.5 * of(paper()).activations
    chunked = of(paper("train.likelihood_chunk_tokens=4096"))
    assert chunked.activations - of(paper()).activations == 3 * 4 * 2048 * 151936
    assert of(paper("train.compute_dtype=float32")).gathered == 2 * of(paper()).gathered
