"""How often the report is wrong when there is nothing to find, and that it is right when there is."""

from itertools import product
from math import prod, sqrt

import numpy as np
import pytest
from report_null_runs import CLAIMS, null_sweep

from minirl.report.claims import evaluate
from minirl.report.findings import Verdict
from minirl.report.statistics import LEVEL, rate_above, rate_above_reference

NUM_SWEEPS = 400


def share_with(verdict: Verdict, effect: float, num_sweeps: int, seed: int) -> float:
    """The share of sweeps in which any claim gets this verdict."""
    random = np.random.default_rng(seed)
    hits = sum(any(one.verdict == verdict for one in evaluate(null_sweep(random, effect))) for _ in range(num_sweeps))
    return hits / num_sweeps


def most(rate: float, num: int) -> float:
    """The rate and three standard errors of the share that `num` draws of it give."""
    return rate + 3 * sqrt(rate * (1 - rate) / num)


def test_null_sweeps_are_rarely_reproduced_or_contradicted() -> None:
    """Autocorrelated curves with seed effects shared by all arms, five seeds, four claims; nothing is true of any."""
    for verdict in (Verdict.reproduced, Verdict.contradicted):
        assert share_with(verdict, 0.0, NUM_SWEEPS, 1) <= most(LEVEL, NUM_SWEEPS)


def test_a_strong_effect_is_found() -> None:
    assert share_with(Verdict.reproduced, 0.3, 40, 2) > 0.9


def test_claims_of_the_null_sweeps_are_of_every_continuous_kind() -> None:
    assert {claim["relation"] for claim in CLAIMS} == {"greater", "less", "ratio", "within"}


@pytest.mark.parametrize("num_seeds", [5, 6, 8])
@pytest.mark.parametrize("rate", [0.05, 0.2, 0.5])
def test_exact_counts_against_a_rate_hold_their_level(num_seeds: int, rate: float) -> None:
    """By enumeration: at the rate itself, the chance of either verdict is at most LEVEL / 2."""
    chances = {"for": 0.0, "against": 0.0}
    for outcome in product((0, 1), repeat=num_seeds):
        chance = prod(rate if hit else 1 - rate for hit in outcome)
        evidence = rate_above(sum(outcome), num_seeds, rate)
        chances["for"] += chance * (2 * evidence.p_for <= LEVEL)
        chances["against"] += chance * (2 * evidence.p_against <= LEVEL)
    assert max(chances.values()) <= LEVEL / 2


@pytest.mark.parametrize(
    "rates",
    [
        (0.5,) * 5,
        (0.1,) * 5,
        (0.9,) * 5,
        (0.05, 0.1, 0.5, 0.9, 0.95),
        (0.0, 0.0, 0.5, 1.0, 1.0),
        (0.2, 0.2, 0.5, 0.8, 0.8),
    ],
)
def test_counts_against_a_reference_hold_their_level_when_seeds_are_shared(rates: tuple[float, ...]) -> None:
    """Each seed has its own rate of collapse, the same in both arms: pairs are alike, the counts closer together."""
    chance_of_error = 0.0
    for ours, theirs in product(product((0, 1), repeat=5), repeat=2):
        chance = prod(p if hit else 1 - p for hits in (ours, theirs) for p, hit in zip(rates, hits, strict=True))
        chance_of_error += chance * (rate_above_reference(sum(ours), 5, sum(theirs), 5).p <= LEVEL)
    assert chance_of_error <= LEVEL
