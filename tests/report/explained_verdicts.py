"""What the page must say of the claims: the headline, the cards, the table, and the plots in it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np
from document import Document, along, ticks
from html_tree import Node
from ledger import Number, Part, count, exact, listed
from recomputed import Truth
from recomputed_claims import COUNTS, Found, at_equal_tokens, judged, margin_of, measured, values_of

VERDICTS = ("reproduced", "contradicted", "undecided", "described, not tested")


def plural(number: int, word: str) -> str:
    return word if number == 1 else f"{word}s"


def quoted(arm: str) -> str:
    """Names that are not words alone stand in quotes."""
    words = arm.split(" ")
    plain = all(word.replace("_", "a").isalnum() for word in words) and not any(w[0].isdigit() for w in words[1:])
    return arm if plain else f"“{arm}”"


def headline(found: list[Found]) -> list[Part]:
    if not found:
        return ["This sweep makes no claims: here is what was measured."]
    tally = Counter(one.verdict for one in found)
    parts = listed(([count(tally[name]), f" {name}"] for name in VERDICTS if tally[name]), ", ")
    return ["Of ", count(len(found)), f" {plural(len(found), 'claim')}: ", *parts, "."]


def quantity(found: Found) -> str:
    claim = found.claim
    if claim["relation"] == "converges":
        return f"spread over {len(claim['arms'])} arms"
    left, right = found.link or claim["arms"][:2]
    return f"{quoted(left)} {'/' if claim['relation'] == 'ratio' else '−'} {quoted(right)}"


def effect(found: Found) -> list[Part]:
    if found.effect is None:
        return ["no figure"]
    if found.claim["relation"] in COUNTS:
        tallies = ([count(sum(v.values())), " of ", count(len(v)), f" in {quoted(a)}"] for a, v in found.values.items())
        return ["collapsed: ", *listed(tallies, "; ")]
    signed = found.claim["relation"] in ("greater", "less", "within")
    start = f"{quantity(found)} = "
    if found.interval is None:
        parts: list[Part] = [start, Number(found.effect, signed=signed)]
        tail: list[Part] = [" (± ", Number(found.error or 0.0, digits=2), " from problems and samples)"]
        return parts + (tail if found.error is not None else [])
    spread = (found.interval[1] - found.interval[0]) / 2
    low, high = (Number(edge, spread=spread, signed=signed) for edge in found.interval)
    return [start, Number(found.effect, spread=spread, signed=signed), " [", low, ", ", high, "]"]


def seeds(found: Found) -> list[Part]:
    several = len(found.values) > 1 and found.claim["relation"] not in COUNTS
    shared = set.intersection(*(set(by_seed) for by_seed in found.values.values()))
    kind = ("paired " if shared else "unpaired ") if several else ""
    return [count(found.n), f" {kind}{plural(found.n, 'seed')}"]


def setting(truth: Truth, found: Found) -> list[Part]:
    """Scale and learning rates, at which alone a verdict holds."""
    rates = dict.fromkeys(truth.config(arm).get("train.optim.lr") for arm in found.claim["arms"])
    parts: list[Part] = [f"; {truth.plan['scale']} scale"] if truth.plan.get("scale") else []
    known = [[Number(rate, digits=6)] for rate in rates if rate is not None]
    return [*parts, ", learning rate ", *listed(known, " and ")] if known else parts


def outlook(found: Found) -> list[Part]:
    if found.more is None:
        return [" More than ", count(100), " seeds would be needed to tell."]
    return [" About ", count(found.more), f" more {plural(found.more, 'seed')} would probably decide."]


def otherwise(claim: Mapping[str, Any]) -> list[Part]:
    """Where the effect of a contradicted claim lies."""
    margin, turned = margin_of(claim), claim["relation"] == "less"
    fixed = {
        "collapsed": "it collapses more rarely",
        "not_collapsed": "it collapses more often",
        "converges": "the spread stays above the margin, or grows",
    }
    if claim["relation"] in fixed:
        return [fixed[claim["relation"]]]
    if claim["relation"] == "within":
        return ["the difference is larger than ", exact(margin)]
    if claim["relation"] == "ratio":
        return [f"the ratio is {'below' if margin >= 1 else 'above'} ", exact(margin)]
    return (
        [f"{'above' if turned else 'below'} ", exact(-margin if turned else margin)]
        if margin
        else ["the other way round"]
    )


def reason(truth: Truth, found: Found, num_claims: int) -> list[Part]:
    basis = [*seeds(found), *setting(truth, found)] if all(found.values.values()) else []
    if found.effect is None:
        return ["Nothing to compare."]
    if found.verdict == "described, not tested":
        return ["One seed: described, not tested. Another seed may say the opposite."]
    if found.verdict == "reproduced":
        return ["As claimed, beyond seed noise (", *basis, ")."]
    if found.verdict == "contradicted":
        return ["Not as claimed, beyond seed noise: ", *otherwise(found.claim), " (", *basis, ")."]
    if found.n < 3:
        return [*seeds(found), ": points only; an interval takes ", count(3), ", a verdict ", count(5), "."]
    if found.n < 5:
        return [*seeds(found), " give an interval; a verdict takes ", count(5), ".", *outlook(found)]
    p, adjusted = found.p or 0.0, found.adjusted or 0.0
    if p <= 0.05:
        clear: list[Part] = ["Clear by itself (p = ", Number(p, digits=2), "), not among ", count(num_claims)]
        holm: list[Part] = [" claims (Holm: ", Number(adjusted, digits=2), "; ", *seeds(found), ")."]
        return [*clear, *holm, *outlook(found)]
    return ["It did not show beyond seed noise, nor did the opposite (", *basis, ").", *outlook(found)]


def statement(found: Found) -> list[Part]:
    claim, margin = found.claim, margin_of(found.claim)
    arms, relation = [quoted(arm) for arm in claim["arms"]], claim["relation"]
    if relation in COUNTS:
        word = "more" if relation == "collapsed" else "fewer"
        against: list[Part] = [arms[1]] if len(arms) == 2 else [Number(margin, digits=2)]
        return [f"{word} seeds of {arms[0]} collapse than {'of ' if len(arms) == 2 else ''}", *against]
    at = claim.get("at", "end")
    what = f"{claim['metric']} at {at}: " if at in ("end", "peak") else f"{claim['metric']}, {at}: "
    if relation in ("greater", "less"):
        sign = " > " if relation == "greater" else " < "
        return [what + sign.join(arms), *([", by more than ", exact(margin)] if margin else [])]
    words = {
        "within": f"{arms[0]} and {arms[-1]} differ by less than ",
        "ratio": f"{arms[0]} / {arms[-1]} {'>' if margin >= 1 else '<'} ",
        "converges": f"{', '.join(arms)} come together to within ",
    }
    return [what + words[relation], exact(margin)]


def cards(page: Document, truth: Truth, section: Node, found: list[Found], num_claims: int) -> None:
    """A verdict, the claim, the effect, the reason. num_claims: of the whole sweep."""
    items = list(section.all("li"))
    assert len(items) == len(found)
    for item, one in zip(items, found, strict=True):
        page.words(item.one("span", class_="verdict"), one.verdict.capitalize())
        page.words(item.one("h3"), one.claim["text"])
        page.words(item.one("p", class_="number"), *effect(one))
        page.words(item.one("p", class_="muted"), *reason(truth, one, num_claims))


def table(page: Document, truth: Truth, section: Node) -> None:
    found = judged(truth)
    page.words(next(section.all("p", class_="intro")), *INTRO)
    rows = [row for row in section.all("tr") if "data-verdict" in row.attributes]
    assert len(rows) == len(found)
    for row, one in zip(rows, found, strict=True):
        _row(page, truth, row, one)


INTRO: list[Part] = [
    "Effects with their ",
    count(95),
    " % interval over seeds; shaded is where the claim says that the effect lies, dashed its margin; a broken interval "
    "has brought no verdict. Claims about collapse: one mark per seed. p is two-sided; a verdict is taken after Holm's "
    "correction over all claims of the sweep.",
]


def _row(page: Document, truth: Truth, row: Node, one: Found) -> None:
    numbers = {"effect": one.effect, "p": one.p, "adjusted": one.adjusted}
    numbers |= dict(zip(("low", "high"), one.interval or (None, None), strict=True))
    for name, value in numbers.items():
        page.attribute(row, f"data-{name}", *([] if value is None else [exact(value)]))
    page.attribute(row, "data-seeds", count(one.n))
    page.attribute(row, "data-verdict", one.verdict)
    verdict, claim, shown, number, p, adjusted = row.children
    page.words(verdict, one.verdict.capitalize())
    page.words(claim.one("b"), one.claim["text"])
    first, *notes = [note for note in claim.children if note.tag == "span"]
    page.words(first, *statement(one))
    _notes(page, truth, notes, one)
    _by_seed(page, claim, one)
    page.words(shown.one("span", class_="number"), *effect(one))
    if one.claim["relation"] in COUNTS:
        _marks(page, shown, one)
    elif one.effect is not None:
        _interval(page, shown.one("svg"), one, one.effect)
    page.words(number, count(one.n))
    for cell, value in ((p, one.p), (adjusted, one.adjusted)):
        page.words(cell, "–" if value is None else Number(value, digits=2))


def _notes(page: Document, truth: Truth, notes: list[Node], one: Found) -> None:
    """What was left out, the claim on free routing, the claim at equal tokens, and the mark of a confounder."""
    expected: list[list[Part]] = [["confounded see the cautions below"]]
    for arm in one.claim["arms"]:
        if arm in truth.excluded:
            expected.append([f"{arm} has no runs here: {truth.excluded[arm]}"])
            continue
        runs = [run for run in truth.arms[truth.same.get(arm, arm)] if not run.counts]
        for state in dict.fromkeys(run.state for run in runs):
            left = [[count(run.seed)] for run in runs if run.state == state]
            expected.append([f"{arm}: {plural(len(left), 'seed')} ", *listed(left, ", "), f" {state}, not counted"])
        if not one.values[arm] and truth.results(arm):
            expected.append([f"{arm}: no {one.claim['metric']} at {one.claim.get('at', 'end')}"])
    expected.append(["a ratio needs positive figures, and some are not"])
    expected.append(["two of these arms are one and the same run, shown twice: there is nothing to compare"])
    expected.append(["the arms share no seed: there is no spread by seed"])
    free = one.claim | {"metric": str(one.claim.get("metric")).replace("mismatch/", "mismatch_live/")}
    if free["metric"] != one.claim.get("metric") and one.claim["relation"] not in COUNTS:
        beside = measured(truth, free, values_of(truth, free))
        why = ". With replayed routes the mismatch is smaller by construction."
        expected.append([f"On free routing ({free['metric']}): ", *effect(beside), why])
        replays = any(truth.config(arm).get("algo.routing") == "r3" for arm in one.claim["arms"])
        assert any(note.words().startswith("On free routing") for note in notes) == replays
    matched = at_equal_tokens(truth, one.claim)
    if matched is not None:
        tokens: list[Part] = ["At matched response tokens (", Number(matched[1], decimals=0), " a run): "]
        expected.append([*tokens, *effect(matched[0]), "."])
        assert any(note.words().startswith("At matched") for note in notes)
    page.each(notes, expected)


def _by_seed(page: Document, claim: Node, one: Found) -> None:
    known = sorted({seed for by_seed in one.values.values() for seed in by_seed})
    if not known:
        return
    names, *rows = claim.one("details").all("tr")
    page.words(names, "seed", *one.values)
    assert len(rows) == len(known)
    for row, seed in zip(rows, known, strict=True):
        head, *cells = row.children
        page.words(head, count(seed))
        for cell, by_seed in zip(cells, one.values.values(), strict=True):
            page.attribute(cell, "data-value", *([exact(by_seed[seed])] if seed in by_seed else []))
            page.words(cell, Number(by_seed[seed], digits=4) if seed in by_seed else "–")


def _marks(page: Document, cell: Node, one: Found) -> None:
    """A row per arm, a mark per seed, filled where it has collapsed."""
    if not all(one.values.values()) and not list(cell.all("svg")):
        return
    svg = cell.one("svg")
    parts = ([f"{arm}: ", count(sum(v.values())), " of ", count(len(v))] for arm, v in one.values.items())
    page.words(svg.one("title"), "collapsed seeds, filled: ", *listed(parts, "; "))
    rows = [group for group in svg.children if group.tag == "g"]
    for row, (arm, by_seed) in zip(rows, one.values.items(), strict=True):
        page.words(row.one("text"), arm if len(arm) <= 34 else f"{arm[:33]}…")
        fallen = [mark["class"] for mark in row.all("circle")].count("fallen")
        assert (fallen, len(list(row.all("circle")))) == (sum(by_seed.values()), len(by_seed))
        for mark in row.all("circle"):
            page.constant(mark, "cx", "cy")


def _interval(page: Document, svg: Node, one: Found, effect: float) -> None:
    """The effect as a point, its interval as a line, the margin as a bound, the claimed side shaded."""
    tail: list[Part] = []
    if one.interval is not None:
        tail = [", ", count(95), " % interval ", *listed(([Number(edge)] for edge in one.interval), " to ")]
    page.words(svg.one("title"), f"{quantity(one)}: ", Number(effect), *tail)
    ratio = one.claim["relation"] == "ratio"
    pixel = along(ticks(page, svg, "x", log=ratio), log=ratio)
    mark = svg.one("circle", class_="effect")
    page.shape(mark, [float(mark["cx"])], [pixel(effect)])
    for line in svg.all("path", class_="interval"):
        start, stop = line["d"].removeprefix("M").split(" 14H")
        page.shape(line, [float(start), float(stop)], [pixel(edge) for edge in one.interval or ()])
    inside = [bound for bound in _region(one) if np.isfinite(bound) and (bound > 0 or not ratio)]
    for line in svg.all("line", class_="bound"):
        x = float(line["x1"])
        page.shape(
            line, [x, float(line["x2"])], [min((pixel(bound) for bound in inside), key=lambda p: abs(p - x))] * 2
        )
    shade = svg.one("rect", class_="region")
    left, right = float(shade["x"]), float(shade["x"]) + float(shade["width"])
    edges = [min(max(pixel(bound), FIRST), LAST) if bound in inside else None for bound in _region(one)]
    page.shape(shade, [left, right], [FIRST if edges[0] is None else edges[0], LAST if edges[1] is None else edges[1]])


FIRST, LAST = 6.0, 214.0  # pixels between which an interval is drawn


def _region(one: Found) -> tuple[float, float]:
    margin = one.margin
    return {
        "greater": (margin, np.inf),
        "less": (-np.inf, -margin),
        "within": (-margin, margin),
        "ratio": (margin, np.inf) if margin >= 1 else (0.0, margin),
        "converges": (0.0, margin),
    }[one.claim["relation"]]
