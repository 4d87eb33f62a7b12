"""What the page must say besides verdicts and plots: how much is there, the arms, what differs, costs, every run."""

from __future__ import annotations

import re
import shlex
from urllib.parse import quote

import explained_coldstarts as coldstarts
import numpy as np
from document import Document
from explained_cautions import cautions, differing, on_page, seen, worked
from explained_estimates import profile
from explained_plots import figures
from explained_script import script
from explained_verdicts import cards, headline, plural, table
from html_tree import Node
from ledger import Number, Part, count, exact, listed
from recomputed import Run, Truth, endings, letter
from recomputed_claims import judged
from recomputed_curves import costs, curve, interval

# sentences of the page with digits that are none of the experiment's, by the words with which they begin, and why
CONSTANTS = {
    "k3": "the name of an estimator",
    "Arms are compared seed by seed": "the level of the tests, recomputed with every verdict",
    "Reproduced: the interval lies": "half of that level",
    "Engine and trainer, same weights": "R3 is a method",
}


def amount(value: float | None) -> Part:
    """12,345 or 0.123."""
    return "–" if value is None else Number(value, decimals=0) if value >= 100 else Number(value)


def explain(html: str, truth: Truth, *, written: str) -> Document:
    """The whole page: what is wrong or unexplained fails."""
    page = Document(html)
    body = page.root.one("body")
    sections = {section["id"]: section for section in body.one("main").all("section")}
    found = judged(truth)
    page.words(page.root.one("head").child("title"), f"{truth.plan['title']} · minirl")
    masthead(page, truth, body.one("header"))
    if found:
        cards(page, truth, sections.pop("verdicts"), found, len(found))
        table(page, truth, sections.pop("numbers"))
    script(page, truth)
    curves(page, truth, sections.pop("curves"))
    if "coldstarts" in sections:
        coldstarts.section(page, truth, sections.pop("coldstarts"))
    arms(page, truth, sections.pop("arms"))
    switches(page, truth, sections.pop("switches"))
    if "routing" in sections:
        routing(page, truth, sections.pop("routing"))
    accounts(page, truth, sections.pop("time", None))
    runs(page, truth, sections.pop("runs"))
    footer(page, truth, body.one("footer"), written)
    return page


def drawn_on(html: str) -> list[str]:
    """The metrics of the page's plots that are not folded away."""
    return re.findall(r'<figure[^>]*data-metric="([^"]+)"', html.partition("<details>")[0])


def masthead(page: Document, truth: Truth, header: Node) -> None:
    page.words(header.one("p", class_="over"), f"minirl report · {truth.plan['name']}")
    page.words(header.one("h1"), truth.plan["title"])
    page.words(header.one("p", class_="lead"), *headline(judged(truth)))
    sizes = [(len(truth.arms), "arm"), (len(truth.plan["seeds"]), "seed")]
    parts = listed(([count(n), f" {plural(n, word)}"] for n, word in sizes), ", ")
    results = sum(run.counts for run in truth.runs)
    planned = sorted({run.horizon for run in truth.runs if run.horizon})
    parts += [", ", *listed(([count(number)] for number in planned[:1] + planned[1:][-1:]), " to ")] if planned else []
    parts += [f" {plural(planned[0], 'update')} each" if len(planned) == 1 else " updates"] if planned else []
    missing = "" if results == len(truth.runs) else f" Not complete: {endings(truth.runs)}."
    page.words(header.one("p", class_="muted"), *parts, ". ", *results_of(truth), missing)


def results_of(truth: Truth) -> list[Part]:
    number = len(truth.runs)
    words = f" {plural(number, 'run')} {'has' if number == 1 else 'have'} a result."
    return [count(sum(run.counts for run in truth.runs)), " of ", count(number), words]


