"""How weights reach vLLM in processes of its own: which calls in which order, and what arrives. Both ends are vLLM's;
only NCCL, and the making and opening of CUDA handles, are replaced."""

import tempfile
from collections.abc import Callable
from math import prod
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from recorded_vllm import Kept, Recorder, crossed, receiving_end
from teacher_forcing import EOS, some_prompts, tiny_model, vllm_config
from torch import Tensor
from torch.storage import TypedStorage

from minirl.config import Numerics, Placement
from minirl.engine import vllm_engine, vllm_placement
from minirl.engine.cuda_handles import ARGUMENTS, HANDLES, arguments_of, described
from minirl.engine.served_names import served_names
from minirl.engine.vllm_engine import VllmEngine
from minirl.types import Sampling
from minirl.world import World

CPU = torch.device("cpu")
STATE = tiny_model().state_dict()
# as torch lays out the handle of a buffer of 64 bytes: see torch.multiprocessing.reductions.reduce_tensor
HANDLE = (Tensor, torch.Size([64]), (1,), 0, TypedStorage, torch.uint8)
HANDLE += (3, b"\x01cuda", 64, 512, False, b"\xffcounter", 1, b"event", True)


def test_a_handle_becomes_numbers_and_bytes_and_back() -> None:
    plain = described(HANDLE)
    assert len(plain) == len(HANDLE) - 3
    for value in plain.values():
        assert type(value) in (int, bytes, bool) or all(type(each) is int for each in value)
    assert arguments_of(plain) == HANDLE
    assert ARGUMENTS[6] == "storage_device"  # vLLM's worker writes its own there, by number
    assert arguments_of(plain | {"dtype": "anything"}) == HANDLE  # the wire has no say in what is made


@pytest.mark.parametrize(("place", "other"), [(0, torch.nn.Parameter), (4, torch.UntypedStorage), (5, torch.bfloat16)])
def test_a_handle_of_anything_but_bytes_is_refused(place: int, other: object) -> None:
    with pytest.raises(ValueError, match="expected the CUDA handle of a buffer of bytes"):
        described((*HANDLE[:place], other, *HANDLE[place + 1 :]))


@pytest.mark.vllm
def test_handles_pass_between_vllms_processes_as_they_are() -> None:
    """vLLM's own would have to be pickled, which it refuses unless it is told to trust whatever comes."""
    from vllm import envs

    assert not envs.VLLM_ALLOW_INSECURE_SERIALIZATION
    with pytest.raises(TypeError, match="VLLM_ALLOW_INSECURE_SERIALIZATION"):
        crossed({"ipc_handles": {"GPU": HANDLE}})
    assert arguments_of(crossed({"ipc_handles": {"GPU": described(HANDLE)}})["ipc_handles"]["GPU"]) == HANDLE


Built = Callable[..., tuple[VllmEngine, Recorder]]


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Built:
    """An engine around a recorder that is not asked for responses. What NCCL broadcasts is kept as `sent`; by handles
    weights arrive in `model`."""
    import file_handles
    from vllm.distributed.weight_transfer import nccl_engine

    from minirl.engine import vllm_transfer

    def build(**changes: Any) -> tuple[VllmEngine, Recorder]:
        calls, model = list[str](), tiny_model()
        model.config.model_type = changes.pop("family", model.config.model_type)
        kept = Kept()
        llm = Recorder(calls, receiving_end(HANDLES, kept) if changes["placement"] is Placement.shared else {})
        llm.model, llm.sent = kept, list[Tensor]()

        def broadcast(tensor: Tensor, src: int, stream: object) -> None:
            calls.append("broadcast")
            llm.sent.append(tensor)

        monkeypatch.setattr(nccl_engine, "open_trainer_endpoint", lambda end: SimpleNamespace(broadcast=broadcast))
        monkeypatch.setattr(vllm_engine, "started", lambda *given: llm)
        return VllmEngine(model, engine=vllm_config(**changes), world=World(0, 1, CPU)), llm

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    file_handles.install(monkeypatch.setattr)
    real = vllm_transfer.NCCLTrainerInitInfo
    monkeypatch.setattr(vllm_transfer, "NCCLTrainerInitInfo", lambda **end: real(**end, packed=False))  # CUDA streams
    monkeypatch.setattr(vllm_transfer, "BUFFER_BYTES", 0)
    monkeypatch.setattr(vllm_engine, "require", lambda engine: None)
    monkeypatch.setattr(vllm_engine, "routers_of", lambda model: None)
    monkeypatch.setattr(vllm_placement.Apart, "settings", lambda self: {})
    return build


LOAD = ["start_weight_update", "update_weights", "finish_weight_update {}"]
CHECKS = ["reset_prefix_cache", "get_weight_version"]


@pytest.mark.vllm
def test_a_load_over_nccl_is_start_update_finish_and_every_parameter_in_between(built: Built) -> None:
    engine, llm = built(placement=Placement.separate)
    engine.load_parameters(STATE.items(), 3)
    assert [each.data_ptr() for each in llm.sent] == [value.data_ptr() for value in STATE.values()]
    begin, end = llm.calls.index("broadcast"), len(llm.calls) - llm.calls[::-1].index("broadcast")
    assert llm.calls[begin - 3 : begin][0] == "init_weight_transfer_engine"
    assert "start_weight_update" in llm.calls[:begin] and llm.calls[end:][-3:] == ["finish_weight_update 3", *CHECKS]
    # update_weights runs in a thread of its own, beside the broadcasts
    others = [call for call in llm.calls if call != "broadcast"]
    assert others == ["init_weight_transfer_engine", *(call.format(3) for call in LOAD), *CHECKS]
    assert engine.version == 3


