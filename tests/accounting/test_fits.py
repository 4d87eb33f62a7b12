"""What cannot fit is refused with a key; the key that is named makes it fit."""

from dataclasses import replace

import pytest
from accounting_cases import paper

from minirl.accounting.estimate import Estimate, estimate
from minirl.accounting.fits import crowding, problems
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


def test_what_is_started_here_is_not_advised_to_plan_with_another_machine() -> None:
    config = paper(*DENSE, "train.offload=true", "machine.host_memory_gib=1")
    planned = size(config)
    found = replace(planned, machine=replace(planned.machine, is_here=True))
    (line,) = problems(config, found)
    assert line.endswith("use a machine with more memory")


@pytest.fixture
def alone() -> Estimate:
    """A run on a GPU, with its states in the memory of the node while the engine samples."""
    return size(paper(*DENSE, "train.offload=true"))


def holding(one: Estimate, *, runs: float, on_device: float) -> Estimate:
    """The same run on a machine whose memories have room for so many of it."""
    device = replace(one.machine.device, memory=on_device * one.memory.peak / 0.95)
    return replace(one, machine=replace(one.machine, host_memory=runs * one.host / 0.95, device=device))


@pytest.mark.parametrize(
    ("slots", "num_places", "advice"),
    [
        (2, 2, []),
        (3, 3, []),
        (4, 4, ["--jobs=3"]),  # the node has room for three
        (2, 1, ["--jobs=1"]),  # two on one GPU, which has room for one
        (3, 2, ["--jobs=2"]),  # the third shares with the first
        (4, 2, ["--jobs=3", "--jobs=2"]),
        (9, 9, ["--jobs=3"]),
    ],
)
def test_runs_side_by_side_share_the_memory(alone: Estimate, slots: int, num_places: int, advice: list[str]) -> None:
    """`--jobs` as told makes them fit."""
    sizes = [holding(alone, runs=3.5, on_device=1.5)] * 6
    told = list(crowding(sizes, slots=slots, num_places=num_places))
    assert [line.rpartition("use ")[2] for line in told] == advice
    if advice:
        jobs = min(int(word.partition("=")[2]) for word in advice)
        assert list(crowding(sizes, slots=jobs, num_places=num_places)) == []
        assert list(crowding(sizes, slots=jobs + 1, num_places=num_places)) != []


def test_the_largest_runs_may_meet_and_no_more_than_there_are(alone: Estimate) -> None:
    room = holding(alone, runs=1.5, on_device=9)
    small = replace(room, host_copies=0)
    assert small.host < room.host / 3
    assert list(crowding([small, room, small], slots=2, num_places=2)) == []
    assert [line.rpartition("use ")[2] for line in crowding([small, room, room], slots=2, num_places=2)] == ["--jobs=1"]
    assert list(crowding([room], slots=8, num_places=8)) == []


def test_on_processors_the_nodes_memory_is_all_there_is() -> None:
    """A run's own device memory is part of it, and is counted once."""
    config = paper(*DENSE, "machine.gpu=null", "machine.gpus_per_node=null", "run.device=cpu")
    one = size(config)
    assert not one.machine.on_gpu and one.host > one.memory.peak
    room = replace(one, machine=replace(one.machine, host_memory=1.5 * one.host / 0.95))
    (line,) = crowding([room, room], slots=2, num_places=1)
    assert "in the memory of a node" in line and line.endswith("use --jobs=1")