def curves(page: Document, truth: Truth, section: Node) -> None:
    for index, (button, arm) in enumerate(zip(section.all("button", type="button"), truth.arms, strict=False)):
        page.words(button, f"{letter(index)} {arm}")
        page.constant(button, "data-toggle")
    for slider in section.all("input", type="range"):
        page.constant(slider, "min", "max", "step", "value")  # of smoothing, in percent of the axis
    figures(page, truth, section)
    for more in section.all("summary"):
        page.words(more, count(len(list(section.one("details").all("figure")))), " more curves")
    for note in section.all("p", class_="note"):
        named = note.words().rpartition(": ")[2].removesuffix(".").split(", ")
        for metric in named:
            runs = [run for run in truth.runs if metric in run.metrics]
            values = np.array([value for run in runs for value in curve(truth, run, metric)[1]])
            nothing = np.ptp(values) < 1e-12 * np.abs(values).max() or values.max() <= 0 or values.max() == values.min()
            assert nothing, f"{metric} is said to have nothing to show, and has {len(set(values))} values"
        page.words(note, note.words())


def arms(page: Document, truth: Truth, section: Node) -> None:
    cards = list(section.all("article"))
    first = next(iter(truth.arms))
    for index, (card, (arm, members)) in enumerate(zip(cards, truth.arms.items(), strict=True)):
        page.attribute(card, "data-card", arm)
        page.words(card.one("h3"), f"{letter(index)} {arm}")
        there = {key: seen(truth, arm, key) for key in differing(truth) if truth.config(arm)}
        changed = [[f"{key}={' | '.join(texts)}"] for key, texts in there.items() if texts != seen(truth, first, key)]
        listing = list(card.all("li"))
        if index:
            page.each(listing, changed or [["nothing"]])
            assert len(listing) == len(changed)
            if not changed:
                page.words(card.one("p"), f"Differs from {first} in no key.")
        terms = {term.words(): value for term, value in zip(card.all("dt"), card.all("dd"), strict=True)}
        expected = facts(truth, arm, members)
        assert terms.keys() - {"Folders"} == expected.keys()
        for name, parts in expected.items():
            page.words(terms[name], *parts)
        ends = list(truth.by_seed(arm, "eval/avg", "end").values())
        for span in card.all("span", class_="number"):
            page.attribute(span, "data-mean", exact(float(np.mean(ends))))
        for link, run in zip(terms["Folders"].one("span", class_="folders").children, members, strict=True):
            page.words(link, "seed ", count(run.seed))
            progress = [count(run.last), " of ", count(run.horizon), f" {plural(run.horizon, 'update')}"]
            page.attribute(link, "title", f"{run.folder.name}: {run.state}, ", *progress)
            page.attribute(link, "href", *([f"../{quote(run.folder.name)}/"] if run.folder.is_dir() else []))
    others = [[f"{arm}: the same runs as {same}: one identity, shown once"] for arm, same in truth.same.items()]
    others += [[f"{arm}: no runs: {why}"] for arm, why in truth.excluded.items()]
    notes = [note for note in section.children if note.tag == "p"]
    assert len(notes) == len(others)
    page.each(notes, others)


def facts(truth: Truth, arm: str, members: list[Run]) -> dict[str, list[Part]]:
    """The lines of an arm's card."""
    found: dict[str, list[Part]] = {"Runs": [endings(members)]}
    fallen = [run for run in members if run.onset is not None]
    if fallen:
        lines = (["seed ", count(run.seed), " at update ", count(run.onset or 0)] for run in fallen)
        found["Collapsed"] = listed(lines, ", ")
    ends = list(truth.by_seed(arm, "eval/avg", "end").values())
    if len(ends) > 2:
        middle, *edges = (Number(value, decimals=3) for value in (*interval(ends), *interval(ends) * 2)[:3])
        found["Evaluation at the end"] = [middle, " [", edges[0], ", ", edges[1], "]"]
    elif ends:
        found["Evaluation at the end"] = listed(([Number(value)] for value in ends), ", ")
    spent = costs(members)
    if spent is not None:
        seconds, sampled = sum(spent.seconds.values()), spent.tokens["response"]
        speeds: list[list[Part]] = [[amount(sampled / spent.seconds["rollout"]), " while sampling"]]
        speeds += [[amount(sampled / spent.cpu_seconds), " per CPU second"]] if spent.cpu_seconds else []
        found["Time per run"] = [amount(seconds), " s; ", amount(spent.cpu_seconds or None), " CPU s"]
        found["Response tokens per run"] = [amount(sampled)]
        found["Tokens per second"] = listed(speeds, ", ")
    return found


