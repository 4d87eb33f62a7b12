"""Against scipy.stats, closed forms and worked numbers."""

from itertools import product
from math import sqrt

import numpy as np
import pytest
from scipy import stats

from minirl.report.statistics import (
    LEVEL,
    MOST_SEEDS,
    Evidence,
    Location,
    above,
    difference_of_means,
    holm,
    holm_level,
    jointly,
    location,
    rate_above,
    rate_above_reference,
    rate_interval,
    seeds_needed,
    seeds_needed_to_count,
    within,
)

# differences of ten pairs of toy runs, of which a paired t of 1.1 was written down before this code was
PAIRS = [0.271, 0.255, 0.027, -0.156, 0.037]


def samples(seed: int, size: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(0.1, 0.3, size)


def test_a_worked_t_test() -> None:
    mean = location(PAIRS)
    assert mean.estimate == pytest.approx(0.0868)
    # deviations .1842 .1682 -.0598 -.2428 -.0498, squares sum to .12723; sqrt(.12723 / 4 / 5)
    assert mean.error == pytest.approx(0.0798, abs=1e-4)
    assert mean.estimate / mean.error == pytest.approx(1.1, abs=0.05)
    # t(4, 0.975) = 2.776
    assert mean.interval(LEVEL) == pytest.approx((0.0868 - 2.776 * mean.error, 0.0868 + 2.776 * mean.error), abs=1e-4)


@pytest.mark.parametrize("size", [2, 3, 5, 12])
@pytest.mark.parametrize("margin", [-0.2, 0.0, 0.1])
def test_paired_t_is_scipys(size: int, margin: float) -> None:
    left, right = samples(1, size), samples(2, size)
    mean = location(left - right)
    for side, p in (("greater", mean.p_above(margin)), ("less", mean.p_below(margin))):
        assert p == pytest.approx(stats.ttest_rel(left, right + margin, alternative=side).pvalue, rel=1e-9)
    expected = stats.ttest_rel(left, right).confidence_interval(0.95)
    assert mean.interval(LEVEL) == pytest.approx((expected.low, expected.high), rel=1e-9)


@pytest.mark.parametrize(("first", "second"), [(3, 3), (5, 8), (12, 4)])
def test_unpaired_t_is_scipys_welch(first: int, second: int) -> None:
    left, right = samples(3, first), 3 * samples(4, second)
    mean = difference_of_means(left, right)
    expected = stats.ttest_ind(left, right, equal_var=False, alternative="greater")
    assert mean.p_above(0.0) == pytest.approx(expected.pvalue, rel=1e-9)
    assert mean.freedom == pytest.approx(expected.df)
    assert mean.num_seeds == min(first, second)


@pytest.mark.parametrize("seed", range(8))
def test_two_one_sided_tests_are_scipys(seed: int) -> None:
    values, margin = samples(seed, 6), 0.4
    evidence = within(location(values), margin)
    lower = stats.ttest_1samp(values, -margin, alternative="greater").pvalue
    upper = stats.ttest_1samp(values, margin, alternative="less").pvalue
    assert evidence.p_for == pytest.approx(max(lower, upper), rel=1e-9)


def test_within_is_what_the_interval_says() -> None:
    """For one claim: reproduced iff the 95 % interval lies inside the margin, contradicted only if it lies outside."""
    seen = set()
    for center, spread in product(np.linspace(-1, 1, 21), (0.02, 0.1, 0.3)):
        mean = Location(float(center), float(spread), 5, 6)
        low, high = mean.interval(LEVEL)
        evidence = within(mean, 0.4)
        inside = low > -0.4 and high < 0.4
        decided = evidence.p <= LEVEL
        assert (decided and evidence.p_for < evidence.p_against) == inside
        if decided and evidence.p_for > evidence.p_against:
            assert low > 0.4 or high < -0.4
            seen.add("outside")
        seen.add(inside)
    assert seen == {True, False, "outside"}


@pytest.mark.parametrize("margin", [0.0, 0.05])
def test_a_one_sided_claim_and_its_mirror_image(margin: float) -> None:
    """Exchanging the arms and the sign of the margin exchanges reproduced and contradicted, number for number."""
    left, right = samples(5, 5), samples(6, 5)
    evidence = above(location(left - right), margin)
    assert above(location(right - left), -margin) == evidence.opposite()
    assert evidence.p_for + evidence.p_against == pytest.approx(1.0)
    assert evidence.p == pytest.approx(stats.ttest_rel(left - margin, right).pvalue)


def test_all_seeds_alike() -> None:
    same = location([0.5, 0.5, 0.5])
    assert (same.p_above(0.4), same.p_below(0.4)) == (0.0, 1.0)
    assert above(location([0.0, 0.0, 0.0]), 0.0).p == 1.0
    assert within(location([0.0, 0.0, 0.0]), 0.1).p_for == 0.0


def test_joint_claims_need_every_part_and_fall_with_any() -> None:
    parts = [Evidence(0.01, 0.99), Evidence(0.2, 0.8), Evidence(0.97, 0.004)]
    assert jointly(parts) == Evidence(0.97, pytest.approx(0.012))


@pytest.mark.parametrize(("count", "total"), [(0, 5), (1, 5), (3, 5), (5, 5), (4, 9)])
@pytest.mark.parametrize("rate", [0.05, 0.5, 0.8])
def test_counts_against_a_rate_are_scipys(count: int, total: int, rate: float) -> None:
    evidence = rate_above(count, total, rate)
    for side, p in (("greater", evidence.p_for), ("less", evidence.p_against)):
        assert p == pytest.approx(stats.binomtest(count, total, rate, alternative=side).pvalue, rel=1e-9)
    expected = stats.binomtest(count, total).proportion_ci(0.95, method="exact")
    assert rate_interval(count, total, LEVEL) == pytest.approx((expected.low, expected.high), rel=1e-9)


@pytest.mark.parametrize(("count", "total", "reference", "reference_total"), [(5, 5, 0, 5), (3, 5, 1, 4), (0, 6, 6, 6)])
def test_counts_against_a_reference_are_scipys(count: int, total: int, reference: int, reference_total: int) -> None:
    table = [[count, total - count], [reference, reference_total - reference]]
    evidence = rate_above_reference(count, total, reference, reference_total)
    assert evidence.p_for == pytest.approx(stats.fisher_exact(table, alternative="greater").pvalue, rel=1e-9)
    assert evidence.p_against == pytest.approx(stats.fisher_exact(table, alternative="less").pvalue, rel=1e-9)


def test_five_against_none_by_hand() -> None:
    assert rate_above_reference(5, 5, 0, 5).p_for == pytest.approx(1 / 252)  # 1 of C(10, 5) ways


def test_holm_by_hand() -> None:
    """m = 4: 0.01 x 4, then 0.02 x 3, 0.03 x 2 (raised to the one before), 0.5 x 1."""
    assert holm([0.03, 0.01, 0.5, 0.02]) == pytest.approx([0.06, 0.04, 0.5, 0.06])
    assert holm([0.9, 0.8]) == [1.0, 1.0]
    assert holm([]) == []
    assert holm_level([0.03, 0.01, 0.5, 0.02], 3) == pytest.approx(LEVEL / 3)


def test_holm_rejects_what_its_levels_say() -> None:
    random = np.random.default_rng(0)
    for _ in range(200):
        p_values = list(random.uniform(0, 0.05, 5))
        ranked = sorted(range(5), key=lambda index: p_values[index])
        rejected: set[int] = set()
        for index in ranked:  # Holm's own procedure: step down and stop at the first that is not small enough
            if p_values[index] > holm_level(p_values, index):
                break
            rejected.add(index)
        assert {index for index, p in enumerate(holm(p_values)) if p <= LEVEL} == rejected


@pytest.mark.parametrize("effect", [0.6, 1.0, 2.0])
def test_seeds_needed_has_the_power_it_promises(effect: float) -> None:
    """Power by the noncentral t distribution, which the estimate only approximates."""
    needed = seeds_needed(effect, 1.0, LEVEL)
    assert needed is not None
    threshold = stats.t.ppf(1 - LEVEL / 2, needed - 1)
    power = 1 - stats.nct.cdf(threshold, needed - 1, effect * sqrt(needed))
    assert 0.76 < power < (0.9 if needed > 5 else 1.0)


def test_seeds_needed_gives_up_honestly() -> None:
    assert seeds_needed(0.01, 1.0, LEVEL) is None
    assert seeds_needed(0.0, 1.0, LEVEL) is None
    assert seeds_needed(10.0, 1.0, LEVEL) == 5
    assert seeds_needed_to_count(lambda n: rate_above(n, n, 0.5), LEVEL) == 6  # 2 / 2^6 is the first below 5 %
    assert seeds_needed_to_count(lambda n: rate_above(n // 2, n, 0.5), LEVEL) is None
    assert MOST_SEEDS == 100
