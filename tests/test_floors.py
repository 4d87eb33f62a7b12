"""Who may import whom, read from every import statement (lazy ones too), and what a name and a file may look like."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

# From the ground up. A room imports itself and the floors below; rooms of one floor never see one another.
FLOORS = (
    ("choices",),
    ("config", "types"),
    ("suggest", "exits", "algorithm_rules", "sampling_rules", "streams", "clock", "world", "record", "hub", "tables"),
    ("task_rules",),
    ("validate", "compose"),
    ("interfaces", "accounting", "batches"),
    ("algo", "metrics", "models"),
    ("identity",),
    ("policy", "engine", "tasks", "tracking", "grading", "balance"),
    ("loop", "evaluate", "agreement", "watch", "signals", "lookout"),
    ("sft",),
    ("coldstart",),
    ("run", "examine"),
    ("rescore",),
    ("doctor", "curate", "publish"),
    ("report", "recipes"),
    ("sweep",),
    ("switches",),
    ("hydra_plugins", "completion"),
    ("arguments",),
    ("cli",),
)
FLOOR = {room: height for height, rooms in enumerate(FLOORS) for room in rooms}
FORBIDDEN_WORDS = {"utils", "util", "core", "common", "base", "helpers", "helper", "manager", "info", "data", "misc"}
HEAVY = ("torch", "transformers", "wandb")
TORCH_FREE = (
    "config",
    "compose",
    "validate",
    "identity",
    "record",
    "metrics.collapse",
    "accounting",
    "sweep",
    "report",
    "recipes",
    "cli",
)


def modules() -> list[Path]:
    return sorted(path for folder in ("minirl", "hydra_plugins") for path in (ROOT / folder).rglob("*.py"))


def room(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return parts[0] if parts[0] == "hydra_plugins" else parts[1]


def imported_rooms(path: Path) -> Iterator[tuple[int, str]]:
    """(line, room) of each import of our own packages."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: relative import"
            module = node.module or ""
            names = [f"{module}.{alias.name}" for alias in node.names] if module == "minirl" else [module]
        for name in names:
            parts = name.split(".")
            if parts[0] == "hydra_plugins":
                yield node.lineno, "hydra_plugins"
            elif parts[0] == "minirl" and len(parts) > 1:
                yield node.lineno, parts[1]


def test_every_module_is_on_a_floor() -> None:
    rooms = {room(path) for path in modules()} - {"__init__"}
    assert rooms - FLOOR.keys() == set()
    assert len(rooms) > 20


def test_imports_only_go_down() -> None:
    seen, climbing = 0, []
    for path in modules():
        here = room(path)
        for line, there in imported_rooms(path):
            seen += 1
            if there != here and FLOOR[there] >= FLOOR[here]:
                climbing.append(f"{path.relative_to(ROOT)}:{line}: {here} imports {there}")
    assert climbing == []
    assert seen > 100


def test_an_import_that_climbs_would_be_seen(tmp_path: Path) -> None:
    module = tmp_path / "climbing.py"
    module.write_text(
        "def f():\n    from minirl import run\n    import minirl.cli as c\n    from minirl.sweep.plan import x\n"
    )
    assert [(line, FLOOR[there] > FLOOR["algo"]) for line, there in imported_rooms(module)] == [
        (2, True),
        (3, True),
        (4, True),
    ]


@pytest.mark.parametrize("name", TORCH_FREE)
def test_what_is_used_before_a_run_imports_nothing_heavy(name: str) -> None:
    """Every module of the room, imported together; the worker of a sweep imports the run inside its function."""
    here = ROOT / "minirl" / Path(*name.split("."))
    files = sorted(here.rglob("*.py")) if here.is_dir() else [here.with_suffix(".py")]
    names = [".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__") for file in files]
    code = f"import sys\nfor name in {names}: __import__(name)\nprint([m for m in {HEAVY} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stdout + done.stderr


def test_names_say_what_a_thing_is() -> None:
    folders = {path.parent for path in modules()}
    named = [path.relative_to(ROOT).with_suffix("") for path in [*modules(), *folders]]
    assert [str(path) for path in named if FORBIDDEN_WORDS & set(path.name.lower().split("_"))] == []


def test_files_are_short() -> None:
    files = [*modules(), *(ROOT / "tests").rglob("*.py"), *(ROOT / "bench").rglob("*.py")]
    lengths = {path.relative_to(ROOT): len(path.read_text("utf-8").splitlines()) for path in files}
    assert {str(path): length for path, length in lengths.items() if length > 400} == {}
    ours = sorted(length for path, length in lengths.items() if path.parts[0] == "minirl" and length)
    assert ours[len(ours) // 2] < 150


def test_a_package_is_a_folder_and_no_more() -> None:
    for path in (ROOT / "minirl").rglob("__init__.py"):
        body = ast.parse(path.read_text("utf-8")).body
        assert body == [] or (len(body) == 1 and ast.get_docstring(ast.Module(body, [])) is not None), path
    # Hydra's plugins of other distributions live in this namespace too
    assert not (ROOT / "hydra_plugins" / "__init__.py").exists()


def test_no_file_names_a_place_of_one_machine() -> None:
    listing = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    if listing.returncode != 0:
        pytest.skip("not a git checkout")
    place = re.compile(r"(?<![\w.])/(?:work|root|home|tmp)/\w")
    assert place.search("cd /" + "home/someone")
    found = []
    for name in listing.stdout.splitlines():
        path = ROOT / name
        if path.is_file():
            lines = path.read_bytes().decode("utf-8", errors="ignore").splitlines()
            found += [f"{name}:{number}: {line}" for number, line in enumerate(lines, 1) if place.search(line)]
    assert found == []
