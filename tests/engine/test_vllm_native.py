"""vLLM's own way of returning routes, on a CPU: its second model runner through Triton's interpreter.

In a process of its own (make test-vllm-native): interpreter and runner are chosen for a whole process, by variables of
its environment that are set before Triton and vLLM are imported.
"""

import os
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from teacher_forcing import EOS, some_prompts, teacher_forced, tiny_model, vllm_config

from minirl.engine import vllm_server
from minirl.engine.vllm_engine import VllmEngine
from minirl.types import RolloutBatch, Sampling
from minirl.world import World

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.slow,
    pytest.mark.skipif(
        "TRITON_INTERPRET" not in os.environ, reason="needs Triton's interpreter: make test-vllm-native"
    ),
]
SAMPLING = Sampling(temperature=1.0, max_response_tokens=6, eos=EOS, seed=0, purpose="rollout")
PROMPTS = some_prompts(5, 40, 1)  # the second is longer than a block of the cache, so its siblings share a prefix


class Active:
    """A Triton driver that is there: vLLM uses Triton where exactly one is."""

    @staticmethod
    def is_active() -> bool:
        return True


@pytest.fixture(scope="module")
def engine() -> Iterator[VllmEngine]:
    """An engine as on a GPU, as far as its routes are concerned."""
    import triton.backends

    triton.backends.backends["cpu"] = SimpleNamespace(driver=Active, compiler=None)
    by_device = vllm_server.by_device
    native = {"enable_return_routed_experts": True}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(vllm_server, "by_device", lambda *given: by_device(*given) | native)
        patch.setattr(vllm_server, "route_source", lambda llm, routers, device: vllm_server.ReturnedRoutes(routers))
        yield VllmEngine(tiny_model(), engine=vllm_config(), world=World(0, 1, torch.device("cpu")))


def sampled(engine: VllmEngine, version: int) -> RolloutBatch:
    """By the weights of init_seed=version."""
    engine.load_parameters(tiny_model(init_seed=version).state_dict().items(), version)
    return engine.generate(PROMPTS, SAMPLING, 3)


@pytest.mark.parametrize("version", [0, 1], ids=["first weights", "after another load"])
def test_the_routes_are_those_of_every_token_but_the_last(engine: VllmEngine, version: int) -> None:
    batch = sampled(engine, version)
    own = teacher_forced(tiny_model(init_seed=version), batch)
    last = (batch.cu_seqlens[1:] - 1).tolist()
    assert batch.routes.present.logical_not().nonzero().flatten().tolist() == last
    same = batch.routes.experts.long().sort(-1).values == own.experts.sort(-1).values
    assert same[batch.routes.present].all()
    gap = (own.logprobs(batch.tokens, 1.0) - batch.rollout_logprobs)[batch.response_mask].abs()
    assert gap.max() <= 1e-5


def test_the_array_is_laid_out_as_the_tap_lays_it_out(engine: VllmEngine) -> None:
    """[prompt + response - 1, decoder layers, k] of the smallest integers, prefixes from the cache included."""
    given = list[Any]()
    original = engine.server.routes.of

    def of(outputs: Any) -> Any:
        given.extend(outputs)
        return original(outputs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine.server.routes, "of", of)
        sampled(engine, 0)
    assert any(output.num_cached_tokens for output in given)
    for output in given:
        rows, tokens = output.outputs[0].routed_experts, len(output.outputs[0].token_ids)
        assert rows.dtype == np.uint8 and rows.shape == (len(output.prompt_token_ids) + tokens - 1, 3, 4)