def switches(page: Document, truth: Truth, section: Node) -> None:
    keys = differing(truth)
    if keys:
        head, *rows = section.one("table").all("tr")
        page.words(head, "key", *(arm for arm in truth.arms if truth.config(arm)))
        assert [row.one("th").words() for row in rows] == keys
        for row, key in zip(rows, keys, strict=True):
            page.words(row.one("th"), key)
            for cell, arm in zip(row.all("td"), [arm for arm in truth.arms if truth.config(arm)], strict=True):
                page.words(cell, " | ".join(seen(truth, arm, key)))
                page.attribute(cell, "data-label", arm)
    for text in section.all("td"):
        page.constant(text, "data-label")
    nothing, doubts = (list(one.all("li")) for one in _listings(section))
    for item in nothing:
        _inert(page, truth, item)
    expected = sorted(cautions(truth), key=lambda caution: not caution[1])
    assert len(doubts) == len(expected)
    page.each(doubts, [on_page(caution) for caution in expected])


def _listings(section: Node) -> list[Node]:
    """What follows each of the two headings."""
    after = [section.children[section.children.index(heading) + 1] for heading in section.all("h3")]
    return [one if one.tag == "ul" else Node("ul", {}) for one in after]


def _inert(page: Document, truth: Truth, item: Node) -> None:
    """A switch without effect, in which arms, and how one sees it."""
    keys = [word.partition("=")[0] for word in item.one("code").words().split(", ")]
    where = item.words().removeprefix(item.one("code").words()).removeprefix(" in ").partition(": ")[0]
    named = [plain.strip() or inside for inside, plain in re.findall("“([^”]*)”|([^,“]+)", where)]
    concerned = [name for name in named if name]
    for arm in concerned:
        config = truth.config(arm)
        assert item.one("code").words() == ", ".join(f"{key}={config[key]}" for key in keys)
        why = item.words().partition(": ")[2]
        metric = why.partition(" is ")[0]
        if "/" in metric:
            top = max(float(run.metrics[metric][1].max()) for run in truth.arms[arm] if metric in run.metrics)
            assert top == 0 or (metric == "mismatch/logprob_abs_diff" and top <= 1e-5), (arm, metric, top)
            if top:
                page.says([], why.partition(" at most ")[2].partition(":")[0], Number(top, digits=2))
        else:
            assert why.startswith("num_mini_batches=1") and config["num_mini_batches"] == 1
    assert concerned
    page.words(item, item.words())


def routing(page: Document, truth: Truth, section: Node) -> None:
    plots = list(section.all("figure"))
    for plot in plots:
        profile(page, truth, plot, plot.one("code").words().removeprefix("1 - ").removesuffix("*"))
    page.words(section.one("p", class_="intro"), section.one("p", class_="intro").words())
    head, *rows = section.one("table").all("tr")
    page.words(head, head.words())
    assert len(rows) == len(truth.arms)
    for index, (row, arm) in enumerate(zip(rows, truth.arms, strict=True)):
        name, switch, *cells = row.children
        page.words(name, f"{letter(index)} {arm}")
        page.words(switch, str(truth.config(arm).get("algo.routing", "–")))
        for cell, metric in zip(cells, ROUTING, strict=True):
            values = list(truth.by_seed(arm, metric, "end").values())
            parts = [Number(value) for value in interval(values)] if values else []
            page.words(cell, *([parts[0], " [", parts[1], ", ", parts[2], "]"] if len(parts) > 1 else parts or ["–"]))
            page.constant(cell, "data-label")


