"""What is vLLM's own: the order of its calls, its faults and our way around them, and what is refused."""

import sys
from types import SimpleNamespace

import pytest
import torch
from teacher_forcing import EOS, some_prompts, teacher_forced, tiny_model, vllm_config
from transformers import PreTrainedModel

from minirl.agreement import EXPLAINED, Disagreement, refuse_disagreement
from minirl.config import ConfigError, Numerics
from minirl.engine import vllm_engine, vllm_server
from minirl.engine.responses import Routers
from minirl.engine.vllm_engine import VllmEngine
from minirl.types import OldPolicy, RolloutBatch, Sampling
from minirl.world import World

SAMPLING = Sampling(temperature=1.0, max_response_tokens=12, eos=EOS, seed=0, purpose="rollout")
PROMPTS = some_prompts(5, 9, 1, 40)
CPU = torch.device("cpu")
ALONE = World(0, 1, CPU)


def engine_of(model: PreTrainedModel, **changes: object) -> VllmEngine:
    engine = VllmEngine(model, engine=vllm_config(**changes), world=ALONE)
    engine.load_parameters(model.state_dict().items(), 0)
    return engine


def gap(model: PreTrainedModel, batch: RolloutBatch) -> torch.Tensor:
    """|log pi - log mu| of the sampled tokens."""
    expected = teacher_forced(model, batch).logprobs(batch.tokens, 1.0)
    return (expected - batch.rollout_logprobs)[batch.response_mask].abs()


@pytest.fixture(scope="module")
def shared() -> VllmEngine:
    return engine_of(tiny_model())


