"""The claims of a sweep and what became of them: as cards in words, as a table in numbers."""

from __future__ import annotations

from collections.abc import Sequence

from minirl.report import wording
from minirl.report.claims import at_matched_tokens, companion
from minirl.report.confounders import Caution, confounded
from minirl.report.counts import count_plot
from minirl.report.estimates import interval_plot
from minirl.report.findings import Finding, Judgement, Verdict
from minirl.report.markup import Child, Markup, element
from minirl.report.read import Sweep
from minirl.report.tables import exact, number_cell, section, table

CIRCLE = "M10 1.5a8.5 8.5 0 1 0 .01 0z"
ICONS = {  # a different shape for each, so that colour says nothing that shape does not
    Verdict.reproduced: CIRCLE + "M5.6 10.3l3 3.1l5.8-6.6",
    Verdict.contradicted: "M2 2h16v16h-16zM6.2 6.2l7.6 7.6m0-7.6l-7.6 7.6",
    Verdict.undecided: CIRCLE + "M5.8 10h8.4",
    Verdict.described: CIRCLE + "M10 9v6m0-9.6v1.8",
}


def kind(verdict: Verdict) -> str:
    """The verdict as a class of the style sheet."""
    return verdict.split(",")[0]


def verdict_mark(verdict: Verdict) -> Markup:
    icon = element(
        "svg",
        element("path", d=ICONS[verdict]),
        viewBox="0 0 20 20",
        aria_hidden="true",
    )
    return element("span", icon, verdict.capitalize(), class_=f"verdict {kind(verdict)}")


def cards(judgements: Sequence[Judgement]) -> Markup | None:
    """Every claim with its verdict, in words."""
    if not judgements:
        return None
    return element(
        "ol",
        [
            element(
                "li",
                verdict_mark(one.verdict),
                element("h3", one.claim.text),
                element("p", wording.effect(one.finding), class_="number"),
                element("p", wording.reason(one), class_="muted"),
                class_=f"card {kind(one.verdict)}",
            )
            for one in judgements
        ],
        class_="cards",
    )


def verdict_table(sweep: Sweep, judgements: Sequence[Judgement], everything: Sequence[Caution]) -> Markup | None:
    if not judgements:
        return None
    rows = [_verdict_row(sweep, one, confounded(one.claim.arms, everything)) for one in judgements]
    return section(
        "numbers",
        "The verdicts in numbers",
        "Effects with their 95 % interval over seeds; shaded is where the claim says that the effect lies, dashed its "
        "margin; a broken interval has brought no verdict. Claims about collapse: one mark per seed. p is two-sided; "
        "a verdict is taken after Holm's correction over all claims of the sweep.",
        table(("Verdict", "Claim", "Effect", "Seeds", "p", "p, Holm"), rows, "verdicts"),
    )


def _verdict_row(sweep: Sweep, one: Judgement, doubts: Sequence[Caution]) -> Markup:
    finding, claim = one.finding, one.claim
    low, high = finding.interval or (None, None)
    p = finding.evidence.p if finding.evidence else None
    test = element("span", wording.test_name(claim), class_="note")
    statement = element("span", wording.statement(claim), class_="note")
    return element(
        "tr",
        element("td", verdict_mark(one.verdict)),
        element("td", element("b", claim.text), statement, _remarks(sweep, finding, doubts), _by_seed(finding)),
        element(
            "td",
            element("span", wording.effect(finding), class_="number"),
            count_plot(finding) or interval_plot(finding),
            test,
            data_label="Effect",
        ),
        number_cell("Seeds", finding.num_seeds),
        number_cell("p", "–" if p is None else f"{p:.2g}"),
        number_cell("p, Holm", "–" if one.adjusted is None else f"{one.adjusted:.2g}"),
        class_=kind(one.verdict),
        data_effect=exact(finding.effect),
        data_low=exact(low),
        data_high=exact(high),
        data_p=exact(p),
        data_adjusted=exact(one.adjusted),
        data_seeds=finding.num_seeds,
        data_verdict=one.verdict,
    )


def _remarks(sweep: Sweep, finding: Finding, doubts: Sequence[Caution]) -> list[Markup]:
    """What was left out, the same on free routing, and whether a confounder concerns these arms."""
    notes: list[Child] = list(finding.remarks)
    beside = companion(finding.claim, sweep)
    if beside is not None:
        notes.append(
            f"On free routing ({beside.claim.metric}): {wording.effect(beside)}. "
            "With replayed routes the mismatch is smaller by construction."
        )
    matched = at_matched_tokens(finding.claim, sweep)
    if matched is not None:
        notes.append(f"At matched response tokens ({matched[1]:,.0f} a run): {wording.effect(matched[0])}.")
    if doubts:
        notes.append([element("span", "confounded", class_="tag"), " see the cautions below"])
    return [element("span", note, class_="note") for note in notes]


def _by_seed(finding: Finding) -> Markup | None:
    """The figures that the test saw, one per arm and seed."""
    seeds = sorted({seed for values in finding.values.values() for seed in values})
    if not seeds:
        return None
    head = element("tr", element("th", "seed"), [element("th", arm) for arm in finding.values])
    rows = [
        element(
            "tr",
            element("th", seed),
            [
                element(
                    "td",
                    f"{values[seed]:.4g}" if seed in values else "–",
                    class_="number",
                    data_value=exact(values.get(seed)),
                )
                for values in finding.values.values()
            ],
        )
        for seed in seeds
    ]
    return element(
        "details",
        element("summary", "figures by seed"),
        element("table", element("thead", head), element("tbody", rows)),
    )