ROUTING = (
    "routing/disagree_token_layer",
    "routing/disagree_any",
    "routing/missing",
    "routing/replayed",
    "routing/changed",
    "routing/router_shift",
    "mismatch/kl_k3",
    "mismatch_live/kl_k3",
)


def accounts(page: Document, truth: Truth, section: Node | None) -> None:
    spent = {arm: found for arm, members in truth.arms.items() if (found := costs(members)) is not None}
    if section is None:
        assert not spent
        return
    names = list(dict.fromkeys(name for one in spent.values() for name in one.seconds))
    head, *rows = section.one("table").all("tr")
    titles = [title.words() for title in head.children][1:-4]
    assert set(titles) == set(names)
    for row, (arm, one) in zip(rows, spent.items(), strict=True):
        name, *cells = row.children
        page.words(name, arm)
        whole = sum(one.seconds.values())
        for cell, phase in zip(cells, titles, strict=False):
            page.words(cell, Number(one.seconds.get(phase, 0.0)))
            bar = cell.one("span", class_="share")
            page.attribute(bar, "style", "--share:", Number(one.seconds.get(phase, 0.0) / whole, decimals=3))
        each = whole / one.updates if one.updates else None
        speed = one.tokens["response"] / one.cpu_seconds if one.cpu_seconds else None
        last = (each, one.tokens["prompt"], one.tokens["response"], speed)
        for cell, value in zip(cells[len(titles) :], last, strict=True):
            page.words(cell, amount(value))


def runs(page: Document, truth: Truth, section: Node) -> None:
    page.words(
        section.one("summary"), count(len(truth.runs)), f" {plural(len(truth.runs), 'run')}: {endings(truth.runs)}"
    )
    rows = list(section.one("tbody").all("tr"))
    for row, run in zip(rows, truth.runs, strict=True):
        arm, seed, state, updates, folder, alone = row.children
        page.words(arm, run.arm)
        page.words(seed, count(run.seed))
        notes = [run.record["reason"]] if run.record.get("reason") else []
        page.words(state, run.state, *notes)
        page.words(updates, count(run.last), " of ", count(run.horizon))
        page.words(folder, run.folder.name)
        words = run.record.get("overrides") or truth.plan["arms"][run.arm]
        page.words(alone, f"minirl run {shlex.join(words)}")


def footer(page: Document, truth: Truth, foot: Node, written: str) -> None:
    name = truth.plan["name"]
    page.words(foot.one("pre"), f"minirl sweep {name}\nminirl report {name}")
    terms = {term.words(): value for term, value in zip(foot.all("dt"), foot.all("dd"), strict=True)}
    records = [run.record for run in truth.runs if run.record]
    codes = {code for record in records for code in worked(record)}
    packages: dict[str, list[str]] = {}
    for record in records:
        for package, number in (record.get("packages") or {}).items():
            packages.setdefault(package, [])
            packages[package] += [] if number in packages[package] else [number]
    starts = {record["coldstart"]["content"][:16] for record in records if record.get("coldstart")}
    expected: dict[str, list[Part]] = {
        "Scale": [truth.plan.get("scale") or "not recorded"],
        "Seeds": listed(([count(seed)] for seed in truth.plan["seeds"]), ", "),
        "Settings of all arms": [" ".join(truth.plan.get("base", [])) or "none beyond the defaults"],
        "Code": [", ".join(sorted(codes)) or "not recorded"],
        "Packages": [", ".join(f"{p} {' and '.join(n)}" for p, n in packages.items()) or "not recorded"],
        "Cold start": [", ".join(sorted(starts)) or "not recorded"],
        "Page written": [written],
    }
    assert terms.keys() == expected.keys()
    for term, parts in expected.items():
        page.words(terms[term], *parts)
    for note in foot.all("p", class_="note"):
        if any(note.words().startswith(known) for known in CONSTANTS):
            page.words(note, note.words())
