"""Effects, intervals, p-values, Holm's correction and seeds needed, once more, by scipy.stats; from docs/sweeps.md and
the sweep's files."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import exp, log, sqrt
from typing import Any

import numpy as np
from recomputed import Run, Truth, figure
from scipy import stats

LEVEL, POWER, VERDICT, INTERVAL, MOST = 0.05, 0.8, 5, 3, 100
BySeed = Mapping[int, float]
COUNTS = ("collapsed", "not_collapsed")


@dataclass
class Mean:
    """A mean with Student's error. n: pairs, or seeds of the smaller arm."""

    value: float
    error: float
    freedom: float
    n: int

    def interval(self) -> tuple[float, float]:
        half = stats.t.ppf(1 - LEVEL / 2, self.freedom) * self.error
        return self.value - half, self.value + half

    def above(self, bound: float) -> float:
        """One-sided p-value of: the mean is above the bound."""
        if self.error == 0:
            return float(self.value <= bound)
        return float(stats.t.sf((self.value - bound) / self.error, self.freedom))

    def below(self, bound: float) -> float:
        if self.error == 0:
            return float(self.value >= bound)
        return float(stats.t.cdf((self.value - bound) / self.error, self.freedom))


def mean(values: Sequence[float]) -> Mean:
    return Mean(float(np.mean(values)), float(stats.sem(values)), len(values) - 1, len(values))


def difference(left: BySeed, right: BySeed) -> Mean | float:
    """Paired over shared seeds; by Welch where none is shared. A number where one pair is all."""
    shared = sorted(set(left) & set(right))
    if shared:
        gaps = [left[seed] - right[seed] for seed in shared]
        return mean(gaps) if len(gaps) > 1 else gaps[0]
    first, second = list(left.values()), list(right.values())
    if min(len(first), len(second)) < 2:
        return float(np.mean(first) - np.mean(second))
    freedom = stats.ttest_ind(first, second, equal_var=False).df
    error = sqrt(stats.sem(first) ** 2 + stats.sem(second) ** 2)
    return Mean(float(np.mean(first) - np.mean(second)), error, float(freedom), min(len(first), len(second)))


@dataclass
class Found:
    """What the files say of a claim. distances: (to the bound, deviation) of each part that must be cleared."""

    claim: Mapping[str, Any]
    values: dict[str, BySeed]
    margin: float
    effect: float | None = None
    interval: tuple[float, float] | None = None
    p_for: float = 1.0
    p_against: float = 1.0
    n: int = 0
    error: float | None = None
    link: tuple[str, str] | None = None  # of a chain: the weakest one
    distances: list[tuple[float, float]] = field(default_factory=list)
    counted: Callable[[int], float] | None = None  # p of the same rates in so many seeds
    adjusted: float | None = None
    verdict: str = "undecided"
    more: int | None = None

    @property
    def p(self) -> float | None:
        return min(1.0, 2 * min(self.p_for, self.p_against)) if self.interval is not None else None


def values_of(truth: Truth, claim: Mapping[str, Any]) -> dict[str, BySeed]:
    if claim["relation"] in COUNTS:
        return {arm: truth.collapsed(arm) for arm in claim["arms"]}
    return {arm: truth.by_seed(arm, claim["metric"], claim.get("at", "end")) for arm in claim["arms"]}


def margin_of(claim: Mapping[str, Any]) -> float:
    absent = {"ratio": 1.0, "collapsed": 0.5, "not_collapsed": 0.5}.get(claim["relation"], 0.0)
    return claim["margin"] if claim.get("margin") is not None else absent


def measured(truth: Truth, claim: Mapping[str, Any], values: dict[str, BySeed]) -> Found:
    """The claim's effect and evidence in these figures."""
    found = Found(claim, values, margin_of(claim))
    twice = len({truth.same.get(arm, arm) for arm in claim["arms"]}) < len(claim["arms"])
    if twice or not all(values.values()):
        return found
    if claim["relation"] == "ratio" and min(x for by_seed in values.values() for x in by_seed.values()) <= 0:
        return found
    TESTS[claim["relation"]](truth, found)
    return found


def accept(found: Found, effect: float, interval: tuple[float, float], p_for: float, p_against: float, n: int) -> None:
    found.effect, found.n = effect, n
    if n >= INTERVAL:
        found.interval, found.p_for, found.p_against = interval, p_for, p_against


