"""What the command says, on a terminal and in a pipe."""

import io
from pathlib import Path

import pytest
from rich.console import Console
from synthetic_sweep import CLAIMS, write_sweep

from minirl.report import terminal
from minirl.report.claims import evaluate
from minirl.report.read import read_sweep
from minirl.report.wording import rounded


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_sweep(tmp_path / "off_policy", missing=[("R2", 3)])


def said(folder: Path, **options: bool) -> str:
    sweep, text = read_sweep(folder), io.StringIO()
    terminal.show(sweep, evaluate(sweep), Console(file=text, width=140, **options))
    return text.getvalue()


def test_a_pipe_gets_short_aligned_lines(folder: Path) -> None:
    lines = said(folder).splitlines()
    assert lines[1] == "Of 6 claims: 3 reproduced, 1 contradicted, 2 undecided."
    verdicts = ("reproduced", "reproduced", "undecided", "reproduced", "undecided", "contradicted")
    begun = [line for line in lines[2:] if line.startswith(verdicts)]
    width = len("contradicted") + 2
    assert [(line[:width].strip(), line[width:]) for line in begun] == [
        (verdict, claim["text"]) for verdict, claim in zip(verdicts, CLAIMS, strict=True)
    ]
    under = [line for line in lines[2:] if line.startswith(" " * width)]
    assert len(under) >= 2 * len(CLAIMS)  # effect and reason of each
    assert all(len(line) <= 100 and line[width] != " " for line in under)
    assert any(line.startswith("no effect here: algo.is_weight.product.high=5.0") for line in lines)
    assert any(line.startswith("confounded: ") for line in lines)
    assert "\x1b" not in "".join(lines)


def test_a_terminal_gets_a_table(folder: Path) -> None:
    text = said(folder, force_terminal=True)
    assert "\x1b[" in text
    assert all(word in text for word in ("verdict", "claim", "why", "contradicted"))


def test_brackets_in_names_are_text(folder: Path) -> None:
    plan = folder / "sweep.json"
    plan.write_text(plan.read_text().replace("R3 halves the mismatch", "[bold]R3[/bold] halves [it]"))
    assert "[bold]R3[/bold] halves [it]" in said(folder, force_terminal=True)


def test_the_command_writes_the_page_and_ends_with_its_path(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("minirl.report.page.write_pngs", lambda sweep, folder: [])
    text = io.StringIO()
    path = terminal.report(folder, Console(file=text, width=40))
    assert path.is_file()
    assert text.getvalue().splitlines()[-1] == str(path.resolve())


@pytest.mark.parametrize(
    ("values", "sign", "expected"),
    [
        ([0.0828, 0.0424, 0.1232], "+", ["+0.083", "+0.042", "+0.123"]),
        ([-12.34, -20.0, -4.0], "", ["−12.3", "−20.0", "−4.0"]),
        ([1234.0, 200.0, 2200.0], "", ["1234", "200", "2200"]),
        ([0.0146], "+", ["+0.0146"]),
        ([0.0], "", ["0"]),
        ([3e-12], "", ["3e−12"]),
    ],
)
def test_numbers_have_the_digits_that_their_spread_allows(values: list[float], sign: str, expected: list[str]) -> None:
    assert rounded(values, sign) == expected
