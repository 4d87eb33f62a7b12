"""What every engine must do. A new engine joins engine_makers.ENGINES and passes these tests unchanged."""

from collections.abc import Iterator

import pytest
import torch
from engine_makers import ENGINES, MakeEngine
from scipy.stats import chisquare
from teacher_forcing import (
    EOS,
    dense_model,
    response_logprobs,
    responses,
    some_prompts,
    teacher_forced,
    tiny_model,
)
from torch import Tensor
from transformers import PreTrainedModel

from minirl.config import ConfigError, Numerics
from minirl.interfaces import Engine
from minirl.types import Prompt, RolloutBatch, Sampling


@pytest.fixture(params=["torch", pytest.param("vllm", marks=pytest.mark.vllm)])
def make_engine(request: pytest.FixtureRequest) -> MakeEngine:
    return ENGINES[request.param]


@pytest.fixture(scope="module")
def trained() -> PreTrainedModel:
    """The trainer's model: never given to an engine, so never changed."""
    return tiny_model()


def loaded(engine: Engine, model: PreTrainedModel, version: int = 0) -> Engine:
    engine.load_parameters(parameters(model), version)
    return engine


def parameters(model: PreTrainedModel) -> Iterator[tuple[str, Tensor]]:
    for name, values in model.named_parameters():
        yield name, values.detach()


def sampling(**changes: object) -> Sampling:
    usual = {"temperature": 1.0, "max_response_tokens": 12, "eos": EOS, "seed": 0, "purpose": "rollout"}
    return Sampling(**usual | changes)


RARE = 1  # as eos: ends few responses
PROMPTS = some_prompts(5, 9, 1, 5, 7)


def as_far_as_equal(left: RolloutBatch, right: RolloutBatch) -> None:
    assert responses(left) == responses(right)
    torch.testing.assert_close(left.rollout_logprobs, right.rollout_logprobs, atol=1e-5, rtol=0)
    assert left.truncated.equal(right.truncated)


@pytest.mark.parametrize("temperature", [0.6, 1.0, 1.3])
def test_logprobs_are_those_of_the_tempered_full_distribution(
    make_engine: MakeEngine, trained: PreTrainedModel, temperature: float
) -> None:
    engine = loaded(make_engine(tiny_model()), trained)
    batch = engine.generate(PROMPTS, sampling(temperature=temperature), 4)
    forced = teacher_forced(trained, batch)
    expected = forced.logprobs(batch.tokens, temperature).where(batch.response_mask, 0.0)
    assert (batch.rollout_logprobs - expected).abs().max() <= 1e-5
    assert batch.rollout_logprobs.dtype == torch.float32
    # the mean ratio pi_old / mu of identical weights
    assert (expected - batch.rollout_logprobs).exp().mean() == pytest.approx(1.0, abs=1e-5)
    # an engine that forgot the temperature would be seen
    untempered = forced.logprobs(batch.tokens, 1.0).where(batch.response_mask, 0.0)
    assert temperature == 1.0 or (untempered - expected).abs().max() > 0.1


def test_a_nucleus_leaves_out_unlikely_tokens_and_no_others(make_engine: MakeEngine, trained: PreTrainedModel) -> None:
    """Sampled is what less than top_p is likelier than, by the log-probability of what is left; not always the
    likeliest; and from the full distribution others are drawn."""
    engine, farthest = loaded(make_engine(tiny_model()), trained), {}
    for share in (0.5, 1.0):
        batch = engine.generate(PROMPTS, sampling(top_p=share), 8)
        mu = teacher_forced(trained, batch).logits[batch.response_mask].double().softmax(-1)
        likelier = (mu[:, None] * (mu[:, None] > mu[:, :, None])).sum(-1)  # than each token, [sampled, V]
        own = batch.tokens[batch.response_mask][:, None]
        left = mu.where(likelier < share, 0.0)
        expected = (left / left.sum(-1, keepdim=True)).gather(-1, own).squeeze(-1).log()
        assert (batch.rollout_logprobs[batch.response_mask] - expected).abs().max() <= 1e-5
        farthest[share] = likelier.gather(-1, own).max()
    assert 0.0 < farthest[0.5] < 0.5 < farthest[1.0]


