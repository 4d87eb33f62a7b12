"""The report of a sweep as one HTML file that needs nothing else: no network, no folder beside it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from minirl.record import write_atomically
from minirl.report import wording
from minirl.report.arms import arms_section
from minirl.report.coldstart_page import NAME as COLDSTARTS
from minirl.report.coldstart_page import coldstart_page, coldstart_section
from minirl.report.coldstarts import compared_starts
from minirl.report.confounders import cautions
from minirl.report.differences import differences
from minirl.report.estimates import seed_plot
from minirl.report.figures import figures
from minirl.report.findings import Judgement
from minirl.report.inert import inert_switches
from minirl.report.markup import Markup, element, own, page_head
from minirl.report.panels import EVALUATION, MAIN, MORE, Panel, Series, averages_updates, is_flat, series_of
from minirl.report.plots import NARROW, SMALL, WIDE, Frame, letter, line_plot
from minirl.report.png import write_pngs
from minirl.report.read import Sweep
from minirl.report.routing import has_routes, routing_section
from minirl.report.series import sampled_tokens, script_data
from minirl.report.settings import footer, switches
from minirl.report.tables import accounts, endings, runs_table, swatch
from minirl.report.verdicts import cards, verdict_table

Drawn = dict[Panel, list[Series]]


def write_page(sweep: Sweep, judgements: Sequence[Judgement]) -> Path:
    """report/index.html in the sweep's folder, and the main curves as PNGs beside it; returns the page's path."""
    folder = sweep.folder / "report"
    folder.mkdir(exist_ok=True)
    write_pngs(sweep, folder)
    path = folder / "index.html"
    write_atomically(path, page(sweep, judgements, now=time.time()))
    starts = compared_starts(sweep, judgements)
    if starts is not None:
        write_atomically(folder / COLDSTARTS, coldstart_page(sweep, starts))
    return path


def page(sweep: Sweep, judgements: Sequence[Judgement], *, now: float) -> str:
    """The whole document."""
    found = differences(sweep)
    everything = cautions(sweep, found)
    drawn, flat = drawable(sweep, (EVALUATION, *MAIN, *MORE))
    head = page_head(sweep.title)
    main = element(
        "main",
        element("section", cards(judgements), id="verdicts", aria_label="Verdicts"),
        curves(sweep, drawn, flat),
        verdict_table(sweep, judgements, everything),
        coldstart_section(compared_starts(sweep, judgements)),
        arms_section(sweep, found),
        switches(found, inert_switches(sweep), everything),
        routing_section(sweep),
        accounts(sweep),
        runs_table(sweep),
        class_="wrap",
        id="main",
    )
    scripts = [
        element("script", script_data(sweep, drawn, _horizon(sweep)), type="application/json", id="series"),
        element("script", own("draw.js"), own("page.js")),
    ]
    body = element("body", masthead(sweep, judgements), main, footer(sweep, now), scripts)
    return f"<!doctype html>\n{element('html', head, body, lang='en')}\n"


def masthead(sweep: Sweep, judgements: Sequence[Judgement]) -> Markup:
    """Title, the outcome in one sentence, and how much of the plan is there."""
    arms, seeds = wording.counted(len(sweep.distinct_arms), "arm"), wording.counted(len(sweep.seeds), "seed")
    size = f"{arms}, {seeds}{_length(sweep)}"
    complete = all(run.has_result for run in sweep.runs)
    missing = "" if complete else f" Not complete: {endings(sweep.runs)}."
    links = {
        "verdicts": "Verdicts",
        "curves": "Curves",
        "numbers": "Numbers",
        **({} if compared_starts(sweep, judgements) is None else {"coldstarts": "Cold starts"}),
        "arms": "Arms",
        "switches": "What differs",
        **({"routing": "Routing"} if has_routes(sweep) else {}),
        "time": "Time and tokens",
        "runs": "Runs",
    }
    return element(
        "header",
        element("a", "Skip to the verdicts", class_="skip", href="#main"),
        element("p", f"minirl report · {sweep.name}", class_="over"),
        element("h1", sweep.title),
        element("p", wording.headline(judgements), class_="lead"),
        element("p", f"{size}. {wording.results(sweep)}{missing}", class_="muted"),
        element("nav", [element("a", text, href=f"#{name}") for name, text in links.items()], aria_label="Sections"),
        class_="wrap",
    )


def drawable(sweep: Sweep, panels: Sequence[Panel]) -> tuple[Drawn, list[Panel]]:
    """The panels with something to see, and those that were recorded but never change."""
    replays = any(arm.config.get("algo.routing") == "r3" for arm in sweep.distinct_arms)
    drawn, flat = {}, []
    for panel in panels:
        series = series_of(sweep, panel)
        if not series or (panel.metric.startswith("mismatch_live/") and not replays):
            continue
        if is_flat(series) or not any(one.mean is not None for one in series):
            flat.append(panel)
        else:
            drawn[panel] = series
    return drawn, flat


def curves(sweep: Sweep, drawn: Drawn, flat: Sequence[Panel]) -> Markup | None:
    """Legend, the evaluation at full width, the metrics that explain it, and the rest folded away."""
    if not drawn:
        return element("section", element("h2", "Curves"), element("p", "No run has written a row yet."), id="curves")
    horizon = _horizon(sweep)
    small = {panel: figure(panel, series, (SMALL,), horizon) for panel, series in drawn.items() if panel != EVALUATION}
    more = [plot for panel, plot in small.items() if panel in MORE]
    constant = ", ".join(panel.metric for panel in flat)
    return element(
        "section",
        element("h2", "Curves"),
        element("p", CAPTION, class_="intro"),
        element("div", legend(sweep), controls(drawn), class_="bar"),
        hero(sweep, drawn, horizon),
        element("div", [plot for panel, plot in small.items() if panel not in MORE], class_="plots"),
        element("details", element("summary", f"{len(more)} more curves"), element("div", more, class_="plots"))
        if more
        else None,
        element("p", f"Recorded and not drawn, because nothing is to be seen on them: {constant}.", class_="note")
        if flat
        else None,
        id="curves",
    )


CAPTION = (
    "Thick: mean over seeds; shaded: one standard deviation to either side, from three seeds on; thin: single seeds. "
    "A cross marks where a run stopped, a flag on the axis from where on a seed has collapsed. On a logarithmic axis "
    "means are geometric, with a gap where the value of a seed is not positive. For values, as measured and not "
    "smoothed, point at a plot, or focus it and use the arrow keys."
)


def hero(sweep: Sweep, drawn: Drawn, horizon: int) -> Markup | None:
    if EVALUATION not in drawn:
        return None
    ends = {arm.name: figures(arm, EVALUATION.metric, "end") for arm in sweep.distinct_arms}
    plots = [figure(EVALUATION, drawn[EVALUATION], (WIDE, NARROW), horizon)]
    if any(ends.values()):
        indices = {arm.name: index for index, arm in enumerate(sweep.distinct_arms)}
        caption = element(
            "figcaption",
            element("h3", "Where each arm ends"),
            element("p", "a marker per seed; bar: mean; line: 95 % interval of the mean, from three seeds on"),
        )
        plots.append(
            element("figure", caption, seed_plot(ends, indices, "Evaluation at the end, by seed", "eval/avg at end"))
        )
    return element("div", plots, class_="hero")


def figure(panel: Panel, series: Sequence[Series], frames: Sequence[Frame], horizon: int) -> Markup:
    """One plot with its caption; two frames are the same plot for wide and for narrow screens."""
    note = f"{panel.note}{'; mean over the updates of a batch' if averages_updates(panel, series) else ''}"
    shapes = ("wide", "narrow") if len(frames) > 1 else ("plot",)
    return element(
        "figure",
        element("figcaption", element("h3", panel.title), element("p", note, " · ", element("code", panel.metric))),
        [
            element("div", line_plot(panel, series, frame, horizon), class_=shape)
            for frame, shape in zip(frames, shapes, strict=True)
        ],
        element("div", class_="tip", hidden=True, aria_live="polite"),
        tabindex=0,
        data_metric=panel.metric,
        aria_label=f"{panel.title}: arrow keys move along the updates",
    )


def legend(sweep: Sweep) -> Markup:
    buttons = [
        element(
            "button",
            swatch(index),
            f"{letter(index)} {arm.name}",
            type="button",
            data_toggle=index,
            aria_pressed="true",
        )
        for index, arm in enumerate(sweep.distinct_arms)
    ]
    return element("div", buttons, class_="legend", role="group", aria_label="Arms: show or hide")


def controls(drawn: Drawn) -> Markup:
    """How the curves are drawn; shown by the page's script, which obeys them."""
    axes = {"updates": "updates", **({"tokens": "tokens"} if has_tokens(drawn) else {})}
    radios = [
        element("label", element("input", type="radio", name="axis", value=value, checked=value == "updates"), text)
        for value, text in axes.items()
    ]
    slider = element(
        "input", type="range", id="smoothing", min=0, max=20, step=1, value=0, aria_valuetext="off", autocomplete="off"
    )
    return element(
        "div",
        element("label", "smoothing ", slider, element("output", "off", id="half-life")),
        element("span", "axis ", radios, role="radiogroup", aria_label="Horizontal axis", class_="axes"),
        element("button", "log axes", type="button", id="logarithmic", class_="plain", aria_pressed="true")
        if any(panel.logarithmic for panel in drawn)
        else None,
        element("button", "single seeds", type="button", id="seeds", class_="plain", aria_pressed="true"),
        class_="controls",
        role="group",
        aria_label="How curves are drawn",
        hidden=True,
    )


def has_tokens(drawn: Drawn) -> bool:
    """Whether some drawn run recorded what it sampled."""
    lines = (line for series in drawn.values() for one in series for line in one.lines)
    return any(sampled_tokens(line.run) is not None for line in lines)


def _length(sweep: Sweep) -> str:
    """How many updates were planned, as far as runs have begun."""
    planned = sorted({run.horizon for run in sweep.runs if run.horizon})
    if len(planned) < 2:
        return f", {wording.counted(planned[0], 'update')} each" if planned else ""
    return f", {planned[0]} to {planned[-1]} updates"


def _horizon(sweep: Sweep) -> int:
    """The longest planned run."""
    return max((run.horizon for run in sweep.runs), default=0)
