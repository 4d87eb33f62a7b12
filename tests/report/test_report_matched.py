"""Arms at matched response tokens: worked numbers, and silence where nothing is to be said."""

import pytest
from sweep_in_memory import arm, run, sweep

from minirl.report.claims import at_matched_tokens, evaluate
from minirl.report.grammar import parse_claim
from minirl.report.matched import budgets, figures_at
from minirl.report.page import page
from minirl.report.read import Arm

VERSIONS = range(0, 100, 10)
RISING = {version: version / 100 for version in [*VERSIONS, 100]}
CLAIM = {"text": "T", "metric": "eval/avg", "at": "end", "arms": ["long", "short"], "relation": "greater"}


def arms(long: float, short: float) -> list[Arm]:
    """Both rise alike by updates; `long` and `short` response tokens for every ten of them."""

    def made(name: str, tokens: float) -> Arm:
        metrics = {"eval/avg": RISING, "tokens/response": dict.fromkeys(VERSIONS, tokens), "optim/lr": {99: 1.0}}
        return arm(name, [run(seed, metrics) for seed in range(5)])

    return [made("long", long), made("short", short)]


def test_an_arm_that_writes_twice_as_much_is_read_at_half_of_its_updates() -> None:
    both = arms(2000.0, 1000.0)
    tokens = budgets(both, "end")
    assert tokens == dict.fromkeys(range(5), 10000.0)
    assert figures_at(both[0], "eval/avg", "end", tokens) == dict.fromkeys(range(5), pytest.approx(0.5))
    # the last tenth of a plan of 100 updates holds the values 0.9 and 1.0
    assert figures_at(both[1], "eval/avg", "end", tokens) == dict.fromkeys(range(5), pytest.approx(0.95))
    assert figures_at(both[0], "eval/avg", "peak", tokens)[0] == pytest.approx(0.5)
    assert figures_at(both[0], "eval/avg", "area", tokens)[0] == pytest.approx(0.25)


def test_between_two_evaluations_the_value_is_between_theirs() -> None:
    """2 % fewer tokens than planned must not mean an evaluation that is a fifth of the plan older."""
    sparse = {0: 0.2, 50: 0.4, 100: 0.8}
    curves = {"eval/avg": sparse, "tokens/response": dict.fromkeys(VERSIONS, 1000.0), "optim/lr": {99: 1.0}}
    one = arm("long", [run(0, curves)])
    assert figures_at(one, "eval/avg", "end", {0: 9800.0}) == {0: pytest.approx(0.4 + 0.4 * 48 / 50)}
    assert figures_at(one, "eval/avg", "end", {0: 10000.0}) == {0: pytest.approx(0.8)}


def test_an_update_that_is_named_is_matched_by_what_had_been_sampled_until_then() -> None:
    both = arms(2000.0, 1000.0)
    tokens = budgets(both, "update 40")
    assert tokens == dict.fromkeys(range(5), 4000.0)
    assert figures_at(both[0], "eval/avg", "update 40", tokens)[0] == pytest.approx(0.2)
    assert figures_at(both[1], "eval/avg", "update 40", tokens)[0] == pytest.approx(0.4)


def test_a_run_that_stopped_early_sets_no_budget_and_keeps_its_last_value() -> None:
    stopped = {"eval/avg": {0: 0.5, 10: 0.1}, "tokens/response": {0: 900.0, 10: 900.0}}
    both = [*arms(2000.0, 1000.0)[:1], arm("short", [run(seed, stopped, state="collapsed") for seed in range(5)])]
    assert budgets(both, "end") is None  # the other arm is alone: nothing is apart
    three = [*arms(2000.0, 1000.0), arm("gone", [run(seed, stopped, state="collapsed") for seed in range(5)])]
    tokens = budgets(three, "end")
    assert tokens == dict.fromkeys(range(5), 10000.0)
    assert figures_at(three[2], "eval/avg", "end", tokens)[0] == pytest.approx(0.1)


def test_nothing_is_said_of_arms_that_wrote_equally_much_or_did_not_count() -> None:
    assert budgets(arms(1000.0, 1005.0), "end") is None
    silent = [arm(name, [run(seed, {"eval/avg": RISING}) for seed in range(5)]) for name in ("long", "short")]
    assert budgets(silent, "end") is None
    collapse = parse_claim({"text": "T", "arms": ["long", "short"], "relation": "collapsed"}, ["long", "short"])
    assert at_matched_tokens(collapse, sweep(arms(2000.0, 1000.0))) is None


def test_the_page_shows_the_claim_at_matched_tokens_and_does_not_test_it() -> None:
    whole = sweep(arms(2000.0, 1000.0), [CLAIM])
    found = at_matched_tokens(parse_claim(CLAIM, whole.arms), whole)
    assert found is not None
    finding, tokens = found
    assert tokens == 10000.0 and finding.effect == pytest.approx(-0.45) and finding.evidence is None
    assert "At matched response tokens (10,000 a run): long − short = −0.45" in page(whole, evaluate(whole), now=0.0)