def test_the_logprob_is_the_sampled_tokens_not_the_likeliest(make_engine: MakeEngine, trained: PreTrainedModel) -> None:
    batch = loaded(make_engine(tiny_model()), trained).generate(PROMPTS, sampling(), 4)
    forced = teacher_forced(trained, batch)
    unlikely = batch.response_mask & (forced.logits.argmax(-1) != batch.tokens)
    assert unlikely.sum() > 20
    best = forced.logits.log_softmax(-1).amax(-1)
    assert bool((batch.rollout_logprobs[unlikely] < best[unlikely]).all())


def test_a_batch_can_be_used_under_autograd(make_engine: MakeEngine, trained: PreTrainedModel) -> None:
    batch = loaded(make_engine(tiny_model()), trained).generate(PROMPTS[:1], sampling(), 2)
    theta = torch.zeros_like(batch.rollout_logprobs, requires_grad=True)
    ((theta - batch.rollout_logprobs).exp() * batch.rollout_logprobs).sum().backward()
    assert bool((theta.grad[batch.response_mask] != 0).all())


def test_routes_are_those_of_prompt_and_response(make_engine: MakeEngine, trained: PreTrainedModel) -> None:
    batch = loaded(make_engine(tiny_model()), trained).generate(PROMPTS, sampling(), 4)
    routes, forced = batch.routes, teacher_forced(trained, batch).experts
    last = batch.cu_seqlens[1:] - 1
    # the last sampled token is never fed back; every other token of prompt and response has a route
    absent = torch.ones_like(routes.present).index_fill(0, last, False)
    assert routes.present.equal(absent)
    found = routes.experts.long().sort(-1).values[routes.present]
    assert found.equal(forced.sort(-1).values[routes.present])
    assert routes.layers == (0, 1, 2) and routes.num_experts == 16
    assert routes.experts.dtype == torch.uint8


def test_routes_of_many_experts_do_not_overflow(make_engine: MakeEngine) -> None:
    wide = {"num_experts": 300, "num_experts_per_token": 8, "moe_intermediate_size": 4, "num_layers": 1}
    source = tiny_model(**wide)
    batch = loaded(make_engine(tiny_model(**wide)), source).generate(PROMPTS, sampling(), 2)
    assert batch.routes.experts.dtype == torch.int16
    assert batch.routes.experts.max() > 255
    forced = teacher_forced(source, batch).experts
    found = batch.routes.experts.long().sort(-1).values
    assert found[batch.routes.present].equal(forced.sort(-1).values[batch.routes.present])


def test_a_dense_model_has_no_routes(make_engine: MakeEngine) -> None:
    source = dense_model()
    batch = loaded(make_engine(dense_model()), source).generate(PROMPTS, sampling(), 2)
    assert batch.routes is None
    expected = teacher_forced(source, batch).logprobs(batch.tokens, 1.0).where(batch.response_mask, 0.0)
    assert (batch.rollout_logprobs - expected).abs().max() <= 1e-5