def single(truth: Truth, found: Found, effect: float) -> None:
    """One pair: the number, and for eval/avg the standard error of problems and samples, of all its runs together."""
    found.effect, found.n = effect, 1
    if found.claim["metric"] == "eval/avg" and found.claim["relation"] != "ratio":
        errors = []
        for arm, by_seed in found.values.items():
            run = next(run for run in truth.results(arm) if run.seed in by_seed)
            points = run.points("eval/se")
            errors += [float(points[1][-1])] if points is not None else []
        found.error = sqrt(sum(error**2 for error in errors)) if len(errors) == len(found.values) else None


def chain(truth: Truth, found: Found) -> None:
    """greater and less: every neighbour; the weakest one is shown."""
    sign = -1.0 if found.claim["relation"] == "less" else 1.0
    arms, margin = list(found.claim["arms"]), found.margin
    sides = {arm: {seed: sign * x for seed, x in by_seed.items()} for arm, by_seed in found.values.items()}
    links = list(pairwise(arms))
    means = [difference(sides[a], sides[b]) for a, b in links]
    located = [one for one in means if isinstance(one, Mean)]
    if len(located) < len(means):
        single(truth, found, sign * min(one for one in means if not isinstance(one, Mean)))
        return
    weakest = int(np.argmax([one.above(margin) for one in located]))
    found.link = links[weakest]
    low, high = located[weakest].interval()
    against = min(1.0, len(located) * min(one.below(margin) for one in located))
    shown = (low, high) if sign > 0 else (-high, -low)
    p_for = max(one.above(margin) for one in located)
    accept(found, sign * located[weakest].value, shown, p_for, against, min(one.n for one in located))
    found.distances = [(abs(one.value - margin), one.error * sqrt(one.n)) for one in located]


def within(truth: Truth, found: Found) -> None:
    one, margin = difference(*found.values.values()), found.margin
    if not isinstance(one, Mean):
        return single(truth, found, one)
    outside = min(1.0, 2 * min(one.above(margin), one.below(-margin)))
    accept(found, one.value, one.interval(), max(one.above(-margin), one.below(margin)), outside, one.n)
    found.distances = [(abs(abs(one.value) - margin), one.error * sqrt(one.n))]


def ratio(truth: Truth, found: Found) -> None:
    logs = [{seed: log(x) for seed, x in by_seed.items()} for by_seed in found.values.values()]
    one, bound = difference(*logs), log(found.margin)
    if not isinstance(one, Mean):
        return single(truth, found, exp(one))
    low, high = one.interval()
    sides = (one.above(bound), one.below(bound))
    accept(found, exp(one.value), (exp(low), exp(high)), *(sides if found.margin >= 1 else sides[::-1]), one.n)
    found.distances = [(abs(one.value - bound), one.error * sqrt(one.n))]


def converges(truth: Truth, found: Found) -> None:
    """The spread over the arms, by seed: below the margin at the end, and below where it began."""
    metric, arms = found.claim["metric"], found.claim["arms"]
    first = {arm: {run.seed: run.metrics[metric][1][0] for run in truth.results(arm)} for arm in arms}
    shared = sorted(set.intersection(*(set(by_seed) for by_seed in found.values.values())))
    if not shared:
        return
    ends = [np.ptp([found.values[arm][seed] for arm in arms]) for seed in shared]
    gains = [np.ptp([first[arm][seed] for arm in arms]) - end for seed, end in zip(shared, ends, strict=True)]
    if len(shared) == 1:
        return single(truth, found, float(ends[0]))
    final, gain = mean(ends), mean(gains)
    p_for, against = max(final.below(found.margin), gain.above(0)), min(final.above(found.margin), gain.below(0))
    accept(found, final.value, final.interval(), p_for, min(1.0, 2 * against), final.n)
    found.distances = [(abs(found.margin - final.value), final.error * sqrt(final.n))]
    found.distances += [(abs(gain.value), gain.error * sqrt(gain.n))]


def counts(truth: Truth, found: Found) -> None:
    """Exact: binomial against a rate, Fisher's against a reference arm."""
    tallies = [(int(sum(by_seed.values())), len(by_seed)) for by_seed in found.values.values()]

    def sides(tallies: Sequence[tuple[int, int]]) -> tuple[float, float]:
        (hits, total), *reference = tallies
        if reference:
            table = [[hits, total - hits], [reference[0][0], reference[0][1] - reference[0][0]]]
            more, fewer = (stats.fisher_exact(table, side).pvalue for side in ("greater", "less"))
        else:
            more, fewer = (stats.binomtest(hits, total, found.margin, side).pvalue for side in ("greater", "less"))
        return (more, fewer) if found.claim["relation"] == "collapsed" else (fewer, more)

    interval = stats.binomtest(*tallies[0]).proportion_ci(1 - LEVEL, "exact")
    n = min(total for _, total in tallies)
    accept(found, tallies[0][0] / tallies[0][1], (float(interval.low), float(interval.high)), *sides(tallies), n)
    found.counted = lambda n: 2 * min(sides([(round(hits / total * n), n) for hits, total in tallies]))