@pytest.mark.vllm
def test_experts_are_packed_after_every_load(monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM's fault on a CPU, by taking our way around it away: silently wrong, and caught by the self-check."""
    from vllm.model_executor.layers.fused_moe.unquantized_fused_moe_method import UnquantizedFusedMoEMethod

    model = tiny_model(moe_intermediate_size=32)  # a size that needs no padding: others crash, which is better
    right = engine_of(model).generate(PROMPTS, SAMPLING, 4)
    assert gap(model, right).max() <= 1e-5
    unpatched = UnquantizedFusedMoEMethod._setup_kernel.__wrapped__
    monkeypatch.setattr(UnquantizedFusedMoEMethod, "_setup_kernel", unpatched)
    wrong = engine_of(model).generate(PROMPTS, SAMPLING, 4)
    assert gap(model, wrong).mean() > EXPLAINED[Numerics.fp8_weights]
    logprobs = teacher_forced(model, wrong).logprobs(wrong.tokens, 1.0).where(wrong.response_mask, 0.0)
    old = OldPolicy(logprobs, torch.zeros_like(logprobs), None)
    with pytest.raises(Disagreement, match="does not hold the trainer's weights"):
        refuse_disagreement(
            wrong, old, bound=EXPLAINED[Numerics.fp8_weights], before=0.0, note=lambda text: None, world=ALONE
        )


@pytest.mark.vllm
def test_fp8_weights_is_the_same_function_on_both_engines() -> None:
    from minirl.engine.torch_engine import TorchEngine

    model = tiny_model()
    batch = engine_of(model, numerics=Numerics.fp8_weights).generate(PROMPTS, SAMPLING, 4)
    other = TorchEngine(tiny_model(), numerics=Numerics.fp8_weights, max_sequences=64, pad=0, device=CPU)
    other.load_parameters(model.state_dict().items(), 0)
    assert gap(other.model, batch).max() <= 1e-5
    assert gap(model, batch).mean() > 1e-3


@pytest.mark.vllm
def test_parameters_are_copied(shared: VllmEngine) -> None:
    model = tiny_model(init_seed=1)
    given = {name: values.clone() for name, values in model.state_dict().items()}
    shared.load_parameters(given.items(), 5)
    for values in given.values():
        values.zero_()  # the trainer goes on
    assert gap(model, shared.generate(PROMPTS, SAMPLING, 2)).max() <= 1e-5


@pytest.mark.vllm
def test_responses_of_other_weights_are_refused(shared: VllmEngine) -> None:
    shared.load_parameters(tiny_model().state_dict().items(), 6)
    shared.server.llm.update_weight_version("7")
    with pytest.raises(RuntimeError, match=r"weights \['7'\], expected version 6"):
        shared.generate(PROMPTS, SAMPLING, 2)


@pytest.mark.vllm
def test_what_does_not_fit_is_refused_not_cut(shared: VllmEngine) -> None:
    shared.load_parameters(tiny_model().state_dict().items(), 6)
    with pytest.raises(ConfigError, match=r"engine\.max_sequence_tokens=128 .* 117 tokens and 12"):
        shared.generate(some_prompts(117), SAMPLING, 2)
    assert len(shared.generate(some_prompts(116), SAMPLING, 2)) == 2


@pytest.mark.vllm
def test_starting_an_engine_leaves_the_callers_random_numbers_alone() -> None:
    torch.manual_seed(3)
    expected = torch.rand(4)
    torch.manual_seed(3)
    engine_of(tiny_model())
    assert torch.rand(4).equal(expected)


class RecordedCalls:
    """An LLM that only notes what it is asked, beside the real one."""

    def __init__(self, llm: object) -> None:
        self.llm, self.calls = llm, list[str]()

    def __getattr__(self, name: str) -> object:
        asked = getattr(self.llm, name)

        def noted(*args: object, **kwargs: object) -> object:
            tags = kwargs.get("tags") or [kwargs[key] for key in ("weight_version", "level") if key in kwargs]
            self.calls.append(" ".join([name, *map(str, tags)]))
            return asked(*args, **kwargs)

        return noted


@pytest.mark.vllm
def test_the_order_of_calls_of_a_step() -> None:
    """The sequence that a GPU needs: weights have a place before they come, the cache after they are there."""
    engine, model = engine_of(tiny_model(), sleep=True), tiny_model()
    recorded = RecordedCalls(engine.server.llm)
    engine.server.llm = engine.server.routes.llm = engine.place.llm = recorded
    for version in (1, 2):
        engine.load_parameters(model.state_dict().items(), version)
        engine.generate(PROMPTS, SAMPLING, 2)
        engine.rest()
        engine.rest()  # asleep already
        with pytest.raises(RuntimeError, match="load_parameters"):
            engine.generate(PROMPTS, SAMPLING, 2)
    half = recorded.calls.index("sleep 2") + 1
    first, second = recorded.calls[:half], recorded.calls[half:]
    rollout = ["reset_prefix_cache", "collective_rpc", "generate", "collective_rpc", "sleep 2"]
    update = ["start_weight_update", "update_weights", "finish_weight_update {}"]
    checks = ["reset_prefix_cache", "get_weight_version"]
    assert first == [call.format(1) for call in update] + checks + rollout
    assert second == [
        "wake_up weights",
        *(call.format(2) for call in update),
        "wake_up kv_cache scheduling",
        *checks,
        *rollout,
    ]


def test_a_vllm_that_lacks_something_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    old = SimpleNamespace(LLM=type("LLM", (), {name: None for name in vllm_engine.METHODS if name != "sleep"}))
    monkeypatch.setitem(sys.modules, "vllm", old)
    monkeypatch.setattr(vllm_engine, "find_spec", lambda name: True)
    monkeypatch.setattr(vllm_engine, "installed", lambda: "0.7.3")
    with pytest.raises(ConfigError, match=r"vLLM 0\.7\.3 has no LLM\.sleep; minirl is built for vLLM 0\.32"):
        vllm_engine.require(vllm_config())


def test_a_vllm_of_another_layout_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "vllm", SimpleNamespace())
    monkeypatch.setattr(vllm_server, "installed", lambda: "0.9.0")
    with pytest.raises(ConfigError, match=r"vLLM 0\.9\.0 is not laid out as 0\.32 is"):
        vllm_server.started(tiny_model(), vllm_config(), None, CPU, {})