def test_the_batch_is_group_after_group_in_prompt_order(make_engine: MakeEngine, trained: PreTrainedModel) -> None:
    batch = loaded(make_engine(tiny_model(), max_sequences=3), trained, version=7).generate(PROMPTS, sampling(), 4)
    assert len(batch) == 20 and batch.group_size == 4 and batch.version == 7
    assert batch.positions.tolist() == [prompt.position for prompt in PROMPTS for _ in range(4)]
    for b, (sequence, mask) in enumerate(
        zip(batch.tokens.split(batch.lengths.tolist()), batch.response_mask.split(batch.lengths.tolist()), strict=True)
    ):
        prompt = PROMPTS[b // 4].tokens
        assert tuple(sequence[: len(prompt)].tolist()) == prompt
        assert not mask[: len(prompt)].any() and mask[len(prompt) :].all()


@pytest.mark.parametrize("max_sequences", [1, 3, 64])
def test_a_response_does_not_depend_on_its_company(
    make_engine: MakeEngine, trained: PreTrainedModel, max_sequences: int
) -> None:
    reference = responses(loaded(make_engine(tiny_model()), trained).generate(PROMPTS, sampling(), 4))
    engine = loaded(make_engine(tiny_model(), max_sequences=max_sequences), trained)
    order = [3, 0, 4]
    other = responses(engine.generate([PROMPTS[i] for i in order], sampling(), 6))
    for place, i in enumerate(order):
        assert other[6 * place : 6 * place + 4] == reference[4 * i : 4 * i + 4]


def test_each_response_has_a_stream_of_its_own(make_engine: MakeEngine, trained: PreTrainedModel) -> None:
    engine = loaded(make_engine(tiny_model()), trained)
    same = [Prompt(position, PROMPTS[1].tokens, None) for position in (0, 1)]
    batches = [
        responses(engine.generate(same, sampling(seed=seed, purpose=purpose, eos=RARE), 3))
        for seed in (0, 1)
        for purpose in ("rollout", "eval")
    ]
    drawn = [tuple(response) for batch in batches for response in batch]
    assert len(set(drawn)) == len(drawn) == 24
    assert batches[0] == responses(engine.generate(same, sampling(eos=RARE), 3))


def test_responses_end_with_eos_or_at_the_limit(make_engine: MakeEngine, trained: PreTrainedModel) -> None:
    batch = loaded(make_engine(tiny_model()), trained).generate(PROMPTS, sampling(), 16)
    for response, truncated in zip(responses(batch), batch.truncated.tolist(), strict=True):
        assert 1 <= len(response) <= 12
        assert EOS not in response[:-1]
        assert truncated == (response[-1] != EOS)
        assert len(response) == 12 or not truncated
    assert 0 < int(batch.truncated.sum()) < len(batch)
    assert batch.response_lengths.unique().numel() > 3


def test_a_lower_limit_only_cuts(make_engine: MakeEngine, trained: PreTrainedModel) -> None:
    engine = loaded(make_engine(tiny_model()), trained)
    long = responses(engine.generate(PROMPTS, sampling(), 8))
    for limit in (1, 5):
        short = engine.generate(PROMPTS, sampling(max_response_tokens=limit), 8)
        assert responses(short) == [response[:limit] for response in long]
        assert short.truncated.tolist() == [EOS not in response[:limit] for response in long]


def test_the_pad_token_may_be_eos(make_engine: MakeEngine, trained: PreTrainedModel) -> None:
    apart, same = (
        loaded(make_engine(tiny_model(), pad=pad), trained).generate(PROMPTS, sampling(), 8) for pad in (0, EOS)
    )
    as_far_as_equal(apart, same)
    final = (same.cu_seqlens[1:] - 1)[~same.truncated]
    assert len(final) > 10
    assert bool((same.tokens[final] == EOS).all())
    assert bool(same.response_mask[final].all())
    assert bool((same.rollout_logprobs[final] < 0).all())


def test_temperature_zero_is_greedy(make_engine: MakeEngine, trained: PreTrainedModel) -> None:
    engine = loaded(make_engine(tiny_model()), trained)
    batch = engine.generate(PROMPTS, sampling(temperature=0.0), 2)
    best = teacher_forced(trained, batch).logits.argmax(-1)
    assert batch.tokens[batch.response_mask].equal(best[batch.response_mask])
    assert responses(batch) == responses(engine.generate(PROMPTS, sampling(temperature=0.0, seed=5), 2))
    # all mass is on the sampled token
    assert bool((batch.rollout_logprobs == 0).all()) and bool(batch.valid.all())


def test_tokens_follow_the_exact_distribution(make_engine: MakeEngine) -> None:
    source = tiny_model(vocab_size=6, num_layers=1)
    engine = loaded(make_engine(tiny_model(vocab_size=6, num_layers=1), max_sequences=4096), source)
    prompt = some_prompts(4, vocab_size=6)
    batch = engine.generate(prompt, sampling(temperature=0.7, max_response_tokens=2, eos=2), 4096)
    logits = source(torch.tensor([prompt[0].tokens])).logits[0, -1].detach().double()
    first = torch.tensor([response[0] for response in responses(batch)])
    counts = first.bincount(minlength=6).numpy()
    expected, untempered = ((logits / temperature).softmax(-1).numpy() * 4096 for temperature in (0.7, 1.0))
    assert chisquare(counts, expected).pvalue > 0.01
    assert chisquare(counts, untempered).pvalue < 1e-6
    # and the second token, given the commonest first one that does not end the response
    given = max((token for token in range(6) if token != 2), key=lambda token: counts[token])
    logits = source(torch.tensor([[*prompt[0].tokens, given]])).logits[0, -1].detach().double()
    second = torch.tensor([response[1] for response in responses(batch) if response[0] == given])
    expected = (logits / 0.7).softmax(-1).numpy() * len(second)
    assert len(second) > 500
    assert chisquare(second.bincount(minlength=6).numpy(), expected).pvalue > 0.01


def test_a_nan_spoils_the_responses_that_meet_it_and_no_other(
    make_engine: MakeEngine, trained: PreTrainedModel
) -> None:
    poison = PROMPTS[1].tokens[-1]
    spoiled = {name: values.clone() for name, values in parameters(trained)}
    spoiled["model.embed_tokens.weight"][poison] = torch.nan
    clean = loaded(make_engine(tiny_model()), trained).generate(PROMPTS, sampling(), 8)
    engine = make_engine(tiny_model())
    engine.load_parameters(spoiled.items(), 0)
    batch = engine.generate(PROMPTS, sampling(), 8)
    assert bool(batch.rollout_logprobs.isfinite().all())
    assert bool(clean.valid.all())
    kinds = {True: 0, False: 0}
    pairs = zip(responses(clean), responses(batch), response_logprobs(clean), response_logprobs(batch), strict=True)
    for b, (expected, found, old, new) in enumerate(pairs):
        seen = list(PROMPTS[b // 8].tokens) + expected[:-1]
        kinds[bool(batch.valid[b])] += 1
        assert bool(batch.valid[b]) == (poison not in seen)
        if batch.valid[b]:
            assert found == expected
            torch.testing.assert_close(new, old, atol=1e-5, rtol=0)
            assert batch.truncated[b] == clean.truncated[b]
        else:
            assert new[-1] == 0 and not batch.truncated[b]
    assert min(kinds.values()) >= 8


def test_a_nan_is_forgotten_with_the_weights_that_made_it(make_engine: MakeEngine, trained: PreTrainedModel) -> None:
    spoiled = {name: torch.full_like(values, torch.nan) for name, values in parameters(trained)}
    engine = make_engine(tiny_model())
    engine.load_parameters(spoiled.items(), 0)
    assert not engine.generate(PROMPTS, sampling(), 4).valid.any()
    batch = loaded(engine, trained, 1).generate(PROMPTS, sampling(), 4)
    assert bool(batch.valid.all())
    expected = teacher_forced(trained, batch).logprobs(batch.tokens, 1.0).where(batch.response_mask, 0.0)
    assert (batch.rollout_logprobs - expected).abs().max() <= 1e-5


def test_long_prompts_that_begin_alike(make_engine: MakeEngine, trained: PreTrainedModel) -> None:
    """An engine may compute their beginning once; it may not keep it over a load, nor lose its routes."""
    beginning = some_prompts(70)[0].tokens
    prompts = [Prompt(i, (*beginning, *tail), None) for i, tail in enumerate(((), (3, 4), (5,), tuple(range(10, 19))))]
    engine = make_engine(tiny_model())
    for version, source in enumerate((trained, trained, tiny_model(init_seed=1), trained)):
        loaded(engine, source, version)
        for _ in range(2):  # the second time, everything may be in a cache
            batch = engine.generate(prompts, sampling(), 4)
            forced = teacher_forced(source, batch)
            expected = forced.logprobs(batch.tokens, 1.0).where(batch.response_mask, 0.0)
            assert (batch.rollout_logprobs - expected).abs().max() <= 1e-5
            inputs = torch.ones_like(batch.routes.present).index_fill(0, batch.cu_seqlens[1:] - 1, False)
            assert batch.routes.present.equal(inputs)
            found = batch.routes.experts.long().sort(-1).values[inputs]
            assert found.equal(forced.experts.sort(-1).values[inputs])


def test_versions_and_weights_are_those_of_the_last_load(make_engine: MakeEngine, trained: PreTrainedModel) -> None:
    engine = make_engine(tiny_model())
    later = tiny_model(init_seed=1)
    for version, source in ((3, trained), (4, later), (3, trained)):
        loaded(engine, source, version)
        batch = engine.generate(PROMPTS, sampling(), 2)
        assert engine.version == batch.version == version
        expected = teacher_forced(source, batch).logprobs(batch.tokens, 1.0).where(batch.response_mask, 0.0)
        assert (batch.rollout_logprobs - expected).abs().max() <= 1e-5


@pytest.mark.parametrize("numerics", list(Numerics))
def test_every_load_rounds_anew_and_leaves_the_policy_alone(
    make_engine: MakeEngine, trained: PreTrainedModel, numerics: Numerics
) -> None:
    if numerics not in make_engine.numerics:
        with pytest.raises(ConfigError, match=rf"numerics={numerics}\b"):
            make_engine(tiny_model(), numerics=numerics)
        return
    before = {name: values.clone() for name, values in parameters(trained)}
    engine = loaded(make_engine(tiny_model(), numerics=numerics), trained)
    fresh = engine.generate(PROMPTS, sampling(), 2)
    loaded(engine, tiny_model(init_seed=1), 1)
    assert responses(engine.generate(PROMPTS, sampling(), 2)) != responses(fresh)
    for _ in range(2):  # rounding what is rounded already would drift
        loaded(engine, trained, 2)
        again = engine.generate(PROMPTS, sampling(), 2)
        assert again.tokens.equal(fresh.tokens) and again.rollout_logprobs.equal(fresh.rollout_logprobs)
    assert all(values.equal(before[name]) for name, values in parameters(trained))


def test_a_load_names_what_is_missing_unknown_or_misshapen(make_engine: MakeEngine, trained: PreTrainedModel) -> None:
    held = dict(parameters(trained))
    norm, head = "model.norm.weight", "lm_head.weight"
    wrong = {
        norm: {name: values for name, values in held.items() if name != norm},
        "model.nrom.weight": {**held, "model.nrom.weight": held[norm]},
        head: {**held, head: held[head][:-1]},
    }
    for named, given in wrong.items():
        engine = loaded(make_engine(tiny_model()), trained)
        with pytest.raises(ValueError, match=named):
            engine.load_parameters(given.items(), 1)
        # half-loaded weights are nobody's version
        with pytest.raises(RuntimeError, match="load_parameters"):
            engine.generate(PROMPTS, sampling(), 2)


def test_generate_before_any_load_is_refused(make_engine: MakeEngine) -> None:
    with pytest.raises(RuntimeError, match="load_parameters"):
        make_engine(tiny_model()).generate(PROMPTS, sampling(), 2)


def test_fp32_is_the_trainer_and_coarser_numerics_are_further_away(
    make_engine: MakeEngine, trained: PreTrainedModel
) -> None:
    distance, disagreement = {}, {}
    for numerics in [each for each in make_engine.numerics if each is not Numerics.router_noise]:  # it rounds nothing
        engine = loaded(make_engine(tiny_model(), numerics=numerics), trained)
        batch = engine.generate(some_prompts(*[6] * 16), sampling(), 8)
        forced = teacher_forced(trained, batch)
        gap = (forced.logprobs(batch.tokens, 1.0) - batch.rollout_logprobs)[batch.response_mask].double()
        distance[numerics] = float((gap.expm1() - gap).mean())  # k3, an estimate of KL(mu, pi_old)
        differs = (batch.routes.experts.long().sort(-1).values != forced.experts.sort(-1).values).any(-1)
        disagreement[numerics] = float(differs[batch.routes.present].float().mean())
    assert distance[Numerics.fp32] < 1e-10 and disagreement[Numerics.fp32] == 0.0
    coarser = [Numerics.fp32, Numerics.bf16, Numerics.fp8_weights, Numerics.fp8, Numerics.int4]
    coarser = [numerics for numerics in coarser if numerics in make_engine.numerics]
    assert [numerics for numerics, _ in sorted(distance.items(), key=lambda item: item[1])] == coarser
    shares = [disagreement[numerics] for numerics in coarser if numerics is not Numerics.fp8_weights]
    assert shares == sorted(set(shares))
