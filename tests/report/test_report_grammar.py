"""Claims as they are written, and what is said of those that are not."""

from typing import Any

import pytest

from minirl.config import ConfigError
from minirl.report.grammar import Claim, Relation, parse_claim

ARMS = ("MiniRL", "R2", "R3", "no clipping")


def entry(**changes: Any) -> dict[str, Any]:
    base = {"text": "R3 wins", "metric": "eval/avg", "at": "end", "arms": ["R3", "R2"], "relation": "greater"}
    return {key: value for key, value in (base | {"margin": 0.0} | changes).items() if value is not ...}


def test_the_examples_of_the_sweep_files() -> None:
    assert parse_claim(entry(), ARMS) == Claim("R3 wins", "eval/avg", "end", ("R3", "R2"), Relation.greater, 0.0)
    collapses = {"text": "no clipping collapses", "arms": ["no clipping"], "relation": "collapsed"}
    assert parse_claim(collapses, ARMS) == Claim(
        "no clipping collapses", None, None, ("no clipping",), Relation.collapsed, 0.5
    )


@pytest.mark.parametrize(
    ("changes", "margin"),
    [
        ({"margin": ...}, 0.0),
        ({"relation": "ratio", "margin": ...}, 1.0),
        ({"relation": "within", "margin": 0.1}, 0.1),
        ({"relation": "collapsed", "margin": ...}, None),
        ({"relation": "not_collapsed", "arms": ["R3"], "margin": 0.2}, 0.2),
    ],
)
def test_margins(changes: dict[str, Any], margin: float | None) -> None:
    assert parse_claim(entry(**changes), ARMS).margin == margin


def test_at_is_the_end_where_nothing_is_said() -> None:
    assert parse_claim(entry(at=...), ARMS).at == "end"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"relation": "greatr"}, "did you mean greater"),
        ({"arms": ["R3", "R4"]}, "no arm is called 'R4'.*R[23]"),
        ({"arms": ["R3"]}, "greater takes 2 or more different arms, found 1"),
        ({"arms": ["R3", "R3"]}, "2 or more different arms"),
        ({"relation": "within", "arms": ["R3", "R2", "MiniRL"]}, "within takes 2 different arms, found 3"),
        ({"relation": "collapsed", "arms": ["R3", "R2", "MiniRL"], "margin": ...}, "1 to 2"),
        ({"relation": "within", "margin": ...}, "within needs a margin"),
        ({"relation": "converges", "margin": ...}, "converges needs a margin"),
        ({"relation": "within", "margin": -0.1}, "must be positive"),
        ({"relation": "ratio", "margin": 0}, "must be positive"),
        ({"relation": "collapsed", "arms": ["R3"], "margin": 1.0}, "between 0 and 1"),
        ({"relation": "collapsed", "margin": 0.5}, "a reference arm or a margin"),
        ({"margin": "0,1"}, "margin='0,1' is not a number"),
        ({"margin": True}, "is not a number"),
        ({"metric": ...}, "metric is missing"),
        ({"text": ...}, "text is missing"),
        ({"at": "final"}, "at: 'final' is unknown"),
        ({"margn": 1}, "unknown key 'margn'.*did you mean margin"),
    ],
)
def test_what_is_wrong_is_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as error:
        parse_claim(entry(**changes), ARMS)
    assert "\n" not in str(error.value)
    assert str(error.value).startswith("claim ")
