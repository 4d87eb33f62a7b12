"""Every number that a report prints, draws or hands to its script, beside the one recomputed from the sweep's files;
and no number that is not recomputed."""

import json
import re
import time
from pathlib import Path

import explained_coldstarts
import explained_page
import explained_wandb
import numpy as np
import pytest
from cold_sweep import write_cold_sweep
from explained_verdicts import reason
from recomputed import Truth
from recomputed_claims import judged
from synthetic_sweep import write_sweep
from varied_sweeps import SWEEPS

from minirl.report.claims import evaluate
from minirl.report.coldstart_page import coldstart_page
from minirl.report.coldstarts import compared_starts
from minirl.report.page import page
from minirl.report.read import read_sweep
from minirl.report.wandb_report import specify

WRITTEN = time.strftime("%Y-%m-%d %H:%M %Z", time.localtime(0.0))


def html_of(folder: Path) -> str:
    sweep = read_sweep(folder)
    return page(sweep, evaluate(sweep), now=0.0)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    above = tmp_path_factory.mktemp("sweeps")
    return {name: write(above / name) for name, write in SWEEPS.items()}


@pytest.mark.parametrize("name", SWEEPS)
def test_every_number_of_the_page_is_recomputed(folders: dict[str, Path], name: str) -> None:
    folder = folders[name]
    explained_page.explain(html_of(folder), Truth(folder), written=WRITTEN).settle()


@pytest.mark.parametrize("name", SWEEPS)
def test_every_number_of_the_wandb_report_is_recomputed(folders: dict[str, Path], name: str, tmp_path: Path) -> None:
    folder = folders[name]
    specs = [json.loads(path.read_text("utf-8")) for path in specify(folder, tmp_path / "spec.json")]
    truth = Truth(folder)
    explained_wandb.explain(specs[0], truth, explained_page.drawn_on(html_of(folder))).settle()
    for spec in specs[1:]:
        explained_wandb.explain_coldstarts(spec, truth).settle()


@pytest.mark.parametrize("margin", [0.05, 0.3])
def test_every_number_of_the_page_of_cold_starts_is_recomputed(tmp_path: Path, margin: float) -> None:
    folder = write_cold_sweep(tmp_path / "cold", margin=margin)
    sweep = read_sweep(folder)
    starts = compared_starts(sweep, evaluate(sweep))
    assert starts is not None
    explained_coldstarts.explain(coldstart_page(sweep, starts), Truth(folder)).settle()


def test_the_sweeps_above_reach_every_verdict_and_every_reason(folders: dict[str, Path]) -> None:
    """So that no wording is left unread."""
    said, verdicts = set[str](), set[tuple[str, str]]()
    for folder in folders.values():
        truth = Truth(folder)
        found = judged(truth)
        verdicts |= {(one.claim["relation"], one.verdict) for one in found}
        said |= {" ".join(part for part in reason(truth, one, 1) if isinstance(part, str)) for one in found}
    words = ("greater", "less", "within", "ratio", "converges", "collapsed", "not_collapsed")
    assert verdicts >= {(word, verdict) for word in words for verdict in ("reproduced", "contradicted", "undecided")}
    starts = ("As claimed", "Not as claimed", "One seed", "Nothing to compare", "Clear by itself", "It did not show")
    assert all(any(text.startswith(start) for text in said) for start in starts)
    inside = ("points only", "give an interval", "would be needed to tell", "would probably decide", "unpaired seed")
    assert all(any(words in text for text in said) for words in inside), said


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Truth]:
    folder = write_sweep(tmp_path_factory.mktemp("sweeps") / "small", seeds=[0])
    return html_of(folder), Truth(folder)


def test_a_wrong_digit_anywhere_is_noticed(small: tuple[str, Truth]) -> None:
    """The leading digit of texts, of attributes, of curves as they are drawn, and of the script's numbers."""
    html, truth = small
    body, script = html.index("<body"), html.index('id="series">')
    end = html.index("</script>", script)
    visible = [m.end() - 1 for m in re.finditer(r">[^<\d]*\d", html) if body < m.start() < script]
    hidden = r' (?:data-(?:value|effect|seeds)|title|style)="[^"\d]*\d|class="(?:seed|mean|center)" d="M(?!2 7H)\d'
    attributes = [m.end() - 1 for m in re.finditer(hidden, html) if body < m.start() < script]
    numbers = [m.start() for m in re.finditer(r"(?<=[\[,])[1-9]", html) if script < m.start() < end]
    random = np.random.default_rng(0)
    for places in (visible, attributes, numbers):
        for place in random.choice(places, 8, replace=False).tolist():
            wrong = f"{html[:place]}{(int(html[place]) + 3) % 10}{html[place + 1 :]}"
            with pytest.raises((AssertionError, ValueError)):
                explained_page.explain(wrong, truth, written=WRITTEN).settle()


def test_a_number_that_nobody_recomputes_is_noticed(small: tuple[str, Truth]) -> None:
    html, truth = small
    for before, more in (
        ("</main>", "<p>Reward at its best: 0.71</p></main>"),
        ("</dl>", "<dt>Energy</dt><dd>3 kWh</dd></dl>"),
        ('<g class="marks">', '<path class="trend" d="M0 0l5 5"></path><g class="marks">'),
        ('class="muted"', 'class="muted" data-mean="0.5"'),
        ('"horizon"', '"runs":12,"horizon"'),
    ):
        with pytest.raises((AssertionError, ValueError)):
            explained_page.explain(html.replace(before, more, 1), truth, written=WRITTEN).settle()
