"""Every relation, every verdict, and every reason for not giving one."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy import stats
from sweep_in_memory import arm, ending_at, evaluations, run, sweep

from minirl.report.claims import companion, evaluate
from minirl.report.figures import collapsed
from minirl.report.findings import Judgement, Verdict
from minirl.report.grammar import parse_claim
from minirl.report.read import Arm
from minirl.report.wording import reason

UP = [0.50, 0.53, 0.47, 0.52, 0.49]
NOISE = [0.011, -0.008, 0.002, 0.006, -0.010]
Values = Sequence[float] | Mapping[int, float]


def shifted(by: float, values: Sequence[float] = UP) -> list[float]:
    return [value + by + noise for value, noise in zip(values, NOISE, strict=False)]


def judged(arms: Sequence[Arm], *claims: Mapping[str, Any]) -> list[Judgement]:
    base = {"text": "a claim", "metric": "eval/avg", "at": "end"}
    counts = ("collapsed", "not_collapsed")
    return evaluate(
        sweep(arms, [{"text": "a claim"} | dict(c) if c["relation"] in counts else base | dict(c) for c in claims])
    )


def verdict(values: Mapping[str, Values], relation: str, margin: float | None, *names: str) -> Verdict:
    claim = {"arms": names or list(values), "relation": relation}
    [found] = judged(ending_at(values), claim | ({} if margin is None else {"margin": margin}))
    return found.verdict


@pytest.mark.parametrize(
    ("relation", "shift", "margin", "expected"),
    [
        ("greater", 0.1, 0.0, Verdict.reproduced),
        ("greater", -0.1, 0.0, Verdict.contradicted),
        ("greater", 0.001, 0.0, Verdict.undecided),
        ("greater", 0.1, 0.15, Verdict.contradicted),  # greater, but surely not by the margin
        ("less", -0.1, 0.0, Verdict.reproduced),
        ("less", 0.1, 0.0, Verdict.contradicted),
        ("less", -0.1, 0.15, Verdict.contradicted),
        ("within", 0.0, 0.05, Verdict.reproduced),
        ("within", 0.1, 0.05, Verdict.contradicted),
        ("within", 0.0, 0.005, Verdict.undecided),
        ("ratio", 0.5, 1.5, Verdict.reproduced),  # about 2
        ("ratio", 0.1, 1.5, Verdict.contradicted),
        ("ratio", -0.3, 0.75, Verdict.reproduced),  # below 1, the claim is "at most"
        ("ratio", 0.1, 0.75, Verdict.contradicted),
    ],
)
def test_relations_between_two_arms(relation: str, shift: float, margin: float, expected: Verdict) -> None:
    assert verdict({"A": shifted(shift), "B": UP}, relation, margin) == expected


@pytest.mark.parametrize("relation", ["greater", "less"])
@pytest.mark.parametrize("shift", [0.1, 0.01, 0.0, -0.03])
def test_contradicted_is_reproduced_in_a_mirror(relation: str, shift: float) -> None:
    mirror = {Verdict.reproduced: Verdict.contradicted, Verdict.contradicted: Verdict.reproduced}
    values = {"A": shifted(shift), "B": UP}
    one, other = verdict(values, relation, 0.0, "A", "B"), verdict(values, relation, 0.0, "B", "A")
    assert other == mirror.get(one, one)


def test_a_chain_needs_every_link_and_shows_the_weakest() -> None:
    values = {"C": shifted(0.3), "B": shifted(0.005), "A": UP}
    [found] = judged(ending_at(values), {"arms": ["C", "B", "A"], "relation": "greater", "margin": 0.0})
    assert found.verdict == Verdict.undecided
    assert found.finding.quantity == "B − A"
    assert verdict({"C": shifted(0.6), "B": shifted(0.3), "A": UP}, "greater", 0.0) == Verdict.reproduced
    assert verdict({"C": shifted(0.1), "B": shifted(0.3), "A": UP}, "greater", 0.0) == Verdict.contradicted


def test_shared_seeds_are_paired_whatever_the_spread_between_seeds() -> None:
    wild = [0.1, 0.9, 0.3, 0.7, 0.5]
    assert verdict({"A": shifted(0.05, wild), "B": wild}, "greater", 0.0) == Verdict.reproduced
    apart = dict(enumerate(wild, start=100))
    [found] = judged(
        ending_at({"A": shifted(0.05, wild), "B": apart}), {"arms": ["A", "B"], "relation": "greater", "margin": 0.0}
    )
    assert found.verdict == Verdict.undecided
    assert found.finding.evidence is not None
    expected = stats.ttest_ind(shifted(0.05, wild), wild, equal_var=False)
    assert found.finding.evidence.p == pytest.approx(expected.pvalue)


def test_only_shared_seeds_count_when_some_are() -> None:
    left, right = dict(enumerate(shifted(0.1))), {2: 0.47, 3: 0.52, 9: 5.0}
    [found] = judged(ending_at({"A": left, "B": right}), {"arms": ["A", "B"], "relation": "greater", "margin": 0.0})
    assert found.finding.num_seeds == 2
    assert found.finding.effect == pytest.approx(np.mean([left[2] - 0.47, left[3] - 0.52]))


@pytest.mark.parametrize(
    ("num_seeds", "expected", "has_interval"),
    [
        (1, Verdict.described, False),
        (2, Verdict.undecided, False),
        (3, Verdict.undecided, True),
        (4, Verdict.undecided, True),
        (5, Verdict.reproduced, True),
    ],
)
@pytest.mark.parametrize("relation", ["greater", "within", "ratio", "converges", "collapsed"])
def test_what_few_seeds_allow(num_seeds: int, expected: Verdict, has_interval: bool, relation: str) -> None:
    """An effect as plain as can be: the number of seeds alone decides what may be said."""
    shift = {"greater": 0.3, "within": 0.0, "ratio": 1.0, "converges": 0.0, "collapsed": 0.0}[relation]
    arms = []
    for name, offset, falls in (("A", shift, True), ("B", 0.0, False)):
        runs = []
        for seed in range(num_seeds):
            last = UP[seed] + offset + (NOISE[seed] if name == "A" else 0.0)
            scores = [0.5 + (0.4 if name == "A" else 0.0), 0.6, 0.6, last, last]
            if relation == "collapsed" and falls:
                scores = [0.5, 0.6, 0.6, 0.1, 0.05, 0.05]
            runs.append(run(seed, evaluations(scores)))
        arms.append(arm(name, runs))
    margins = {"within": {"margin": 0.2}, "converges": {"margin": 0.2}}.get(relation, {})
    [found] = judged(arms, {"arms": ["A", "B"], "relation": relation} | margins)
    assert found.verdict == expected
    assert (found.finding.interval is not None) == has_interval
    assert found.finding.effect is not None
    assert (found.adjusted is not None) == (num_seeds >= 5)


def test_one_seed_has_the_error_of_problems_and_samples() -> None:
    arms = [
        arm(name, [run(0, evaluations([0.5, x], error))]) for name, x, error in (("A", 0.7, 0.03), ("B", 0.6, 0.04))
    ]
    [found] = judged(arms, {"arms": ["A", "B"], "relation": "greater", "margin": 0.0})
    assert found.verdict == Verdict.described
    assert found.finding.error == pytest.approx(0.05)
    assert found.more_seeds == 4


def test_holm_makes_many_claims_harder() -> None:
    """Clear alone (p = 0.015), not as one of six claims of which the others show nothing."""
    values = {"A": [base + gain for base, gain in zip(UP, (0.02, 0.03, 0.01, 0.035, 0.01), strict=True)], "B": UP}
    claim = {"arms": ["A", "B"], "relation": "greater", "margin": 0.0}
    [alone] = judged(ending_at(values), claim)
    assert alone.finding.evidence is not None
    p = alone.finding.evidence.p
    assert p == pytest.approx(0.0147, abs=1e-3)
    assert alone.verdict == Verdict.reproduced
    among, *_ = judged(ending_at(values), claim, *[claim | {"margin": 0.021}] * 5)
    assert among.adjusted == pytest.approx(6 * p)
    assert (among.verdict, among.more_seeds is not None) == (Verdict.undecided, True)


def test_untested_claims_still_count_for_holm() -> None:
    values = {"A": shifted(0.1), "B": UP, "C": {0: 0.3}}
    claim = {"arms": ["A", "B"], "relation": "greater", "margin": 0.0}
    [tested, untested] = judged(ending_at(values), claim, claim | {"arms": ["A", "C"]})
    assert tested.finding.evidence is not None
    assert tested.adjusted == pytest.approx(2 * tested.finding.evidence.p)
    assert untested.adjusted is None


def converging(start: float, last: float, margin: float) -> Verdict:
    arms = [
        arm(
            name,
            [
                run(seed, {"eval/avg": {0: 0.4 + start * k, 100: UP[seed] + k * (last + NOISE[seed])}})
                for seed in range(5)
            ],
        )
        for name, k in (("A", 0.0), ("B", 0.5), ("C", 1.0))
    ]
    [found] = judged(arms, {"arms": ["A", "B", "C"], "relation": "converges", "margin": margin})
    assert found.finding.effect == pytest.approx(last + np.mean(NOISE))
    return found.verdict


def test_arms_converge_only_if_the_spread_shrinks_and_is_small() -> None:
    assert converging(0.4, 0.05, 0.1) == Verdict.reproduced
    assert converging(0.4, 0.3, 0.1) == Verdict.contradicted  # shrinks, not enough
    assert converging(0.02, 0.08, 0.1) == Verdict.contradicted  # small, yet it grew
    assert converging(0.4, 0.1, 0.1) == Verdict.undecided


FALLEN, HEALTHY = [0.5, 0.6, 0.65, 0.3, 0.1, 0.05, 0.05], [0.5, 0.6, 0.65, 0.66, 0.64, 0.66, 0.65]


def collapsing(name: str, count: int, total: int) -> Arm:
    return arm(name, [run(seed, evaluations(FALLEN if seed < count else HEALTHY)) for seed in range(total)])


@pytest.mark.parametrize(
    ("count", "reference", "relation", "expected"),
    [
        (5, 0, "collapsed", Verdict.reproduced),
        (0, 5, "collapsed", Verdict.contradicted),
        (3, 1, "collapsed", Verdict.undecided),
        (0, 5, "not_collapsed", Verdict.reproduced),
        (5, 0, "not_collapsed", Verdict.contradicted),
    ],
)
def test_collapse_against_a_reference_arm(count: int, reference: int, relation: str, expected: Verdict) -> None:
    arms = [collapsing("A", count, 5), collapsing("B", reference, 5)]
    [found] = judged(arms, {"arms": ["A", "B"], "relation": relation})
    assert found.verdict == expected
    assert found.finding.effect == count / 5
    assert found.finding.values["A"] == {seed: float(seed < count) for seed in range(5)}


def test_collapse_against_a_rate() -> None:
    claim = {"arms": ["A"], "relation": "collapsed"}
    [five] = judged([collapsing("A", 5, 5)], claim)
    assert (five.verdict, five.more_seeds) == (
        Verdict.undecided,
        1,
    )  # 2 / 2^5 is above 5 %, and says how much is missing
    assert judged([collapsing("A", 6, 6)], claim)[0].verdict == Verdict.reproduced
    assert judged([collapsing("A", 0, 6)], claim)[0].verdict == Verdict.contradicted
    assert judged([collapsing("A", 0, 6)], claim | {"relation": "not_collapsed"})[0].verdict == Verdict.reproduced
    assert judged([collapsing("A", 3, 5)], claim | {"margin": 0.05})[0].verdict == Verdict.reproduced


def test_which_runs_collapsed() -> None:
    assert collapsed(run(0, evaluations(FALLEN)))
    assert not collapsed(run(0, evaluations(HEALTHY)))
    assert not collapsed(run(0, evaluations([*HEALTHY[:3], 0.3, *HEALTHY[3:]])))  # a dip that recovers
    assert collapsed(run(0, evaluations(HEALTHY), state="diverged"))
    assert not collapsed(run(0, {}, state="degenerate"))
    assert collapsed(run(0, {}, state="collapsed"))


def test_unfinished_runs_are_left_out_and_named() -> None:
    values = {"A": shifted(0.1), "B": UP}
    arms = ending_at(values)
    states = {7: "failed", 8: "running", 9: "missing"}
    broken = [run(seed, {"eval/avg": {0: 9.0}}, state=state) for seed, state in states.items()]
    arms[0] = arm("A", [*arms[0].runs, *broken])
    [found] = judged(arms, {"arms": ["A", "B"], "relation": "greater", "margin": 0.0})
    assert found.finding.num_seeds == 5
    assert found.finding.remarks == tuple(f"A: seed {seed} {state}, not counted" for seed, state in states.items())


@pytest.mark.parametrize(
    ("other", "remark"),
    [
        (arm("B", (), excluded="needs experts"), "B has no runs here: needs experts"),
        (arm("B", [run(seed, {}) for seed in range(5)]), "B: no eval/avg at end"),
        (arm("B", ending_at({"A": UP})[0].runs, same_as="A"), "one and the same run"),
    ],
)
def test_nothing_to_compare(other: Arm, remark: str) -> None:
    [found] = judged([*ending_at({"A": UP}), other], {"arms": ["A", "B"], "relation": "within", "margin": 1.0})
    assert (found.verdict, found.finding.effect, found.adjusted) == (Verdict.undecided, None, None)
    assert remark in found.finding.remarks[-1]


def test_a_ratio_of_what_is_not_positive() -> None:
    [found] = judged(
        ending_at({"A": [0.0, *UP[1:]], "B": UP}), {"arms": ["A", "B"], "relation": "ratio", "margin": 1.0}
    )
    assert found.verdict == Verdict.undecided
    assert "positive figures" in found.finding.remarks[-1]


def test_a_claim_on_replayed_mismatch_shows_free_routing_too() -> None:
    def arms(routing: str) -> list[Arm]:
        metrics = {"mismatch/kl_k3": {0: 0.001, 100: 0.001}, "mismatch_live/kl_k3": {0: 0.004, 100: 0.004}}
        plain = {"mismatch/kl_k3": {0: 0.004, 100: 0.004}, "mismatch_live/kl_k3": {0: 0.004, 100: 0.004}}
        return [
            arm("A", [run(seed, metrics, config={"algo.routing": routing}) for seed in range(5)]),
            arm("B", [run(seed, plain, config={"algo.routing": "live"}) for seed in range(5)]),
        ]

    entry = {"text": "lower", "metric": "mismatch/kl_k3", "arms": ["A", "B"], "relation": "ratio", "margin": 0.5}
    claim = parse_claim(entry, ["A", "B"])
    beside = companion(claim, sweep(arms("r3")))
    assert beside is not None
    assert (beside.effect, beside.evidence) == (pytest.approx(1.0), None)
    assert companion(claim, sweep(arms("r2"))) is None


def test_more_seeds_would_do_what_they_promise() -> None:
    """The hint for an undecided claim, checked by drawing from what it assumes: the seen effect and spread."""
    values = {"A": [0.55, 0.52, 0.50, 0.56, 0.47], "B": UP}
    [found] = judged(ending_at(values), {"arms": ["A", "B"], "relation": "greater", "margin": 0.0})
    assert found.verdict == Verdict.undecided
    assert found.more_seeds is not None
    differences = np.array(values["A"]) - np.array(UP)
    random, total = np.random.default_rng(0), 5 + found.more_seeds
    draws = random.normal(differences.mean(), differences.std(ddof=1), (2000, total))
    share = np.mean([stats.ttest_1samp(draw, 0.0).pvalue < 0.05 for draw in draws])
    assert 0.7 < share < 0.92


def test_a_verdict_says_at_which_scale_and_learning_rate_it_holds() -> None:
    def made(name: str, value: float, rate: float) -> Arm:
        scores = {seed: {0: 0.1, 100: value + seed / 1000} for seed in range(5)}
        return arm(name, [run(s, {"eval/avg": p}, config={"train.optim.lr": rate}) for s, p in scores.items()])

    claim = {"text": "T", "metric": "eval/avg", "arms": ["A", "B"], "relation": "greater"}
    for other, said in ((8e-4, "learning rate 0.0008)"), (1e-6, "learning rate 0.0008 and 1e-06)")):
        whole = replace(sweep([made("A", 0.9, 8e-4), made("B", 0.5, other)], [claim]), scale="toy")
        [found] = evaluate(whole)
        assert found.verdict == Verdict.reproduced
        assert reason(found) == f"As claimed, beyond seed noise (5 paired seeds; toy scale, {said}."
    [bare] = evaluate(sweep(ending_at({"A": UP, "B": [0.1] * 5}), [claim]))
    assert reason(bare) == "As claimed, beyond seed noise (5 paired seeds)."
