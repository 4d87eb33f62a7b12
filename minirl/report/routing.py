"""What routing did: where engine and trainer choose other experts, and what replay left of the mismatch."""

from __future__ import annotations

from collections.abc import Sequence

from minirl.report.figures import figures
from minirl.report.markup import Markup, element
from minirl.report.plots import letter
from minirl.report.profiles import Profile, profile_plot
from minirl.report.read import Arm, Sweep
from minirl.report.statistics import LEVEL, SEEDS_FOR_INTERVAL, location
from minirl.report.tables import number_cell, section, swatch, table

INTRO = (
    "Engine and trainer, same weights, same tokens, each with its own routers: the share of the k experts of a token "
    "that only one of them chose. Means over the last tenth of the updates. Under R3 the trainer follows the engine's "
    "experts, so its own mismatch falls by construction; the last column is measured on free routing in every arm."
)
PROFILES = (
    ("routing/by_layer/", "Experts that differ, by layer", "decoder layer", "depth profile"),
    ("routing/by_position/", "Experts that differ, by position", "from position", "of the token in its response"),
)
COLUMNS = (
    ("routing/disagree_token_layer", "Token-layers that differ"),
    ("routing/disagree_any", "Tokens that differ in any layer"),
    ("routing/missing", "Routes missing"),
    ("routing/replayed", "Replayed"),
    ("routing/changed", "Drift in a batch"),
    ("routing/router_shift", "Router-shift ratio"),
    ("mismatch/kl_k3", "Mismatch k3, own routing"),
    ("mismatch_live/kl_k3", "Mismatch k3, free routing"),
)


def has_routes(sweep: Sweep) -> bool:
    """Some run compared routes, or some arm replays them."""
    names = (name for run in sweep.runs for name in run.curves)
    replays = any(arm.config.get("algo.routing") in ("r2", "r3") for arm in sweep.distinct_arms)
    return replays or any(name.startswith("routing/") for name in names)


def routing_section(sweep: Sweep) -> Markup | None:
    """Two profiles and a table; None for a sweep without routes."""
    if not has_routes(sweep):
        return None
    head = ("Arm", "Routing", *(title for _, title in COLUMNS))
    rows = [_row(index, arm) for index, arm in enumerate(sweep.distinct_arms)]
    plots = [plot for spec in PROFILES if (plot := _plot(sweep, *spec)) is not None]
    return section(
        "routing",
        "Routing",
        INTRO,
        element("div", plots, class_="plots") if plots else None,
        table(head, rows, "routing"),
    )


def _row(index: int, arm: Arm) -> Markup:
    cells = [number_cell(title, _in_digits(list(figures(arm, metric, "end").values()))) for metric, title in COLUMNS]
    routing = element("code", str(arm.config.get("algo.routing", "–")))
    return element(
        "tr",
        element("th", swatch(index), f"{letter(index)} {arm.name}"),
        element("td", routing, data_label="Routing"),
        cells,
    )


def _in_digits(values: Sequence[float]) -> str:
    """0.059 [0.055, 0.063]: the mean over seeds and its t interval, from three seeds on."""
    if not values:
        return "–"
    if len(values) < SEEDS_FOR_INTERVAL or len(set(values)) == 1:
        return f"{sum(values) / len(values):.3g}"
    found = location(values)
    low, high = found.interval(LEVEL)
    return f"{found.estimate:.3g} [{low:.3g}, {high:.3g}]"


def _plot(sweep: Sweep, prefix: str, title: str, unit: str, note: str) -> Markup | None:
    arms = list(enumerate(sweep.distinct_arms))
    profiles = [one for index, arm in arms if (one := profile_of(index, arm, prefix)).seeds]
    if not profiles:
        return None
    places = sorted({place for one in profiles for seed in one.seeds for place in seed}, key=_order)
    return element(
        "figure",
        element(
            "figcaption",
            element("h3", title),
            element("p", f"share of k, free routing; {note} · ", element("code", f"1 - {prefix}*")),
        ),
        element("div", profile_plot(title, unit, places, profiles), class_="plot"),
    )


def profile_of(index: int, arm: Arm, prefix: str) -> Profile:
    """1 - overlap at the end, by place, of each run with a result."""
    names = sorted({name for run in arm.results for name in run.curves if name.startswith(prefix)})
    by_place = {name.removeprefix(prefix): figures(arm, name, "end") for name in names}
    seeds = sorted({seed for found in by_place.values() for seed in found})
    return Profile(
        index,
        arm.name,
        tuple({place: 1 - found[seed] for place, found in by_place.items() if seed in found} for seed in seeds),
    )


def _order(place: str) -> int:
    """Places are numbers; what is not (`prompt`) comes before them."""
    return int(place) if place.isdigit() else -1
