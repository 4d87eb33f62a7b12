"""The inverse CDF and the uniform numbers it reads."""

import pytest
import torch
from torch import Tensor

from minirl.engine.sampling import draw, nucleus, response_uniforms, sampled_logprobs
from minirl.streams import stream
from minirl.types import Sampling


def sampling(**changes: object) -> Sampling:
    usual = {"temperature": 1.0, "max_response_tokens": 5, "eos": 1, "seed": 3, "purpose": "rollout"}
    return Sampling(**usual | changes)


def test_draw_inverts_the_cdf() -> None:
    logprobs = torch.tensor([0.25, 0.0, 0.5, 0.25]).log()  # a token of probability 0 among them
    cases = {0.0: 0, 0.2499: 0, 0.2501: 2, 0.5: 2, 0.7499: 2, 0.7501: 3, 1 - 2.0**-53: 3}
    found = draw(logprobs.expand(len(cases), 4), torch.tensor(list(cases), dtype=torch.float64))
    assert found.tolist() == list(cases.values())


def test_impossible_tokens_are_never_drawn() -> None:
    ends = torch.tensor([[-torch.inf, 0.3, 0.7, -torch.inf]]).log_softmax(-1)
    uniforms = torch.tensor([0.0, 5e-324, 0.5, 1 - 2.0**-53], dtype=torch.float64)
    found = draw(ends.expand(4, 4), uniforms)
    assert found.tolist() == [1, 1, 2, 2]


def test_a_large_vocabulary_is_summed_in_float64() -> None:
    size = 150_000
    logprobs = sampled_logprobs(torch.zeros(1, size), 1.0)
    targets = torch.tensor([7, 74_999, 149_998])
    found = draw(logprobs.expand(3, size), (targets.double() + 0.5) / size)
    assert found.equal(targets)


def test_rows_without_a_distribution_stay_visible() -> None:
    logits = torch.tensor([[0.0, torch.nan], [torch.inf, 0.0], [-torch.inf, -torch.inf], [-torch.inf, 0.0]])
    for temperature in (0.0, 1.0):
        logprobs = sampled_logprobs(logits, temperature)
        tokens = draw(logprobs, torch.full((4,), 0.5, dtype=torch.float64))
        assert bool(((tokens >= 0) & (tokens < 2)).all())
        chosen = logprobs.gather(-1, tokens[:, None]).squeeze(-1)
        assert chosen.isfinite().tolist() == [False, False, False, True]


@pytest.mark.parametrize("temperature", [0.6, 1.0, 1.3])
def test_logprobs_are_tempered(temperature: float) -> None:
    logits = torch.randn(6, 11, generator=torch.Generator().manual_seed(0))
    weights: Tensor = (logits.double() / temperature).exp()
    expected = (weights / weights.sum(-1, keepdim=True)).log()
    torch.testing.assert_close(sampled_logprobs(logits, temperature).double(), expected, rtol=0, atol=1e-6)


def test_temperature_zero_puts_all_mass_on_the_largest_logit() -> None:
    logprobs = sampled_logprobs(torch.tensor([[1.0, 3.0, 2.0], [5.0, -1.0, 0.0]]), 0.0)
    assert logprobs.exp().tolist() == [[0, 1, 0], [1, 0, 0]]
    assert draw(logprobs, torch.tensor([0.0, 0.999], dtype=torch.float64)).tolist() == [1, 0]


def test_a_nucleus_is_the_fewest_likeliest_tokens_that_reach_its_share() -> None:
    logprobs = torch.tensor([[0.1, 0.4, 0.2, 0.3], [0.25, 0.25, 0.25, 0.25]], dtype=torch.float64).log()
    kept = {
        0.05: [[1], 1],
        0.39: [[1], 2],
        0.41: [[1, 3], 2],
        0.69: [[1, 3], 3],
        0.71: [[1, 2, 3], 3],
        0.95: [[0, 1, 2, 3], 4],
    }
    for top_p, (tokens, number) in kept.items():
        found = nucleus(logprobs, top_p)
        assert found[0].isfinite().nonzero().flatten().tolist() == tokens
        weights = logprobs[0, tokens].exp()
        torch.testing.assert_close(found[0, tokens].exp(), weights / weights.sum(), rtol=1e-12, atol=0)
        assert found[1].isfinite().sum() == number  # equally likely ones: as many as it takes
    assert nucleus(logprobs, 1.0) is logprobs


def test_the_nucleus_of_what_has_no_distribution_has_none() -> None:
    logprobs = sampled_logprobs(torch.tensor([[0.0, torch.nan], [1.0, 3.0]]), 1.0)
    assert nucleus(logprobs, 0.5).isfinite().tolist() == [[False, False], [False, True]]
    greedy = sampled_logprobs(torch.tensor([[1.0, 3.0, 2.0]]), 0.0)
    assert nucleus(greedy, 0.5).exp().tolist() == [[0, 1, 0]]


def test_a_responses_numbers_are_its_own_stream() -> None:
    found = response_uniforms(sampling(), [(17, 0), (4, 3)])
    assert found.dtype == torch.float64 and found.shape == (2, 5)
    for row, (position, sample) in zip(found.tolist(), [(17, 0), (4, 3)], strict=True):
        assert row == stream(3, "rollout", position, sample).random(5).tolist()
    # the first numbers do not depend on how many are drawn
    assert response_uniforms(sampling(max_response_tokens=3), [(4, 3)]).equal(found[1:, :3])
