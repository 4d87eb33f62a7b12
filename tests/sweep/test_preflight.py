"""A claim that no run can answer is refused before anything is spent; what a command takes from the arms is said."""

from collections.abc import Sequence
from typing import Any

import pytest

from minirl.config import ConfigError
from minirl.sweep.expand import Arm, Design
from minirl.sweep.preflight import check_updates, claims_of, replaced, undecidable


def design(claims: Sequence[dict[str, Any]] = (), fixed: tuple[str, ...] = (), num_seeds: int = 5) -> Design:
    arms = (
        Arm("MiniRL", ("algo=minirl",)),
        Arm("R2, no clip", ("algo=minirl_no_clip", "algo.routing=r2")),
        Arm("plain", ()),
    )
    return Design("f", "F", "toy", (), fixed, arms, tuple(range(num_seeds)), tuple(claims), (), ())


def greater(**more: Any) -> dict[str, Any]:
    return {"text": "T", "metric": "eval/avg", "arms": ["MiniRL", "plain"], "relation": "greater"} | more


COLLAPSED = {"text": "C", "arms": ["R2, no clip", "MiniRL"], "relation": "collapsed"}


@pytest.mark.parametrize(
    ("metric", "meant"),
    [
        ("eval/avgg", "eval/avg"),
        ("eval/acc", "docs/metrics.md"),
        ("mismatch/kl_k4", "mismatch/kl_k"),
        ("reward", "docs/metrics.md"),
        ("entropy", "entropy/mean"),
    ],
)
def test_a_metric_that_nobody_logs_is_refused(metric: str, meant: str) -> None:
    with pytest.raises(ConfigError, match="'T': no metric is called") as raised:
        claims_of(design([greater(metric=metric)]))
    assert meant in str(raised.value) and "\n" not in str(raised.value)


@pytest.mark.parametrize("metric", ["eval/avg", "eval/length", "routing/by_layer/3", "time/update", "mismatch/kl_k1"])
def test_a_metric_that_is_logged_passes(metric: str) -> None:
    assert claims_of(design([greater(metric=metric)]))[0].metric == metric


def test_an_update_after_the_last_one_is_refused() -> None:
    claims = claims_of(design([greater(at="update 60")]))
    check_updates(claims, {"MiniRL": 60, "plain": 96})
    check_updates(claims, {"plain": 96})  # an excluded arm has no horizon
    with pytest.raises(ConfigError, match="'update 60' is after the last update of MiniRL, num_updates=48"):
        check_updates(claims, {"MiniRL": 48, "plain": 96})


def test_seeds_that_cannot_decide_are_said() -> None:
    assert undecidable(design([greater(), COLLAPSED]), {}) == []
    assert undecidable(design([greater()], num_seeds=4), {}) == ["note: 4 seeds: a verdict takes 5"]
    assert undecidable(design([], num_seeds=1), {}) == []
    many = undecidable(design([COLLAPSED, *[greater(text=str(i)) for i in range(7)]]), {})
    assert many == [
        "note: 5 seeds that all agree give 'C' p = 0.0079: no verdict, unless 2 of the 8 claims are clearer"
    ]


@pytest.mark.parametrize(
    ("fixed", "said"),
    [
        ((), None),
        (("train.optim.lr=1e-3",), None),
        (("algo=minirl",), "algo=minirl of the command replaces algo=minirl_no_clip of “R2, no clip”"),
        (
            ("algo=gspo",),
            "algo=gspo of the command replaces algo=minirl of MiniRL; algo=minirl_no_clip of “R2, no clip”",
        ),
        (("algo.routing=r3",), "algo.routing=r3 of the command replaces algo.routing=r2 of “R2, no clip”"),
    ],
)
def test_what_the_command_takes_from_the_arms_is_said(fixed: tuple[str, ...], said: str | None) -> None:
    lines = replaced(design(fixed=fixed))
    assert len(lines) == (said is not None) and all(str(said) in line and line.startswith("warning") for line in lines)


def test_a_claim_about_an_arm_without_runs_is_said_to_have_no_verdict() -> None:
    gone = {"plain": "excluded: dense", "R2, no clip": "the same as MiniRL"}
    assert undecidable(design([greater(), COLLAPSED]), gone) == [
        "note: claim 'T' has no verdict here: plain is excluded: dense",
        "note: claim 'C' has no verdict here: “R2, no clip” is the same as MiniRL",
    ]
