"""What differs, what did nothing, what else to know, and how to see it all again."""

from __future__ import annotations

import time
from collections.abc import Sequence

from minirl.report.confounders import Caution
from minirl.report.differences import Difference
from minirl.report.grammar import quoted
from minirl.report.inert import Inert
from minirl.report.markup import Child, Markup, element
from minirl.report.read import Sweep
from minirl.report.tables import section, table

READING = (
    "A figure is taken from each run: 'end' is the mean over the last tenth of the planned updates, 'peak' the largest "
    "value, 'area' the mean height of the curve, 'update K' the value then. A run that stopped short of its plan "
    "carries its last value forward. Runs that are missing, running, failed or interrupted are not counted.",
    "Arms are compared seed by seed where they share seeds. Below three seeds there are points and no test; three or "
    "four give an interval; five or more can give a verdict, at 5 % for the whole sweep after Holm's correction.",
    "Reproduced: the interval lies on the claimed side of the margin. Contradicted: it lies on the other side, by the "
    "same test at the same level. Undecided: neither. Each direction has half of the 5 %: the two are mirror images.",
    "All arms and seeds start from the cold start named above unless it is what is compared; intervals do not hold "
    "its variance. The number of further seeds assumes that effect and spread stay as seen: a hint, not a promise.",
    "Collapsed: the smoothed evaluation ends more than metrics.collapse_margin standard errors below its own peak.",
)


def switches(found: Sequence[Difference], inert: Sequence[Inert], everything: Sequence[Caution]) -> Markup:
    """What differs, what did nothing, what else to know."""
    arms = list(dict.fromkeys(arm for difference in found for arm in difference.values))
    nothing = [
        [element("code", one.switch), f" in {', '.join(map(quoted, one.arms))}: {one.evidence}."] for one in inert
    ]
    return section(
        "switches",
        "What differs between the arms, and only that",
        None,
        table(("key", *arms), [_difference(difference, arms) for difference in found], "differences")
        if found
        else element("p", "The arms do not differ in any key."),
        element("h3", "Switches that did nothing here"),
        _listed(nothing, "No switch was found to be without effect."),
        element("h3", "Confounders and cautions"),
        _listed([_caution(one) for one in everything], "None found."),
    )


def _difference(difference: Difference, arms: Sequence[str]) -> Markup:
    """One key; what is not as in the first arm stands out."""
    first = difference.values.get(arms[0])
    cells = []
    for arm in arms:
        values = difference.values.get(arm, ("–",))
        text = element("span", " | ".join(values), class_="changed" if values != first else None)
        cells.append(element("td", text, data_label=arm))
    return element("tr", element("th", element("code", difference.key)), cells)


def _caution(caution: Caution) -> list[Child]:
    if not caution.pairs:
        return [f"{caution.text}."]
    pairs = ", ".join(" with ".join(map(quoted, pair)) for pair in caution.pairs)
    return [element("span", "confounded", class_="tag"), f" {caution.text}; concerns {pairs}."]


def _listed(entries: Sequence[Child], otherwise: str) -> Markup:
    if not entries:
        return element("p", otherwise)
    return element("ul", [element("li", entry) for entry in entries], class_="plainlist")


def footer(sweep: Sweep, now: float) -> Markup:
    """How the numbers were made, and how to make them again."""
    records = [run.record for run in sweep.runs if run.record]
    packages: dict[str, dict[str, None]] = {}
    for record in records:
        for name, number in (record.get("packages") or {}).items():
            packages.setdefault(name, {})[str(number)] = None
    codes = {code for run in sweep.runs for code in run.codes}
    starts = {str(start.get("content"))[:16] for record in records if (start := record.get("coldstart"))}
    entries = {
        "Scale": sweep.scale or "not recorded",
        "Seeds": ", ".join(map(str, sweep.seeds)),
        "Settings of all arms": " ".join(sweep.base) or "none beyond the defaults",
        "Code": ", ".join(sorted(codes)) or "not recorded",
        "Packages": ", ".join(f"{name} {' and '.join(each)}" for name, each in packages.items()) or "not recorded",
        "Cold start": ", ".join(sorted(starts)) or "not recorded",
        "Page written": time.strftime("%Y-%m-%d %H:%M %Z", time.localtime(now)),
    }
    return element(
        "footer",
        element("h2", "To see it again"),
        element("pre", f"minirl sweep {sweep.name}\nminirl report {sweep.name}"),
        element("dl", [[element("dt", name), element("dd", text)] for name, text in entries.items()]),
        element(
            "details",
            element("summary", "How to read the verdicts"),
            [element("p", text, class_="note") for text in READING],
            class_="printed",
        ),
        class_="wrap",
    )