TESTS = {
    "greater": chain,
    "less": chain,
    "within": within,
    "ratio": ratio,
    "converges": converges,
    "collapsed": counts,
    "not_collapsed": counts,
}


def judged(truth: Truth) -> list[Found]:
    """All claims of the sweep, with Holm's correction: a claim that cannot be tested counts among them."""
    every = [measured(truth, claim, values_of(truth, claim)) for claim in truth.plan.get("claims") or []]
    p = [one.p if one.p is not None and one.n >= VERDICT else 1.0 for one in every]
    so_far = 0.0
    for rank, index in enumerate(sorted(range(len(p)), key=lambda index: p[index])):
        one = every[index]
        so_far = max(so_far, min(1.0, (len(p) - rank) * p[index]))
        one.adjusted = so_far if one.p is not None and one.n >= VERDICT else None
        if one.n == 1 and one.effect is not None:
            one.verdict = "described, not tested"
        elif one.adjusted is not None and so_far <= LEVEL:
            one.verdict = "reproduced" if one.p_for < one.p_against else "contradicted"
        if so_far > LEVEL:
            one.more = more_seeds(one, LEVEL / (len(p) - sum(other < p[index] for other in p)))
    return every


def more_seeds(found: Found, level: float) -> int | None:
    """So many more would have the power POWER at the level that Holm leaves, were effect and spread as seen."""
    if found.effect is None:
        return None
    if found.interval is None:
        return VERDICT - found.n
    sizes = range(VERDICT, MOST + 1)
    if found.counted is not None:
        needed = next((n for n in sizes if min(1.0, found.counted(n)) <= level), None)
    else:
        every = [next((n for n in sizes if decides(*part, n, level)), None) for part in found.distances]
        known = [n for n in every if n is not None]
        all_of = found.p_for <= found.p_against
        needed = (max(known) if len(known) == len(every) else None) if all_of else min(known, default=None)
    return max(needed - found.n, 1) if needed else None


def decides(distance: float, deviation: float, n: int, level: float) -> bool:
    reach = stats.t.ppf(1 - level / 2, n - 1) + stats.t.ppf(POWER, n - 1)
    return distance > 0 and reach * deviation <= distance * sqrt(n)


# --- after equal response tokens ----------------------------------------------------------------------------------


def at_equal_tokens(truth: Truth, claim: Mapping[str, Any]) -> tuple[Found, float] | None:
    """The claim where each arm has sampled what the most frugal one had at its figure, by seed, and these tokens (mean
    over seeds); None where the tokens differ by less than 1 %."""
    runs = {arm: {run.seed: run for run in truth.results(arm)} for arm in claim["arms"]}
    if claim["relation"] in COUNTS or not all(runs.values()):
        return None
    at, budget, apart = claim.get("at", "end"), dict[int, float](), False
    for seed in sorted(set.intersection(*(set(by_seed) for by_seed in runs.values()))):
        whole = [by_seed[seed] for by_seed in runs.values() if complete(by_seed[seed])]
        if not whole or any(run.tokens is None for run in whole):
            return None
        spent = [float(np.interp(asked(run, at), *run.tokens)) for run in whole if run.tokens is not None]
        budget[seed] = min(spent)
        apart |= max(spent) > 1.01 * min(spent)
    if not apart:
        return None
    values: dict[str, BySeed] = {}
    for arm, by_seed in runs.items():
        found = {seed: cut(by_seed[seed], claim["metric"], at, tokens) for seed, tokens in budget.items()}
        values[arm] = {seed: value for seed, value in found.items() if value is not None}
    return measured(truth, claim, values), float(np.mean(list(budget.values())))


def complete(run: Run) -> bool:
    return run.last >= run.horizon - 1


def asked(run: Run, at: str) -> int:
    return int(at.removeprefix("update ")) if at.startswith("update") else run.horizon


def cut(run: Run, metric: str, at: str, tokens: float) -> float | None:
    """The figure as if the run had been planned to end where it had sampled so many tokens."""
    points, end = run.points(metric), asked(run, at)
    if points is None:
        return None
    if run.tokens is not None and complete(run):
        end = min(int(np.interp(tokens, run.tokens[1], run.tokens[0])), end)
    versions, values = points
    if end < versions[0]:
        return None
    last = float(np.interp(end, versions, values))
    if at.startswith("update"):
        return last
    before = versions < end
    return figure((np.append(versions[before], end), np.append(values[before], last)), at, end)
