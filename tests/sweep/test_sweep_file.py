"""The file of a figure is read strictly, and ours compose."""

from pathlib import Path
from typing import Any

import pytest

from minirl.compose import choices, compose
from minirl.config import ConfigError
from minirl.sweep.expand import Request, expand
from minirl.sweep.file import Exclusion, find, names, read
from minirl.sweep.plan import plan_arms
from minirl.sweep.preflight import undecidable

NOTHING = Request(fixed=(), axes={}, seeds=None, group=None)


def written(folder: Path, text: str) -> Path:
    path = folder / "mine.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def test_a_file_with_everything(tmp_path: Path) -> None:
    file = read(
        written(
            tmp_path,
            """
title: A figure
base: [num_mini_batches=8]
arms:
  R2, clip: [algo=minirl, algo.routing=r2]
  none:
grid: {group_size: [4, 8]}
seeds: [3, 5]
claims: [{text: T, metric: eval/avg, arms: [none, "R2, clip"], relation: greater, margin: 0.1}]
exclude: [{when: {model.num_experts: 0, algo.routing: [r2, r3]}, reason: dense}]
scales:
  node: {base: [train.optim.lr=1e-6], arms: {none: [algo=grpo]}, seeds: [0]}
""",
        )
    )
    assert file.name == "mine" and file.title == "A figure"
    assert file.arms == {"R2, clip": ("algo=minirl", "algo.routing=r2"), "none": ()}
    assert file.grid == {"group_size": {"group_size=4": 4, "group_size=8": 8}} and file.seeds == (3, 5)
    assert file.exclude == (Exclusion({"model.num_experts": (0,), "algo.routing": ("r2", "r3")}, "dense"),)
    assert file.at("node").arms == {"none": ("algo=grpo",)} and file.at("node").seeds == (0,)
    assert file.at("toy").base == () and file.at("toy").seeds is None
    assert file.at("toy").claims is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("- 1", "expected a mapping"),
        ("arms: {", "mine.yaml"),
        ("title: x", "arms is missing"),
        ("arms: {a: []}\nseds: [1]", "seds is no key of a sweep file; did you mean seeds"),
        ("arms: {a: []}\nscales: {toy: {bse: []}}", "did you mean base?"),
        ("arms: {a: []}\nscales: {toy: {arms: {b: []}}}", "scales.toy.arms.b: no arm has this name"),
        ("arms: {a: algo=minirl}", "expected a list of overrides"),
        ("arms: {a: [{algo: minirl}]}", "expected a list of overrides"),
        ("arms: {a: [seed=3]}", "seed=3 belongs into seeds"),
        ("arms: {a: []}\nseeds: [0, 0]", "different whole numbers"),
        ("arms: {a: []}\nseeds: 3", "different whole numbers"),
        ("arms: {a: []}\nseeds: [true]", "different whole numbers"),
        ("arms: {a: []}\ngrid: {group_size: 4}", "expected a list of values"),
        ("arms: {a: []}\nexclude: [{model.num_experts: 0}]", "reason: why"),
        ("arms: {a: []}\ngrid: {group_size: {}}", "expected a list of values or a mapping of names"),
        ("arms: {a: []}\nscales: {toy: {grid: {group_size: [4]}}}", "scales.toy.grid.group_size: the file's own grid"),
        ("arms: {a: []}\ngrid: {group_size: {few: 4}}\nscales: {toy: {grid: {group_size: {many: 8}}}}", "(few)"),
        ("arms: {a: [], a: []}", "duplicate"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, text: str, expected: str) -> None:
    with pytest.raises(ConfigError) as raised:
        read(written(tmp_path, text))
    assert expected in str(raised.value) and "\n" not in str(raised.value)


def test_sweeps_are_found_by_name_and_by_path(tmp_path: Path) -> None:
    assert find("quickstart") == names()["quickstart"]
    path = written(tmp_path, "arms: {a: []}")
    assert find(str(path)) == path
    with pytest.raises(ConfigError, match="did you mean quickstart"):
        find("quikstart")
    with pytest.raises(ConfigError, match="no such file"):
        find("nowhere.yaml")


FIGURES = [name for name in names() if not name.startswith("quickstart")]
SCALES = ("toy", "sanity", "node", "paper")
LARGE = 20  # arms: composing these at every scale takes longer than a default test may


def by_size(name: str) -> Any:
    large = len(expand(read(names()[name]), "toy", NOTHING).arms) > LARGE
    return pytest.param(name, marks=pytest.mark.slow) if large else name


@pytest.mark.parametrize("name", map(by_size, names()))
def test_every_sweep_of_ours_composes_at_every_scale(name: str) -> None:
    """Claims included: each names arms that are there, and metrics that are logged."""
    file = read(names()[name])
    for scale in {"toy", *file.scales}:
        design = expand(file, scale, Request((f"experiment={scale}",), {}, None, None))
        arms = plan_arms(design, compose)
        assert len(arms) >= 2 and design.claims
        assert sum(planned.excluded is None for planned in arms) >= 2


@pytest.mark.parametrize("name", FIGURES)
def test_every_figure_is_there_at_four_scales(name: str) -> None:
    """With so few claims that five seeds can decide one about collapse."""
    file = read(names()[name])
    assert set(file.scales) == set(SCALES) == set(choices("experiment"))
    assert not any("whatever" in line for line in undecidable(expand(file, "toy", NOTHING), {}))


def test_where_nothing_can_be_replayed_the_claims_are_of_the_arms_that_are_left() -> None:
    """N=8 of a dense model: claims of its own, each of them decidable, and none of them at another scale."""
    file = read(names()["off_policy_n8"])
    dense = expand(file, "sanity", Request(("experiment=sanity",), {}, None, None))
    excluded = {each.arm.name: "excluded" for each in plan_arms(dense, compose) if each.excluded}
    assert dense.claims and dense.claims != file.claims and undecidable(dense, excluded) == []
    assert expand(file, "toy", NOTHING).claims == file.claims


def test_nothing_that_a_scale_decides_is_said_for_all_scales() -> None:
    """The learning rate, sizes and the task are the scale's: a figure's base says what the figure is about."""
    for name in FIGURES:
        keys = {line.partition("=")[0] for line in read(names()[name]).base}
        assert keys <= {"num_mini_batches", "algo", "algo.routing"}, name
