"""docs/faults.md names tests that exist, and every fault once."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs" / "faults.md").read_text(encoding="utf-8")
PUBLIC_LIST = ROOT.parent / "shared" / "cases" / "peer_faults.md"  # where a checkout has it beside itself

IDENTIFIER = r"[A-Z]\d\d"
ROWS = re.findall(rf"^\| ({IDENTIFIER}) \| (.+?) \| (.+) \|$", PAGE, flags=re.MULTILINE)
LISTED = " ".join(re.findall(rf"^    ((?:{IDENTIFIER} ?)+)$", PAGE, flags=re.MULTILINE)).split()


@cache
def functions_of(file: str) -> frozenset[str]:
    """Names of the test functions of a file, which is parsed and not imported."""
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    return frozenset(node.name for node in tree.body if isinstance(node, ast.FunctionDef))


def test_every_row_is_there_once() -> None:
    assert len(LISTED) > 60 and len(set(LISTED)) == len(LISTED)
    assert [row for row, _, _ in ROWS] == LISTED


@pytest.mark.skipif(not PUBLIC_LIST.is_file(), reason="the list of faults is not beside this checkout")
def test_no_fault_of_the_public_list_is_left_out() -> None:
    known = re.findall(rf"^\| ({IDENTIFIER}) \|", PUBLIC_LIST.read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert sorted(known) == sorted(LISTED)


@pytest.mark.parametrize(("row", "shown"), [(row, shown) for row, _, shown in ROWS], ids=[row for row, *_ in ROWS])
def test_a_row_names_tests_that_exist_or_says_why_not(row: str, shown: str) -> None:
    named = re.findall(r"`(tests/[^`]+)`", shown)
    for reference in named:
        file, _, name = reference.partition("::")
        assert (ROOT / file).is_file() and name in functions_of(file), reference
    prose = [part for part in shown.split("<br>") if not part.startswith("`tests/")]
    assert named or any(part.startswith(("Does not apply", "Not covered yet")) for part in prose), row
    assert all(part.rstrip().endswith(".") for part in prose), "a sentence ends with a full stop"
