"""The comparison of cold starts as a page of its own: no script, no network."""

from __future__ import annotations

from minirl.report import wording
from minirl.report.coldstarts import EVALUATION, LENGTH, NEAR, Comparison, Estimate, Start
from minirl.report.curves import band
from minirl.report.markup import Child, Markup, element, page_head
from minirl.report.panels import Line, Panel, Series, series_of
from minirl.report.plots import SMALL, Frame, letter, line_plot
from minirl.report.read import Sweep
from minirl.report.tables import exact, number_cell, section, swatch, table
from minirl.report.verdicts import cards

NAME = "coldstarts.html"  # beside index.html
SPREAD = Panel("spread", "Spread between cold starts", "max − min over the starts of eval/avg, by seed")
CURVES = (
    Panel(EVALUATION, "Evaluation", "share of held-out problems solved (avg@k)"),
    Panel(LENGTH, "Response length", "tokens, on the held-out problems"),
)
TALL = Frame(400, 250, 46, 32, True)
MEASURES = {
    "first": "at the first evaluation, before any update",
    "peak": "between the peaks of the starts, each wherever it is",
    "end": "between the ends (mean over the last tenth of the updates)",
    "trend": "change over the planned updates: least-squares line of each seed; below 0 they come together",
}


def coldstart_page(sweep: Sweep, found: Comparison) -> str:
    """The whole document."""
    head = page_head(f"Cold starts · {sweep.title}")
    masthead = element(
        "header",
        element("p", element("a", f"minirl report · {sweep.name}", href="index.html"), class_="over"),
        element("h1", "Did the cold starts converge?"),
        element("p", answer(found), class_="lead"),
        element(
            "p",
            f"{len(found.starts)} cold starts, {wording.counted(len(found.spreads), 'seed')} shared by all.",
            class_="muted",
        ),
        class_="wrap",
    )
    main = element(
        "main", _verdicts(found), _curves(sweep, found), _spreads(found), _starts(sweep, found), class_="wrap"
    )
    return f"<!doctype html>\n{element('html', head, element('body', masthead, main), lang='en')}\n"


def coldstart_section(found: Comparison | None) -> Markup | None:
    """What the main page says of it."""
    if found is None:
        return None
    link = element("p", element("a", "Spread, trend, lengths and steps to the best", href=NAME))
    return section("coldstarts", "Cold starts", None, element("p", answer(found)), link)


def answer(found: Comparison) -> str:
    """In one sentence: the tested claim where there is one, and the numbers."""
    spread = f"the spread of eval/avg went from {words(found.first)} to {words(found.end)}"
    tested = ", ".join(f"“{one.claim.text}”: {one.verdict}" for one in found.verdicts)
    return f"{tested}; {spread}." if tested else f"The sweep makes no claim of it; {spread}."


def words(estimate: Estimate | None, sign: str = "") -> str:
    """0.123 [0.100, 0.146]."""
    if estimate is None:
        return "–"
    texts = wording.rounded([estimate.mean, *(estimate.interval or ())], sign)
    return f"{texts[0]} [{texts[1]}, {texts[2]}]" if len(texts) > 1 else texts[0]


def reached(start: Start) -> str:
    """By seed where they differ in having got there, else the mean."""
    mean = start.updates_to_best
    if mean is not None:
        return f"{mean:.4g}"
    got = sum(version is not None for version in start.reached.values())
    return f"{got} of {wording.counted(len(start.reached), 'seed')}"


def _verdicts(found: Comparison) -> Markup | None:
    return element("section", cards(found.verdicts), id="verdicts", aria_label="Verdicts") if found.verdicts else None


def _curves(sweep: Sweep, found: Comparison) -> Markup:
    horizon = max(run.horizon for run in sweep.runs)
    legend = [element("span", swatch(i), f" {letter(i)} {arm.name} ") for i, arm in enumerate(sweep.distinct_arms)]
    plots = [_figure(SPREAD, _spread_series(sweep, found), horizon)]
    plots += [_figure(panel, series, horizon) for panel in CURVES if (series := series_of(sweep, panel))]
    return element(
        "section",
        element("h2", "Curves"),
        element("p", legend, class_="names"),
        element("div", plots, class_="plots"),
        id="curves",
    )


def _figure(panel: Panel, series: list[Series], horizon: int) -> Markup:
    frame = TALL if panel == SPREAD else SMALL
    caption = element("figcaption", element("h3", panel.title), element("p", panel.note))
    return element("figure", caption, element("div", line_plot(panel, series, frame, horizon), class_="plot"))


def _spread_series(sweep: Sweep, found: Comparison) -> list[Series]:
    runs = {run.seed: run for run in sweep.runs}
    lines = tuple(Line(runs[seed], curve, None, None) for seed, curve in found.spreads.items())
    return [Series(len(sweep.distinct_arms), "max − min", lines, band(list(found.spreads.values()), logarithmic=False))]


def _spreads(found: Comparison) -> Markup:
    seeds = list(found.spreads)
    rows = [_spread_row(name, note, getattr(found, name), seeds) for name, note in MEASURES.items()]
    head = ("Spread", "", "Mean [95 % interval]", *(f"seed {seed}" for seed in seeds))
    intro = "max − min over the cold starts, by seed; an interval takes three seeds."
    return section("spread", "The spread and its trend", intro, table(head, rows, "spreads"))


def _spread_row(name: str, note: str, estimate: Estimate | None, seeds: list[int]) -> Markup:
    by_seed = estimate.by_seed if estimate else {}
    low, high = (estimate.interval if estimate else None) or (None, None)
    return element(
        "tr",
        element("th", name),
        element("td", element("span", note, class_="note")),
        number_cell("Mean", words(estimate, "+" if name == "trend" else "")),
        [number_cell(f"seed {seed}", f"{by_seed[seed]:.4g}" if seed in by_seed else "–") for seed in seeds],
        data_measure=name,
        data_mean=exact(estimate.mean) if estimate else None,
        data_low=exact(low),
        data_high=exact(high),
    )


def _starts(sweep: Sweep, found: Comparison) -> Markup:
    indices = {arm.name: index for index, arm in enumerate(sweep.distinct_arms)}
    head = (
        "Cold start",
        "Checkpoint",
        "First",
        "Peak",
        "End",
        f"Updates to within {NEAR} of the best",
        "Length, first",
        "Length, end",
    )
    intro = (
        f"eval/avg and eval/length, mean [95 % interval] over seeds. Updates: to the first evaluation that is within "
        f"{NEAR} of the best end that any start has with the same seed."
    )
    rows = [_start_row(indices[start.arm], start) for start in found.starts]
    return section("starts", "Start by start", intro, table(head, rows, "starts"))


def _start_row(index: int, start: Start) -> Markup:
    first, last = start.lengths
    cells: dict[str, Child] = {
        "First": words(start.first),
        "Peak": words(start.peak),
        "End": words(start.end),
        "Updates": reached(start),
        "Length, first": words(first),
        "Length, end": words(last),
    }
    return element(
        "tr",
        element("th", f"{letter(index)} {start.arm}"),
        element("td", element("code", start.content), data_label="Checkpoint"),
        [number_cell(label, text) for label, text in cells.items()],
        data_arm_name=start.arm,
        data_first=exact(start.first.mean) if start.first else None,
        data_peak=exact(start.peak.mean) if start.peak else None,
        data_end=exact(start.end.mean) if start.end else None,
        data_updates=exact(start.updates_to_best),
        data_length=exact(last.mean) if last else None,
    )
