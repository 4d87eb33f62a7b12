"""A card per arm: what it is, how its runs ended and where they lie, what they cost."""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import quote

from minirl.report import wording
from minirl.report.accounting import Account, account
from minirl.report.differences import Difference
from minirl.report.figures import figures, onset
from minirl.report.markup import Child, Markup, element
from minirl.report.plots import arm_class, letter
from minirl.report.read import Arm, Run, Sweep
from minirl.report.statistics import LEVEL, SEEDS_FOR_INTERVAL, location
from minirl.report.tables import endings, exact, number, section, swatch


def arms_section(sweep: Sweep, found: Sequence[Difference]) -> Markup:
    """The cards, then the arms that have no runs of their own."""
    first = sweep.distinct_arms[0].name if sweep.distinct_arms else ""
    cards = [_card(index, arm, found, first) for index, arm in enumerate(sweep.distinct_arms)]
    others = [
        element(
            "p",
            element("b", arm.name),
            f": the same runs as {arm.same_as}: one identity, shown once"
            if arm.same_as
            else f": no runs: {arm.excluded}",
            class_="note",
        )
        for arm in sweep.arms.values()
        if arm.same_as or arm.excluded
    ]
    return section("arms", "The arms", None, element("div", cards, class_="arms"), others)


def _card(index: int, arm: Arm, found: Sequence[Difference], first: str) -> Markup:
    spent = account(arm)
    rows: list[tuple[str, Child]] = [
        ("Runs", endings(arm.runs)),
        ("Collapsed", _collapses(arm)),
        ("Evaluation at the end", _evaluation(arm)),
        *(_costs(spent) if spent else ()),
        ("Folders", element("span", [_folder(run) for run in arm.runs], class_="folders")),
    ]
    return element(
        "article",
        element("h3", swatch(index), f"{letter(index)} {arm.name}"),
        _changes(arm, found, first),
        element("dl", [[element("dt", name), element("dd", content)] for name, content in rows if content]),
        class_=f"armcard {arm_class(index)}",
        data_card=arm.name,
    )


def _changes(arm: Arm, found: Sequence[Difference], first: str) -> Markup:
    """The keys in which the arm differs from the first one."""
    if arm.name == first:
        return element("p", "The others are compared with this arm.", class_="note")
    changed = [
        f"{difference.key}={' | '.join(difference.values[arm.name])}"
        for difference in found
        if arm.name in difference.values and difference.values[arm.name] != difference.values.get(first)
    ]
    if not changed:
        return element("p", f"Differs from {first} in no key.", class_="note")
    return element("ul", [element("li", element("code", text)) for text in changed], class_="changes")


def _collapses(arm: Arm) -> str | None:
    """Which seeds have collapsed, and from which update on."""
    found = {run.seed: at for run in arm.runs if (at := onset(run)) is not None}
    return ", ".join(f"seed {seed} at update {at}" for seed, at in found.items()) or None


def _evaluation(arm: Arm) -> Child:
    """The mean over seeds and its interval; below three seeds, each of them."""
    values = list(figures(arm, "eval/avg", "end").values())
    if not values:
        return None
    if len(values) < SEEDS_FOR_INTERVAL:
        return ", ".join(map(number, values))
    found = location(values)
    low, high = found.interval(LEVEL)
    text = f"{found.estimate:.3f} [{low:.3f}, {high:.3f}]"
    return element("span", text, class_="number", data_mean=exact(found.estimate))


def _costs(spent: Account) -> list[tuple[str, Child]]:
    """Time, tokens and throughput, means over the arm's runs."""
    seconds, sampled = sum(spent.seconds.values()), spent.tokens.get("response")
    rollout = spent.seconds.get("rollout")
    speeds = [
        f"{number(sampled / rollout)} while sampling" if sampled and rollout else None,
        f"{number(spent.tokens_per_cpu_second)} per CPU second" if spent.tokens_per_cpu_second else None,
    ]
    return [
        ("Time per run", f"{number(seconds)} s; {number(spent.cpu_seconds)} CPU s" if seconds else None),
        ("Response tokens per run", number(sampled) if sampled else None),
        ("Tokens per second", ", ".join(speed for speed in speeds if speed) or None),
    ]


def _folder(run: Run) -> Child:
    """A link that is right while the page stays in the sweep's folder."""
    title = f"{run.folder.name}: {run.state}, {run.version} of {run.horizon} {wording.plural(run.horizon, 'update')}"
    text = f"seed {run.seed}"
    if not run.folder.is_dir():
        return element("span", text, title=title, class_="muted")
    return element("a", text, href=f"../{quote(run.folder.name)}/", title=title)
