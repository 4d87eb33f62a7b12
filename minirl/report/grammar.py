"""The claims of a sweep file: {text, metric, at, arms, relation, margin}, checked before anything is computed.

relation, with d = A - B of the figures that `at` takes from `metric`, seed by seed:
  greater       A - B > margin (0 if absent); more arms are a chain, A > B > C, and every link must hold
  less          B - A > margin, likewise
  within        |A - B| < margin
  ratio         A / B > margin where margin >= 1 (1 if absent), A / B < margin where it is below 1
  converges     the spread max - min over the arms ends below margin, and below where it started
  collapsed     the first arm collapses in more of its seeds than the second (the reference) does; without a second
                arm, in more than a share `margin` of them (0.5 if absent: collapse is what usually happens)
  not_collapsed the same with "fewer"
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from minirl.config import ConfigError
from minirl.report.curves import figure_at
from minirl.suggest import did_you_mean


class Relation(StrEnum):
    greater = "greater"
    less = "less"
    within = "within"
    collapsed = "collapsed"
    not_collapsed = "not_collapsed"
    converges = "converges"
    ratio = "ratio"


KEYS = ("text", "metric", "at", "arms", "relation", "margin")
NUM_ARMS = {  # at least, at most
    Relation.greater: (2, None),
    Relation.less: (2, None),
    Relation.within: (2, 2),
    Relation.ratio: (2, 2),
    Relation.converges: (2, None),
    Relation.collapsed: (1, 2),
    Relation.not_collapsed: (1, 2),
}
MARGIN = {Relation.greater: 0.0, Relation.less: 0.0, Relation.ratio: 1.0}  # what an absent margin means
USUALLY = 0.5  # the rate that a claim of collapse names when it names neither a margin nor a reference arm
PLAIN = re.compile(r"\w+( [^\W\d]\w*)*")
COUNTS = (Relation.collapsed, Relation.not_collapsed)


@dataclass(frozen=True, slots=True)
class Claim:
    """metric and at are None for claims of collapse, which have one definition for all runs."""

    text: str
    metric: str | None
    at: str | None
    arms: tuple[str, ...]
    relation: Relation
    margin: float | None


def parse_claim(entry: Mapping[str, Any], arms: Collection[str]) -> Claim:
    """The claim as a value. Raises ConfigError, naming the claim and what would be right."""
    where = f"claim {str(entry.get('text', entry))!r}"
    for key in entry:
        if key not in KEYS:
            raise ConfigError(f"{where}: unknown key {key!r}{did_you_mean(key, KEYS)}")
    for key in ("text", "arms", "relation"):
        if not entry.get(key):
            raise ConfigError(f"{where}: {key} is missing")
    relation = _relation(where, str(entry["relation"]))
    named = tuple(str(arm) for arm in entry["arms"])
    for arm in named:
        if arm not in arms:
            raise ConfigError(f"{where}: no arm is called {arm!r}{did_you_mean(arm, arms)}")
    least, most = NUM_ARMS[relation]
    if len(set(named)) != len(named) or len(named) < least or (most is not None and len(named) > most):
        raise ConfigError(f"{where}: {relation} takes {_amount(least, most)} different arms, found {len(named)}")
    margin = _margin(where, relation, entry.get("margin"), len(named))
    if relation in COUNTS:
        return Claim(str(entry["text"]), None, None, named, relation, margin)
    if not entry.get("metric"):
        raise ConfigError(f"{where}: metric is missing (for instance eval/avg)")
    at = str(entry.get("at", "end"))
    try:
        figure_at(at)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None
    return Claim(str(entry["text"]), str(entry["metric"]), at, named, relation, margin)


def quoted(arm: str) -> str:
    """An arm's name among other words: in quotes, unless it is made of words only."""
    return arm if PLAIN.fullmatch(arm) else f"“{arm}”"


def _relation(where: str, name: str) -> Relation:
    if name not in set(Relation):
        raise ConfigError(f"{where}: unknown relation {name!r}{did_you_mean(name, [str(known) for known in Relation])}")
    return Relation(name)


def _margin(where: str, relation: Relation, given: Any, num_arms: int) -> float | None:
    if given is None:
        if relation in (Relation.within, Relation.converges):
            raise ConfigError(f"{where}: {relation} needs a margin, in units of the metric")
        return USUALLY if relation in COUNTS and num_arms == 1 else MARGIN.get(relation)
    if relation in COUNTS and num_arms == 2:
        raise ConfigError(f"{where}: {relation} takes a reference arm or a margin (a rate), not both")
    if isinstance(given, bool) or not isinstance(given, int | float):
        raise ConfigError(f"{where}: margin={given!r} is not a number")
    wrong = {
        Relation.within: "positive" if given <= 0 else None,
        Relation.converges: "positive" if given <= 0 else None,
        Relation.ratio: "positive" if given <= 0 else None,
        Relation.collapsed: "between 0 and 1" if not 0 < given < 1 else None,
        Relation.not_collapsed: "between 0 and 1" if not 0 < given < 1 else None,
    }.get(relation)
    if wrong:
        raise ConfigError(f"{where}: margin={given} of {relation} must be {wrong}")
    return float(given)


def _amount(least: int, most: int | None) -> str:
    return f"{least}" if least == most else f"{least} or more" if most is None else f"{least} to {most}"
