"""What cannot fit is refused with a key; the key that is named makes it fit."""

import pytest
from accounting_cases import paper

from minirl.accounting.estimate import Estimate, estimate
from minirl.accounting.fits import problems
from minirl.accounting.machine import machine
from minirl.config import Config
from minirl.sweep.accounts import where


def size(config: Config) -> Estimate:
    return estimate(config, None, machine(config.machine, config.run, []))


def told(*overrides: str) -> list[str]:
    config = paper(*overrides)
    return list(problems(config, size(config)))


DENSE = [
    "model=tiny_dense",
    "model.hidden_size=1536",
    "model.num_layers=28",
    "model.num_heads=12",
    "model.num_kv_heads=2",
    "model.head_dim=128",
    "model.intermediate_size=8960",
    "model.num_experts=0",
    "model.num_experts_per_token=0",
    "model.moe_intermediate_size=0",
    "model.vocab_size=151936",
    "machine.gpus_per_node=1",
    "sampling.max_response_tokens=7000",
    "train.max_tokens_per_micro_batch=16384",
    "engine.cache_mib=16384",
]


def test_what_fits_is_not_mentioned() -> None:
    assert told(*DENSE) == []


@pytest.mark.parametrize(
    ("overrides", "advice"),
    [
        (["train.activation_checkpointing=false"], "train.activation_checkpointing=true"),
        (["engine.sleep=false", "engine.cache_mib=36000"], "engine.sleep=true"),
        (
            ["train.max_tokens_per_micro_batch=400000", "sampling.max_response_tokens=30000"],
            "train.max_tokens_per_micro_batch=100000",
        ),
    ],
)
def test_the_advice_helps(overrides: list[str], advice: str) -> None:
    (line,) = told(*DENSE, *overrides)
    assert f"use {advice}" in line and "phase on each of 1" in line
    assert told(*DENSE, *overrides, *advice.split()) == []


def test_states_that_do_not_fit_need_more_nodes() -> None:
    grown = [*DENSE, "model.num_layers=120"]
    (line,) = told(*grown)
    advice = line.partition("use ")[2].split()
    assert advice[0].startswith("machine.num_nodes=")
    assert told(*grown, *advice) == []


def test_an_engine_larger_than_a_device_is_said_so() -> None:
    (line,) = told("engine.numerics=fp32")
    assert "no number of devices helps" in line


APART = ("engine.placement=separate", "engine.sleep=false", "eval.numerics=null")


def test_an_engine_on_gpus_of_its_own_leaves_fewer_ranks() -> None:
    """Eight GPUs: six of the trainer, two of the engine, all of them paid for."""
    beside, apart = size(paper()), size(paper(*APART, "engine.tensor_parallel=2"))
    assert (beside.machine.num_ranks, beside.engine_devices) == (8, 0)
    assert (apart.machine.num_ranks, apart.engine_devices) == (6, 2)
    assert where(beside).startswith("8 h100") and where(apart).startswith("6 and, for the engine, 2 h100")
    assert apart.memory.states == pytest.approx(8 / 6 * beside.memory.states)
    assert apart.seconds.update == pytest.approx(8 / 6 * beside.seconds.update)
    assert apart.device_hours == pytest.approx(8 * apart.seconds.total * apart.num_updates / 3600)
    two = size(paper("machine.gpus_per_node=2", "engine.tensor_parallel=2"))
    assert apart.seconds.rollout == two.seconds.rollout


def test_sleep_is_no_advice_for_an_engine_on_gpus_of_its_own() -> None:
    placed = [*APART, "engine.tensor_parallel=4"]
    (line,) = told(*placed)
    advice = line.partition("use ")[2].split()
    assert "phase on each of 4" in line and [word.partition("=")[0] for word in advice] == [
        "machine.num_nodes",
        "train.max_tokens_per_micro_batch",
    ]
    assert advice[0] == "machine.num_nodes=3"  # 16 ranks and the engine's four GPUs on nodes of eight
    assert told(*placed, *advice) == []


def test_the_memory_of_a_node() -> None:
    (line,) = told(*DENSE, "machine.host_memory_gib=0.01")[:1] or [""]
    assert "in the memory of a node" in line and "machine.host_memory_gib" in line


@pytest.mark.parametrize(
    ("overrides", "advice"),
    [
        (["train.async_checkpoints=true", "machine.host_memory_gib=36"], "train.async_checkpoints=false"),
        (["num_mini_batches=64", "num_updates=1216", "machine.host_memory_gib=27"], "num_mini_batches=32"),
        (["num_mini_batches=64", "num_updates=1216", "machine.host_memory_gib=24"], "num_mini_batches=16"),
        # fewer rollouts do not make the states fit
        (["num_mini_batches=64", "num_updates=1216", "machine.host_memory_gib=16"], "machine.num_nodes=2"),
        (["machine.host_memory_gib=1"], "machine.num_nodes=22"),
    ],
)
def test_the_advice_for_the_memory_of_a_node_helps(overrides: list[str], advice: str) -> None:
    lines = told(*DENSE, "train.offload=true", *overrides)
    assert f"use {advice}, or say more with machine.host_memory_gib" in lines[-1], lines
    assert not [line for line in told(*DENSE, "train.offload=true", *overrides, advice) if "memory of a node" in line]
