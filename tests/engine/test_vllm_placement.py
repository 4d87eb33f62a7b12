"""Where vLLM runs: who is asked for whose prompts, in which order weights travel, and what is refused."""

import inspect
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from teacher_forcing import EOS, some_prompts, tiny_model, vllm_config

from minirl.config import ConfigError, Numerics, Placement
from minirl.engine import vllm_engine, vllm_placement, vllm_server
from minirl.engine.cuda_handles import HANDLES
from minirl.engine.responses import Response, Routers
from minirl.engine.vllm_placement import Colocated, Separate, Shared, place
from minirl.types import Prompt, Sampling
from minirl.world import FailedElsewhere, World

CPU = torch.device("cpu")
ROOT = Path(__file__).resolve().parents[2]


class OneOfMany(World):
    """A rank whose fellows have the given prompts, and hear what the first of their row scatters."""

    everyone: list[list[Prompt]]
    scattered: list[Any] | None = None

    def row(self, size: int) -> Any:
        return size

    def gather(self, value: Any) -> list[Any]:
        assert value == self.everyone[self.rank]
        return self.everyone

    def together(self, action: Any) -> Any:
        return action()

    def scatter(self, values: Any, row: Any) -> Any:
        object.__setattr__(self, "scattered", values)
        return "from the first" if values is None else values[self.rank % row]


def rank(number: int, lengths: list[int]) -> OneOfMany:
    """Rank `number` of a world whose ranks have so many prompts each."""
    world, prompts = OneOfMany(number, len(lengths), CPU), some_prompts(*[3] * sum(lengths))
    parts = [prompts[sum(lengths[:r]) :][: lengths[r]] for r in range(len(lengths))]
    object.__setattr__(world, "everyone", parts)
    return world


class Asked:
    """Answers each prompt with responses that name it; remembers which prompts it was asked for."""

    def __init__(self, group_size: int) -> None:
        self.group_size, self.positions = group_size, list[int]()

    def __call__(self, prompts: Any) -> list[Response]:
        self.positions += [prompt.position for prompt in prompts]
        return [Response([p.position, j], [0.0, 0.0], False, None, None) for p in prompts for j in range(2)]


def own(world: OneOfMany) -> list[list[int]]:
    return [[prompt.position, j] for prompt in world.everyone[world.rank] for j in range(2)]


class NextToAFailure(OneOfMany):
    """The first of its row has not got the answers."""

    def together(self, action: Any) -> Any:
        action()
        raise FailedElsewhere("ConfigError: rank 0: too long")

    def scatter(self, values: Any, row: Any) -> Any:
        raise AssertionError("waits for answers that do not come")


def test_what_the_asking_rank_refuses_ends_those_that_wait_for_its_answers() -> None:
    world = NextToAFailure(1, 2, CPU)
    object.__setattr__(world, "everyone", [some_prompts(3), some_prompts(4)])
    placed = Separate(vllm_config(placement=Placement.separate), world)
    with pytest.raises(FailedElsewhere, match="rank 0: too long"):
        placed.respond(world.everyone[1], 2, Asked(2))


