"""The page in a real browser. Skipped where there is no Chromium."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from explained_cursor import WALK, wrong
from headless_chromium import EXECUTABLE, Browser, browser
from recomputed import Truth
from synthetic_sweep import ARMS, Behaviour, write_sweep

from minirl.report.claims import evaluate
from minirl.report.page import page
from minirl.report.read import read_sweep

pytestmark = pytest.mark.skipif(EXECUTABLE is None, reason="no Chromium on this machine")

PLOTS = """[...document.querySelectorAll('figure[data-metric]')].map(figure => {
  const svg = [...figure.querySelectorAll('svg')].find(svg => svg.getClientRects().length);
  if (!svg) return null;
  const means = [...svg.querySelectorAll('.mean')];
  return {
    metric: figure.dataset.metric,
    arms: means.length,
    points: Math.min(...means.map(mean => mean.getAttribute('d').split(/[Ml]/).length - 1)),
    width: Math.min(...means.map(mean => mean.getBoundingClientRect().width)),
    text: Math.min(...[...svg.querySelectorAll('text')].map(text => text.getBoundingClientRect().height)),
    inside: [...svg.querySelectorAll('text')].every(text => {
      const box = text.getBoundingClientRect(), own = figure.getBoundingClientRect();
      return box.left >= own.left - 1 && box.right <= own.right + 1;
    }),
  };
}).filter(plot => plot)"""


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("page") / "off_policy"
    sweep = read_sweep(write_sweep(folder, missing=[("R2", 3)]))
    path = folder / "index.html"
    path.write_text(page(sweep, evaluate(sweep), now=0.0), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def tab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browser(tmp_path_factory.mktemp("profile")) as opened:
        yield opened


@pytest.fixture(autouse=True)
def quiet(tab: Browser) -> Iterator[None]:
    """Nothing on the console, no request but for the page itself, in every test."""
    tab.messages.clear()
    tab.requests.clear()
    yield
    assert tab.messages == []
    assert all(url.startswith("file://") for url in tab.requests)
    assert len(set(tab.requests)) == 1


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [400, 800, 900, 1280])
def test_every_plot_shows_its_arms_at_every_width(tab: Browser, path: Path, width: int, dark: bool) -> None:
    tab.open(path, width=width, dark=dark)
    plots = tab.evaluate(PLOTS)
    assert len(plots) >= 13
    for plot in plots:
        assert plot["arms"] >= 2, plot
        assert plot["points"] >= 5, plot
        assert plot["width"] > 100, plot  # a mean has gaps on a logarithmic axis
        assert plot["text"] >= 9, plot  # pixels: letters are readable, also where the plot is narrow
        assert plot["inside"], plot
    assert tab.evaluate("document.documentElement.scrollWidth") <= width


def test_many_arms_with_long_names_fit_too(tab: Browser, tmp_path: Path) -> None:
    arms = {
        f"arm number {i} with rather a long name": ([f"train.optim.lr={i}.0e-4"], Behaviour()) for i in range(1, 11)
    }
    sweep = read_sweep(write_sweep(tmp_path / "many", arms=arms, seeds=[0], claims=[]))
    (tmp_path / "index.html").write_text(page(sweep, [], now=0.0), encoding="utf-8")
    for width in (400, 1280):
        tab.requests.clear()
        tab.open(tmp_path / "index.html", width=width)
        assert tab.evaluate("document.documentElement.scrollWidth") <= width
        assert all(plot["inside"] and plot["arms"] == 10 for plot in tab.evaluate(PLOTS))


def test_a_page_without_curves_has_a_quiet_script(tab: Browser, tmp_path: Path) -> None:
    missing = [(arm, seed) for arm in ARMS for seed in range(2)]
    sweep = read_sweep(write_sweep(tmp_path / "nothing", seeds=range(2), missing=missing))
    (tmp_path / "index.html").write_text(page(sweep, evaluate(sweep), now=0.0), encoding="utf-8")
    tab.open(tmp_path / "index.html")
    assert "No run has written a row yet." in tab.evaluate("document.body.innerText")


def test_the_colour_scheme_is_followed(tab: Browser, path: Path) -> None:
    grounds = []
    for dark in (False, True):
        tab.open(path, dark=dark)
        grounds.append(tab.evaluate("getComputedStyle(document.body).backgroundColor"))
    assert grounds == ["rgb(251, 251, 249)", "rgb(19, 20, 23)"]


def test_plots_are_read_by_keyboard(tab: Browser, path: Path) -> None:
    tab.open(path)
    figure = "document.querySelector('figure[data-metric=\"reward/mean\"]')"
    tab.evaluate(f"{figure}.focus()")
    for _ in range(3):
        tab.press("ArrowRight")
    lines = tab.evaluate(
        f"[...{figure}.querySelectorAll('.tip p')].map(line => [...line.children].map(e => e.textContent))"
    )
    assert lines[0] == ["update", "16"]
    assert [name for name, _ in lines[1:]] == ["A MiniRL", "B no clipping", "C R2", "D R3"]
    assert all(0.2 < float(value) < 0.9 for _, value in lines[1:])
    assert tab.evaluate(f"{figure}.querySelectorAll('.dot').length") == 4
    tab.press("Escape")
    assert tab.evaluate(f"{figure}.querySelector('.tip').hidden")


@pytest.mark.parametrize("axis", ["updates", "tokens"])
def test_the_cursor_tells_what_the_rows_say_wherever_it_stands(tab: Browser, path: Path, axis: str) -> None:
    tab.open(path)
    plots = json.loads(tab.evaluate("document.getElementById('series').textContent"))["plots"]
    walked = tab.evaluate(f"{WALK}('{axis}')")
    assert sum(len(lines) for _, tips in walked for lines in tips) > 1000
    assert wrong(Truth(path.parent), walked, plots, axis) == []


def test_plots_are_read_by_pointer(tab: Browser, path: Path) -> None:
    tab.open(path)
    tab.evaluate("document.documentElement.style.scrollBehavior = 'auto'")
    x, y = tab.evaluate("""(() => {
      const both = [...document.querySelectorAll('figure[data-metric="eval/avg"] svg')];
      const svg = both.find(svg => svg.getClientRects().length);
      svg.scrollIntoView({block: 'center'});
      const box = svg.getBoundingClientRect();
      return [box.left + box.width * 0.35, box.top + box.height / 2];
    })()""")
    tab.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
    assert tab.evaluate("document.querySelector('.tip:not([hidden])').innerText").startswith("update")


def test_an_arm_is_hidden_everywhere(tab: Browser, path: Path) -> None:
    tab.open(path)
    shown = "[...document.querySelectorAll('svg [data-arm=\"1\"]')].filter(mark => mark.getClientRects().length).length"
    before = tab.evaluate(shown)
    tab.evaluate("document.querySelector('[data-toggle=\"1\"]').click()")
    assert before > 10
    assert tab.evaluate(shown) == 0
    assert tab.evaluate("document.querySelector('[data-toggle=\"1\"]').getAttribute('aria-pressed')") == "false"
    tab.evaluate("document.querySelector('[data-toggle=\"1\"]').click()")
    assert tab.evaluate(shown) == before


DRAWN = """[...document.querySelectorAll('figure[data-metric] svg')].map(svg => ({
  paths: [...svg.querySelectorAll('path')].map(path => path.getAttribute('d') + (path.getAttribute('transform') || '')),
  texts: [...svg.querySelectorAll('text')].map(text => text.textContent),
}))"""


def numbers(text: str) -> list[float]:
    return [float(number) for number in re.findall(r"-?[0-9.]+", text)]


def test_the_script_draws_what_the_page_was_written_with(tab: Browser, path: Path) -> None:
    """Two programs draw these plots; here they are held together."""
    tab.open(path)
    written = tab.evaluate(DRAWN)
    for _ in range(2):
        tab.evaluate("document.getElementById('logarithmic').click()")
    drawn = tab.evaluate(DRAWN)
    assert len(written) == len(drawn) > 20
    for before, after in zip(written, drawn, strict=True):
        assert after["texts"] == before["texts"]
        assert len(after["paths"]) == len(before["paths"])
        for one, other in zip(before["paths"], after["paths"], strict=True):
            assert re.sub(r"[-0-9. ]", "", one) == re.sub(r"[-0-9. ]", "", other)
            assert numbers(other) == pytest.approx(numbers(one), abs=0.21)  # of a pixel


def test_axes_smoothing_and_seeds_are_the_readers_choice(tab: Browser, path: Path) -> None:
    tab.open(path)
    figure = "document.querySelector('figure[data-metric=\"mismatch/kl_k3\"]')"
    texts = f"[...{figure}.querySelectorAll('svg text')].map(text => text.textContent)"
    line = f"{figure}.querySelector('[data-arm=\"0\"] .mean').getAttribute('d')"
    raw = tab.evaluate(line)
    tab.evaluate("document.querySelector('input[value=tokens]').click()")
    assert "response tokens" in tab.evaluate(texts)
    assert "50k" in tab.evaluate(texts)
    tab.evaluate("document.querySelector('input[value=updates]').click()")
    assert tab.evaluate(line) == raw

    def roughness() -> float:
        return sum(abs(step) for step in numbers(tab.evaluate(line))[3::2])

    before = roughness()
    slider = "document.getElementById('smoothing')"
    tab.evaluate(f"{slider}.value = 10; {slider}.dispatchEvent(new Event('input'))")
    assert roughness() < 0.7 * before
    assert tab.evaluate("document.getElementById('half-life').textContent") == "half-life 9.6 updates"
    seeds = f"[...{figure}.querySelectorAll('.seed')].filter(seed => seed.getClientRects().length).length"
    assert tab.evaluate(seeds) == 19
    tab.evaluate("document.getElementById('seeds').click()")
    assert tab.evaluate(seeds) == 0


def test_controls_are_reached_and_used_by_keyboard(tab: Browser, path: Path) -> None:
    tab.open(path)
    reached = []
    for _ in range(60):
        tab.press("Tab")
        reached.append(
            tab.evaluate("(e => e.id || e.dataset.toggle || e.dataset.metric || e.value || '')(document.activeElement)")
        )
    for control in ("0", "1", "2", "3", "smoothing", "updates", "logarithmic", "seeds", "eval/avg", "mismatch/kl_k1"):
        assert control in reached, control
    tab.evaluate("document.querySelector('[data-toggle=\"2\"]').focus()")
    tab.press(" ")
    assert tab.evaluate("document.querySelector('[data-toggle=\"2\"]').getAttribute('aria-pressed')") == "false"
    tab.evaluate("document.getElementById('smoothing').focus()")
    tab.press("ArrowRight")
    assert tab.evaluate("document.getElementById('half-life').textContent").startswith("half-life")
    tab.evaluate("document.querySelector('input[value=updates]').focus()")
    tab.press("ArrowRight")
    assert tab.evaluate("document.querySelector('input[value=tokens]').checked")


def test_a_control_of_another_magnitude_is_named_below_the_axis(tab: Browser, tmp_path: Path) -> None:
    arms = {"fp8": ([], Behaviour()), "fp32": (["engine.numerics=fp32"], Behaviour(k3=1e-13))}
    sweep = read_sweep(write_sweep(tmp_path / "control", arms=arms, seeds=range(3), claims=[]))
    (tmp_path / "index.html").write_text(page(sweep, [], now=0.0), encoding="utf-8")
    texts = "[...document.querySelectorAll('[data-metric=\"mismatch/kl_k3\"] text')].map(text => text.textContent)"
    for clicks in (0, 2):
        tab.requests.clear()
        tab.open(tmp_path / "index.html")
        for _ in range(clicks):
            tab.evaluate("document.getElementById('logarithmic').click()")
        assert "B is below: 10⁻¹³" in tab.evaluate(texts)
        assert not any("10⁻⁸" in text for text in tab.evaluate(texts))


def test_onsets_of_collapse_are_flagged(tab: Browser, path: Path) -> None:
    tab.open(path)
    flags = 'document.querySelectorAll(\'figure[data-metric="reward/mean"] [data-arm="ARM"] .flag\').length'
    assert [tab.evaluate(flags.replace("ARM", str(arm))) for arm in range(4)] == [0, 5, 0, 0]


def test_it_prints_light_with_open_explanations(tab: Browser, path: Path, tmp_path: Path) -> None:
    tab.open(path, dark=True, media="print")
    assert tab.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    tab.pdf(tmp_path / "page.pdf")
    assert (tmp_path / "page.pdf").stat().st_size > 50_000


def test_it_reads_without_scripts(tab: Browser, path: Path) -> None:
    """Verdicts and curves are in the document itself."""
    tab.call("Emulation.setScriptExecutionDisabled", value=True)
    try:
        tab.open(path)
        text = tab.evaluate("document.body.innerText")
        assert "Of 6 claims" in text
        assert len(tab.evaluate(PLOTS)) >= 13
    finally:
        tab.call("Emulation.setScriptExecutionDisabled", value=False)
