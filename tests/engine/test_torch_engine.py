"""What is the torch engine's own: waves, the shared prefill, compaction, and the rounded KV cache."""

from collections.abc import Callable

import pytest
import torch
from teacher_forcing import EOS, some_prompts, teacher_forced, tiny_model
from torch import Tensor
from transformers import PreTrainedModel, Qwen3MoeConfig, Qwen3MoeForCausalLM

from minirl.config import Config, ConfigError, EngineConfig, Numerics
from minirl.engine.cache import DecodingCache, KeyValues, survivors
from minirl.engine.decoding import left_padded
from minirl.engine.numerics import ROUTER_NOISE, int4
from minirl.engine.registry import build
from minirl.engine.torch_engine import TorchEngine
from minirl.types import Prompt, Sampling
from minirl.world import World

SAMPLING = Sampling(temperature=1.0, max_response_tokens=12, eos=EOS, seed=0, purpose="rollout")


def engine_of(source: PreTrainedModel, own: PreTrainedModel, **changes: object) -> TorchEngine:
    usual = {"numerics": Numerics.fp32, "max_sequences": 64, "pad": 0, "device": torch.device("cpu")}
    engine = TorchEngine(own, **usual | changes)
    engine.load_parameters(source.state_dict().items(), 0)
    return engine


def watched(engine: TorchEngine) -> list[tuple[int, int]]:
    """[rows, tokens] of every forward from now on."""
    seen: list[tuple[int, int]] = []
    engine.model.get_input_embeddings().register_forward_pre_hook(lambda _, inputs: seen.append(tuple(inputs[0].shape)))
    return seen


def test_only_unfinished_responses_are_computed() -> None:
    engine = engine_of(tiny_model(), tiny_model())
    seen = watched(engine)
    batch = engine.generate(some_prompts(6, 6, 6), SAMPLING, 8)
    lengths = batch.response_lengths
    # one prefill row per prompt, then each sampled token but the last is fed once
    assert seen[0] == (3, 6)
    assert seen[1:] == [(n, 1) for n in ((lengths > step).sum().item() for step in range(1, 12)) if n]
    assert lengths.unique().numel() > 3


@pytest.mark.parametrize("max_sequences", [1, 5, 8, 24])
def test_waves_hold_at_most_max_sequences(max_sequences: int) -> None:
    engine = engine_of(tiny_model(), tiny_model(), max_sequences=max_sequences)
    seen = watched(engine)
    engine.generate(some_prompts(6, 6, 6), SAMPLING, 8)
    assert max(rows for rows, _ in seen) <= max_sequences


def test_prompts_of_like_length_share_a_wave() -> None:
    engine = engine_of(tiny_model(), tiny_model(), max_sequences=4)
    seen = watched(engine)
    engine.generate(some_prompts(9, 2, 9, 2), SAMPLING, 2)
    assert [shape for shape in seen if shape[1] > 1] == [(2, 2), (2, 9)]


def test_a_model_with_dense_layers_names_the_layers_of_its_routes() -> None:
    sizes = tiny_model().config.to_dict() | {"num_hidden_layers": 4, "mlp_only_layers": [0, 2]}
    torch.manual_seed(0)
    source, own = (Qwen3MoeForCausalLM(Qwen3MoeConfig(**sizes)).eval() for _ in range(2))
    batch = engine_of(source, own).generate(some_prompts(4, 7), SAMPLING, 3)
    assert batch.routes.layers == (1, 3)
    forced = teacher_forced(source, batch)
    found = batch.routes.experts.long().sort(-1).values[batch.routes.present]
    assert found.equal(forced.experts.sort(-1).values[batch.routes.present])
    expected = forced.logprobs(batch.tokens, 1.0).where(batch.response_mask, 0.0)
    assert (batch.rollout_logprobs - expected).abs().max() <= 1e-5


def test_a_tied_head_is_loaded_under_either_name() -> None:
    sizes = tiny_model().config.to_dict() | {"tie_word_embeddings": True}
    source, own = (Qwen3MoeForCausalLM(Qwen3MoeConfig(**sizes)).eval() for _ in range(2))
    by_parameter = engine_of(source, own)
    by_parameter.load_parameters(source.named_parameters(), 1)
    with torch.no_grad():
        source.lm_head.weight.add_(0.1)
    by_parameter.load_parameters(source.state_dict().items(), 2)
    batch = by_parameter.generate(some_prompts(4, 7), SAMPLING, 3)
    expected = teacher_forced(source, batch).logprobs(batch.tokens, 1.0).where(batch.response_mask, 0.0)
    assert (batch.rollout_logprobs - expected).abs().max() <= 1e-5


def stored_cache(numerics: Numerics) -> list[KeyValues]:
    """The cache of a forward under the given numerics."""
    engine = engine_of(tiny_model(), tiny_model(), numerics=numerics)
    cache = DecodingCache(["full_attention"] * 3, engine.roundings.keys_values)
    ids, mask = left_padded([(3, 4, 5, 6)] * 2, 0, torch.device("cpu"))
    with torch.no_grad():
        engine._forward(ids, mask.cumsum(-1) - 1, None, cache)
    return cache.stored