@pytest.mark.parametrize("number", range(6))
def test_ranks_that_share_an_engine_submit_the_same_prompts_and_keep_their_own(number: int) -> None:
    world, asked = rank(number, [2, 1, 3, 2, 1, 4]), Asked(2)  # three engines of two ranks
    placed = Colocated(vllm_config(tensor_parallel=2), world)
    found = placed.respond(world.everyone[number], 2, asked)
    pair = world.everyone[number // 2 * 2 :][:2]
    assert asked.positions == [prompt.position for part in pair for prompt in part]
    assert [list(each.tokens) for each in found] == own(world)


def test_ranks_with_an_engine_each_ask_for_their_own() -> None:
    world, asked = rank(1, [2, 3]), Asked(2)
    found = Colocated(vllm_config(), world).respond(world.everyone[1], 2, asked)
    assert [list(each.tokens) for each in found] == own(world) and len(asked.positions) == 3


def test_rank_0_asks_a_separate_engine_for_all() -> None:
    world, asked = rank(0, [2, 1, 3]), Asked(2)
    placed = Separate(vllm_config(placement=Placement.separate), world)
    found = placed.respond(world.everyone[0], 2, asked)
    assert placed.serves and len(asked.positions) == 6 and [list(each.tokens) for each in found] == own(world)
    assert [len(part) for part in world.scattered or []] == [4, 2, 6]
    other, unasked = rank(2, [2, 1, 3]), Asked(2)
    placed = Separate(vllm_config(placement=Placement.separate), other)
    assert placed.respond(other.everyone[2], 2, unasked) == "from the first" and not placed.serves
    assert unasked.positions == [] and other.scattered is None


def test_the_first_of_the_ranks_that_share_their_gpus_asks_for_them() -> None:
    lengths = [2, 1, 3, 2]  # two engines of two ranks
    config = vllm_config(placement=Placement.shared, tensor_parallel=2)
    for number in range(4):
        world, asked = rank(number, lengths), Asked(2)
        placed = Shared(config, world)
        found = placed.respond(world.everyone[number], 2, asked)
        assert placed.serves == (number % 2 == 0)
        if placed.serves:
            assert [list(each.tokens) for each in found] == own(world) and len(asked.positions) == sum(
                lengths[number : number + 2]
            )
            assert [len(part) for part in world.scattered or []] == [2 * each for each in lengths[number : number + 2]]
        else:
            assert found == "from the first" and asked.positions == []


FOUR_RANKS = """
import os, sys
from teacher_forcing import some_prompts, vllm_config
from minirl.config import Placement
from minirl.engine.vllm_placement import Shared
from minirl.world import World

def right(number):
    os.environ["RANK"] = os.environ["LOCAL_RANK"] = str(number)
    world, prompts = World.join("cpu"), some_prompts(*[3] * 6)
    own = (prompts[:1], prompts[1:3], prompts[3:4], prompts[4:])[number]
    placed = Shared(vllm_config(placement=Placement.shared, tensor_parallel=2), world)
    found = placed.respond(own, 1, lambda asked: [(number, prompt.position) for prompt in asked])
    world.leave()
    return found == [(number // 2 * 2, prompt.position) for prompt in own]

for number in range(4):
    if os.fork() == 0:
        code = 1
        try:
            code = int(not right(number))
        finally:
            os._exit(code)
sys.exit(any([os.wait()[1] for _ in range(4)]))
"""


def test_two_engines_of_two_real_ranks_hand_responses_on(own_folder: Path) -> None:
    address = {"WORLD_SIZE": "4", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(20000 + os.getpid() % 20000)}
    environment = os.environ | address | {"PYTHONPATH": f"{ROOT}:{ROOT / 'tests' / 'engine'}"}
    subprocess.run([sys.executable, "-c", FOUR_RANKS], env=environment, cwd=own_folder, check=True, timeout=120)


def test_a_rank_with_an_engine_of_its_own_on_its_gpu_asks_for_its_own() -> None:
    world, asked = rank(1, [2, 3]), Asked(2)
    placed = Shared(vllm_config(placement=Placement.shared), world)
    found = placed.respond(world.everyone[1], 2, asked)
    assert placed.serves and [list(each.tokens) for each in found] == own(world) and world.scattered is None


@pytest.fixture
def transfer_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vllm_placement, "transfer", lambda backend: backend)
    stand_in = SimpleNamespace(BACKEND="in process", OWNER="OWNER_OF_A_TEST")
    monkeypatch.setitem(sys.modules, "minirl.engine.vllm_worker", stand_in)
    monkeypatch.setattr("minirl.engine.vllm_worker", stand_in, raising=False)


@pytest.mark.usefixtures("transfer_by_name")
def test_what_a_placement_asks_of_vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    monkeypatch.setenv("OWNER_OF_A_TEST", "0")
    world = World(0, 4, CPU)
    alone = place(vllm_config(), World(0, 1, CPU)).settings()
    assert alone == {"tensor_parallel_size": 1, "weight_transfer_config": "in process"}
    monkeypatch.setenv("RANK", "0")
    launched = place(vllm_config(tensor_parallel=2), world).settings()
    assert launched["distributed_executor_backend"] == "external_launcher" and launched["tensor_parallel_size"] == 2
    assert place(vllm_config(placement=Placement.separate, tensor_parallel=3), world).settings() == {
        "tensor_parallel_size": 3,
        "distributed_executor_backend": "mp",
        "device_ids": [4, 5, 6],
        "weight_transfer_config": "nccl",
    }
    # the second node of two: its third and fourth rank are neighbours on its third and fourth GPU
    asked = place(vllm_config(placement=Placement.shared, tensor_parallel=2), rank(7, [1] * 8)).settings()
    assert asked == {
        "tensor_parallel_size": 2,
        "distributed_executor_backend": "mp",
        "device_ids": [2, 3],
        "weight_transfer_config": HANDLES,
    }
    assert os.environ["OWNER_OF_A_TEST"] == str(os.getpid())