@pytest.mark.vllm
def test_a_load_by_handles_wakes_weights_first_and_the_cache_last(built: Built) -> None:
    engine, llm = built(placement=Placement.shared, sleep=True)
    for version in (3, 4):
        engine.load_parameters(STATE.items(), version)
        assert engine.version == version
        engine.rest()
    chunks = llm.calls.count("update_weights") // 2
    assert chunks > 3

    def load(version: int) -> list[str]:
        start, update, finish = LOAD
        return [start, *[update] * chunks, finish.format(version)]

    first = ["init_weight_transfer_engine", *load(3), *CHECKS, "sleep 2"]
    second = ["wake_up ['weights']", *load(4), "wake_up ['kv_cache', 'scheduling']", *CHECKS, "sleep 2"]
    assert llm.calls == first + second


@pytest.mark.vllm
@pytest.mark.parametrize("numerics", [Numerics.fp32, Numerics.bf16])
@pytest.mark.parametrize("family", ["qwen3_moe", "mixtral", "deepseek_v3"])
def test_what_arrives_by_handles_is_what_was_sent(built: Built, family: str, numerics: Numerics) -> None:
    """Experts stacked or one by one, and twice, so that a buffer is not read again after it was written over."""
    engine, llm = built(placement=Placement.shared, family=family, numerics=numerics)
    for version, state in enumerate((STATE, tiny_model(init_seed=1).state_dict())):
        llm.model.given.clear()
        engine.load_parameters(state.items(), version)
        expected = [pair for name, value in state.items() for pair in served_names(family)(name, value)]
        assert [name for name, _ in llm.model.given] == [name for name, _ in expected]
        for (name, found), (_, sent) in zip(llm.model.given, expected, strict=True):
            half = numerics is Numerics.bf16 and not name.endswith(
                ("norm.weight", "mlp.gate.weight", "moe.gate.weight")
            )
            assert found.equal(sent.bfloat16() if half else sent) and found.dtype is (
                torch.bfloat16 if half else torch.float32
            )


@pytest.mark.vllm
@pytest.mark.parametrize(("least", "fits"), [(0, "the largest parameter"), (1 << 20, "more")])
def test_the_buffer_holds_the_largest_parameter(
    built: Built, least: int, fits: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from minirl.engine import vllm_transfer

    monkeypatch.setattr(vllm_transfer, "BUFFER_BYTES", least)
    engine, llm = built(placement=Placement.shared)
    engine.load_parameters(STATE.items(), 0)
    (buffer,) = tmp_path.iterdir()
    largest = max(value.nbytes for value in STATE.values())
    assert buffer.stat().st_size == (least or largest)
    assert (llm.calls.count("update_weights") == 1) == (fits == "more")


@pytest.mark.vllm
def test_a_load_that_fails_leaves_no_version_and_the_next_one_is_whole(built: Built) -> None:
    engine, llm = built(placement=Placement.shared)
    engine.load_parameters(STATE.items(), 0)
    llm.model.failures = 1
    with pytest.raises(RuntimeError, match="no room"):
        engine.load_parameters(STATE.items(), 1)
    assert engine.version == -1 and "finish_weight_update 1" not in llm.calls
    with pytest.raises(RuntimeError, match="load_parameters"):
        engine.generate(some_prompts(3), Sampling(1.0, 4, EOS, 0, "rollout"), 1)
    llm.model.given.clear()
    engine.load_parameters(STATE.items(), 2)
    assert engine.version == 2 and all(
        found.equal(sent) for (_, found), sent in zip(llm.model.given, STATE.values(), strict=True)
    )


@pytest.mark.vllm
@pytest.mark.parametrize("placement", [Placement.separate, Placement.shared])
def test_an_engine_in_half_precision_is_sent_half_the_bytes(built: Built, placement: Placement) -> None:
    """All but routers and norms, one parameter after another."""
    sizes = {}
    for numerics in (Numerics.fp32, Numerics.bf16):
        engine, llm = built(placement=placement, numerics=numerics)
        engine.load_parameters(STATE.items(), 0)
        arrived = [value for _, value in llm.model.given] or llm.sent
        sizes[numerics] = sum(value.nbytes for value in arrived)
        assert sum(prod(value.shape) for value in arrived) == sum(value.numel() for value in STATE.values())
    assert sizes[Numerics.fp32] == sum(value.nbytes for value in STATE.values())
    assert 0.5 < sizes[Numerics.bf16] / sizes[Numerics.fp32] < 0.55


@pytest.mark.vllm
@pytest.mark.parametrize("placement", [Placement.separate, Placement.shared])
def test_a_rank_without_an_engine_gathers_parameters_and_calls_nothing(
    built: Built, placement: Placement, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vllm_engine, "started", None)
    model, read = tiny_model(), list[str]()
    config = vllm_config(placement=placement, tensor_parallel=2)
    engine = VllmEngine(model, engine=config, world=World(1, 2, CPU))
    engine.load_parameters(((name, read.append(name) or value) for name, value in model.state_dict().items()), 4)
    assert read == list(model.state_dict()) and engine.version == 4
    engine.rest()
    engine.close()


@pytest.mark.vllm
def test_vllm_starts_beside_a_trainer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own check of free memory, at what it is asked for and at its default, on a GPU that is nearly full."""
    from vllm.config import CacheConfig
    from vllm.v1.worker.utils import request_memory

    from minirl.engine.vllm_server import by_device

    asked = by_device(vllm_config(), None, torch.device("cuda"))["gpu_memory_utilization"]
    nearly_full = SimpleNamespace(total_memory=80 << 30, free_memory=8 << 30, device_="cuda:0")
    assert request_memory(nearly_full, CacheConfig(gpu_memory_utilization=asked)) < 8 << 30
    with pytest.raises(ValueError, match="Free memory on device"):
        request_memory(nearly_full, CacheConfig())