@pytest.mark.parametrize("numerics", [Numerics.fp8, Numerics.int4, Numerics.router_noise])
def test_what_the_platform_cannot_do_is_refused(numerics: Numerics, monkeypatch: pytest.MonkeyPatch) -> None:
    enough = SimpleNamespace(LLM=type("LLM", (), dict.fromkeys(vllm_engine.METHODS)))
    monkeypatch.setitem(sys.modules, "vllm", enough)
    monkeypatch.setattr(vllm_engine, "find_spec", lambda name: True)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    vllm_engine.require(vllm_config())
    with pytest.raises(ConfigError, match=rf"engine\.numerics={numerics}"):
        vllm_engine.require(vllm_config(numerics=numerics))


def test_a_head_that_the_cpu_kernels_lack_is_refused() -> None:
    vllm_engine.refuse_model(tiny_model(), vllm_config(), CPU)
    vllm_engine.refuse_model(tiny_model(head_dim=8), vllm_config(), torch.device("cuda"))
    with pytest.raises(ConfigError, match=r"model\.head_dim=8: on a CPU vLLM takes one of 32, 64"):
        vllm_engine.refuse_model(tiny_model(head_dim=8), vllm_config(), CPU)


def test_an_aborted_response_is_an_error() -> None:
    completion = SimpleNamespace(token_ids=[3], logprobs=[{3: SimpleNamespace(logprob=-1.0)}], finish_reason="abort")
    with pytest.raises(RuntimeError, match="ended a response by 'abort'"):
        vllm_server.response(SimpleNamespace(outputs=[completion]), None, SAMPLING)


@pytest.mark.parametrize(
    ("change", "argument"),
    [
        ({"max_sequences": 7}, "max_num_seqs"),
        ({"max_sequence_tokens": 99}, "max_model_len"),
        ({"cache_mib": 5}, "kv_cache_memory_bytes"),
        ({"prefix_caching": False}, "enable_prefix_caching"),
    ],
)
def test_every_size_reaches_vllm(change: dict[str, object], argument: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """And changes nothing else. Stand-ins for vLLM's modules record what the engine would be built with."""
    worker = SimpleNamespace(__name__="worker", WorkerExtension=object, BACKEND="backend")
    stand_ins = {
        "vllm": SimpleNamespace(LLM=lambda **settings: settings),
        "minirl.engine.vllm_worker": worker,
    }
    for name, stand_in in stand_ins.items():
        monkeypatch.setitem(sys.modules, name, stand_in)
    monkeypatch.setattr("minirl.engine.vllm_worker", worker, raising=False)

    def settings(**changes: object) -> dict[str, object]:
        return vllm_server.started(tiny_model(), vllm_config(**changes), None, CPU, {}) | {"model": "folder"}

    usual, changed = settings(), settings(**change)
    assert {name for name in usual if usual[name] != changed[name]} == {argument}


def test_a_gpu_is_asked_for_what_a_cpu_has_not() -> None:
    routers = Routers((0, 1), 8, 2)
    cpu, gpu = (vllm_server.by_device(vllm_config(sleep=True), routers, torch.device(name)) for name in ("cpu", "cuda"))
    whole_prompts = {"enable_chunked_prefill": False, "max_num_batched_tokens": 2048}
    assert cpu == {"enforce_eager": True, "block_size": 32, **whole_prompts}
    beside_a_trainer = {"gpu_memory_utilization": 0.01}
    assert gpu == beside_a_trainer | {"enable_sleep_mode": True, "enable_return_routed_experts": True}
    fp8 = vllm_server.by_device(vllm_config(numerics=Numerics.fp8), None, torch.device("cuda"))
    plain = beside_a_trainer | {"enable_sleep_mode": False, "enable_return_routed_experts": False}
    assert fp8 == plain | {"quantization": "fp8"}