def fits_bfloat16(values: Tensor) -> bool:
    return bool((values.contiguous().view(torch.int32) & 0xFFFF == 0).all())


def fits_int4(values: Tensor) -> bool:
    """Each token and head holds multiples of a seventh of its largest entry."""
    levels = values / values.abs().amax(-1, keepdim=True) * 7
    return bool((levels - levels.round()).abs().max() < 1e-4)


def test_the_cache_holds_what_the_numerics_can_hold() -> None:
    rules: dict[Numerics, Callable[[Tensor], bool]] = {Numerics.bf16: fits_bfloat16, Numerics.int4: fits_int4}
    for numerics in Numerics:
        stored = [kv for layer in stored_cache(numerics) for kv in (layer.keys, layer.values)]
        for named, fits in rules.items():
            assert all(map(fits, stored)) == (named is numerics)


def test_the_cache_grows_keeps_and_rounds() -> None:
    generator = torch.Generator().manual_seed(0)
    steps = [torch.randn(5, 2, n, 4, generator=generator) for n in (3, 1, 1, 4)]
    layer = KeyValues(int4)
    for step in steps:
        keys, values = layer.update(step, -step)
    whole = torch.cat([int4(step) for step in steps], 2)
    assert keys.equal(whole) and values.equal(-whole)
    assert layer.get_seq_length() == 9 and layer.get_mask_sizes(2) == (11, 0)
    layer.keep(torch.tensor([0, 4, 2]))
    layer.expand(torch.tensor([2, 2, 1, 0]))
    keys, _ = layer.update(steps[1][:4], steps[1][:4])
    assert keys[:, :, :9].equal(whole[[2, 2, 4, 0]])


def test_survivors_move_at_most_once() -> None:
    assert survivors(torch.tensor([False, True, False, True, False])).tolist() == [0, 4, 2]
    assert survivors(torch.tensor([True, True])).tolist() == []
    generator = torch.Generator().manual_seed(0)
    for _ in range(50):
        finished = torch.rand(17, generator=generator) < 0.4
        order = survivors(finished)
        assert sorted(order.tolist()) == (~finished).nonzero().squeeze(-1).tolist()
        stay = (~finished)[: len(order)]
        assert order[stay].equal(torch.arange(len(order))[stay])


def test_padding_is_on_the_left() -> None:
    ids, mask = left_padded([(5, 6, 7), (8,)], 9, torch.device("cpu"))
    assert ids.tolist() == [[5, 6, 7], [9, 9, 8]]
    assert mask.tolist() == [[True] * 3, [False, False, True]]


def test_nothing_to_sample_is_refused() -> None:
    engine = engine_of(tiny_model(), tiny_model())
    with pytest.raises(ValueError, match="at least one token"):
        engine.generate([], SAMPLING, 2)
    with pytest.raises(ValueError, match=r"positions \[8\]"):
        engine.generate([Prompt(7, (1,), None), Prompt(8, (), None)], SAMPLING, 2)


def test_the_registry_builds_by_name() -> None:
    config = Config(engine=EngineConfig(name="torch", numerics=Numerics.int4, max_sequences=8))
    engine = build(config, tiny_model(), pad=0, world=World(0, 1, torch.device("cpu")))
    engine.load_parameters(tiny_model().state_dict().items(), 0)
    seen, batch = watched(engine), engine.generate(some_prompts(4, 4), SAMPLING, 8)
    engine.close()
    assert max(rows for rows, _ in seen) == 8
    expected = engine_of(tiny_model(), tiny_model(), numerics=Numerics.int4, max_sequences=8)
    assert batch.rollout_logprobs.equal(expected.generate(some_prompts(4, 4), SAMPLING, 8).rollout_logprobs)


@pytest.mark.parametrize(("name", "said"), [("vllm", "vLLM is not installed"), ("tgi", "no such engine")])
def test_engines_that_do_not_exist_are_refused(name: str, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("minirl.engine.vllm_engine.find_spec", lambda name: None)
    config = Config(engine=EngineConfig(name=name, numerics=Numerics.fp32, max_sequences=8))
    with pytest.raises(ConfigError, match=said):
        build(config, tiny_model(), pad=0, world=World(0, 1, torch.device("cpu")))


def test_noise_moves_the_choice_of_every_router_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    trained, shares = tiny_model(), {}
    for size in (0.0, ROUTER_NOISE):
        monkeypatch.setattr("minirl.engine.numerics.ROUTER_NOISE", size)
        batch = engine_of(trained, tiny_model(), numerics=Numerics.router_noise).generate(
            some_prompts(6, 6), SAMPLING, 8
        )
        forced, present = teacher_forced(trained, batch), batch.routes.present
        others = batch.routes.experts.long().sort(-1).values != forced.experts.sort(-1).values
        shares[size] = others[present].any(-1).double().mean(0)  # [L]
        gap = (forced.logprobs(batch.tokens, 1.0) - batch.rollout_logprobs)[batch.response_mask].abs()
        assert (gap.max() < 1e-5) == (size == 0.0)
    assert shares[0.0].equal(torch.zeros(3, dtype=torch.float64))
    assert bool((shares[ROUTER_NOISE] > 0.1).all()) and bool((shares[ROUTER_NOISE] < 0.9).all())