@pytest.mark.parametrize(
    ("placement", "size", "count", "said"),
    [
        ("separate", 2, 0, r"engine\.placement=separate: .* torch sees no GPU here; use engine\.placement=colocated"),
        ("separate", 2, 5, r"4 GPUs .* are 6, torch sees 5"),
        ("shared", 2, 0, r"engine\.placement=shared: .* torch sees no GPU here; use engine\.placement=colocated"),
        ("shared", 3, 4, r"engine\.tensor_parallel=3: .* 4 ranks cannot be cut into engines of 3"),
    ],
)
def test_an_engine_in_processes_of_its_own_needs_gpus(
    placement: str, size: int, count: int, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    engine = vllm_config(placement=Placement(placement), tensor_parallel=size)
    with pytest.raises(ConfigError, match=said):
        vllm_placement.refuse_few_devices(engine, count)
    for enough in ({"placement": Placement.separate}, {"placement": Placement.shared}, {}):
        vllm_placement.refuse_few_devices(vllm_config(tensor_parallel=2, **enough), 6 if enough else 0)


def test_models_that_a_placement_cannot_serve() -> None:
    with pytest.raises(ConfigError, match=r"engine\.tensor_parallel=3: must divide the 4 attention heads"):
        vllm_engine.refuse_model(tiny_model(), vllm_config(tensor_parallel=3), CPU)
    sinks = tiny_model()
    sinks.config.model_type = "gpt_oss"
    vllm_engine.refuse_model(sinks, vllm_config(), CPU)
    for placement in (Placement.separate, Placement.shared):
        with pytest.raises(ConfigError, match=rf"engine\.placement={placement}: vLLM loses parameters of gpt_oss"):
            vllm_engine.refuse_model(sinks, vllm_config(placement=placement), CPU)


@pytest.mark.parametrize("placement", [Placement.separate, Placement.shared])
def test_on_a_cpu_other_processes_are_refused_before_a_model_is_read(
    placement: Placement, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    enough = SimpleNamespace(LLM=type("LLM", (), dict.fromkeys(vllm_engine.METHODS)))
    monkeypatch.setitem(sys.modules, "vllm", enough)
    monkeypatch.setattr(vllm_engine, "find_spec", lambda name: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    with pytest.raises(ConfigError, match=rf"engine\.placement={placement}: weights travel from GPU to GPU"):
        vllm_engine.require(vllm_config(placement=placement))
    assert os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] == "1"


# --- against vLLM's own signatures -------------------------------------------------------------------------------


@pytest.mark.vllm
def test_vllm_takes_every_setting_of_every_placement(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each name is a parameter of LLM, or a field of the arguments that it passes on."""
    from dataclasses import fields

    from vllm import LLM
    from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory
    from vllm.engine.arg_utils import EngineArgs

    monkeypatch.setenv("RANK", "0")
    monkeypatch.setattr("vllm.LLM", lambda **settings: settings)
    known_transfers = WeightTransferEngineFactory._registry
    known = set(inspect.signature(LLM.__init__).parameters) | {spec.name for spec in fields(EngineArgs)}
    for name in Placement:
        engine = vllm_config(
            placement=name, tensor_parallel=2, numerics=Numerics.fp8, sleep=name is not Placement.separate
        )
        placed = place(engine, World(0, 2, CPU)).settings()
        assert placed["weight_transfer_config"].backend in known_transfers
        asked = vllm_server.started(tiny_model(), engine, Routers((0,), 8, 2), torch.device("cuda"), placed)
        assert set(asked) <= known
        assert asked["quantization"] == "fp8" and asked["enable_return_routed_experts"] is True
        assert asked["tensor_parallel_size"] == 2 and asked["enable_sleep_mode"] is engine.sleep


@pytest.mark.vllm
def test_sampling_is_what_vllm_takes() -> None:
    sampling = Sampling(temperature=0.7, max_response_tokens=12, eos=EOS, seed=0, purpose="eval", top_p=0.95)
    asked = vllm_server.sampling_params(sampling, 5, 1)
    assert (asked.temperature, asked.max_tokens, asked.logprobs, asked.stop_token_ids) == (0.7, 12, 0, [EOS])
    assert asked.top_p == 0.95
