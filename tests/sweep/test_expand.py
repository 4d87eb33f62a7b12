"""Arms x grid x axes: nothing twice, nothing lost, always in the same order."""

from itertools import product

from hypothesis import given, settings
from hypothesis import strategies as st

from minirl.sweep.expand import Arm, Request, crossed, expand, improvise, latest, written
from minirl.sweep.file import Scale, SweepFile

NOTHING = Request(fixed=(), axes={}, seeds=None, group=None)
KEYS = st.sampled_from(["algo", "group_size", "train.optim.lr", "model", "num_mini_batches"])
OVERRIDES = st.lists(st.tuples(KEYS, st.integers(0, 9)).map(lambda pair: f"{pair[0]}={pair[1]}"), max_size=5)
NAMES = st.text("abc ,+", min_size=1, max_size=6).map(str.strip).filter(bool)
FILES = st.builds(
    lambda base, arms, grid, seeds: SweepFile(
        name="f",
        title="F",
        base=tuple(base),
        arms={name: tuple(own) for name, own in arms.items()},
        grid={key: {f"{key}={value}": value for value in values} for key, values in grid.items()},
        seeds=tuple(seeds),
        claims=(),
        exclude=(),
        scales={"toy": Scale(base=("group_size=77",))},
    ),
    OVERRIDES,
    st.dictionaries(NAMES, OVERRIDES, min_size=1, max_size=4),
    st.dictionaries(st.sampled_from(["x.y", "z"]), st.lists(st.integers(0, 5), min_size=1, max_size=3, unique=True)),
    st.lists(st.integers(0, 99), min_size=1, max_size=4, unique=True),
)


@given(FILES)
@settings(max_examples=60, deadline=None)
def test_expansion_is_a_product_without_duplicates_in_a_stable_order(file: SweepFile) -> None:
    design = expand(file, "node", NOTHING)
    again = expand(file, "node", NOTHING)
    assert design == again
    size = len(file.arms)
    for values in file.grid.values():
        size *= len(values)
    assert len(design.arms) == size
    cells = list(product([arm.name for arm in design.arms], design.seeds))
    assert len(cells) == size * len(file.seeds)
    combinations = {(arm.name, tuple(sorted(arm.overrides))) for arm in design.arms}
    assert len(combinations) == size


@given(st.lists(OVERRIDES, max_size=4))
@settings(max_examples=60, deadline=None)
def test_the_last_word_wins_and_each_key_is_said_once(parts: list[list[str]]) -> None:
    lines = [line for part in parts for line in part]
    kept = latest(lines)
    keys = [line.partition("=")[0] for line in kept]
    assert len(keys) == len(set(keys))
    for line in kept:
        key = line.partition("=")[0]
        assert line == [other for other in lines if other.partition("=")[0] == key][-1]
    assert latest(kept) == kept


@given(FILES, OVERRIDES)
@settings(max_examples=60, deadline=None)
def test_the_command_wins_over_the_file(file: SweepFile, fixed: list[str]) -> None:
    design = expand(file, "toy", Request(tuple(fixed), {}, (7,), "other"))
    for arm in design.arms:
        said = design.overrides(arm)
        for line in latest(fixed):
            assert line in said
    assert design.seeds == (7,) and design.name == "other"


def test_a_scale_adds_its_own_after_the_file() -> None:
    file = SweepFile(
        name="f",
        title="F",
        base=("train.optim.lr=1",),
        arms={"a": ("algo=minirl",), "b": ("algo=grpo",)},
        grid={},
        seeds=(0, 1),
        claims=(),
        exclude=(),
        scales={"node": Scale(base=("train.optim.lr=2",), arms={"b": ("algo=gspo",)}, seeds=(5,))},
    )
    toy, node = expand(file, "toy", NOTHING), expand(file, "node", NOTHING)
    assert toy.seeds == (0, 1) and node.seeds == (5,)
    assert [toy.overrides(arm) for arm in toy.arms] == [
        ("train.optim.lr=1", "algo=minirl"),
        ("train.optim.lr=1", "algo=grpo"),
    ]
    assert [node.overrides(arm) for arm in node.arms] == [
        ("train.optim.lr=2", "algo=minirl"),
        ("train.optim.lr=2", "algo=gspo"),
    ]


def test_a_command_without_a_file_has_an_arm_per_combination() -> None:
    request = Request(
        ("group_size=4",), {"algo": ("algo=minirl", "algo=grpo"), "model": ("model=a", "model=b")}, None, None
    )
    design = improvise("toy", request)
    assert [arm.name for arm in design.arms] == [
        "algo=minirl, model=a",
        "algo=minirl, model=b",
        "algo=grpo, model=a",
        "algo=grpo, model=b",
    ]
    assert design.overrides(design.arms[0]) == ("algo=minirl", "model=a", "group_size=4")
    assert design.name == improvise("toy", request).name
    assert improvise("toy", NOTHING).arms == (Arm("defaults", ()),)


def test_values_of_a_grid_are_written_as_hydra_reads_them() -> None:
    assert [written(value) for value in (None, True, False, 3, 1e-5, "r2")] == [
        "null",
        "true",
        "false",
        "3",
        "1e-05",
        "r2",
    ]
    assert written("a b") == "'a b'" and written("null") == "'null'"
    assert crossed([Arm("a", ())], []) == [Arm("a", ())]


def test_a_scale_gives_the_values_of_a_grid_under_the_same_names() -> None:
    file = SweepFile(
        name="f",
        title="F",
        base=(),
        arms={"a": ("algo=minirl",)},
        grid={"train.optim.lr": {"low lr": 1, "high lr": 2}, "num_mini_batches": {"N=2": 2}},
        seeds=(0,),
        claims=(),
        exclude=(),
        scales={"node": Scale(grid={"train.optim.lr": {"low lr": 3, "high lr": 4}})},
    )
    toy, node = expand(file, "toy", NOTHING), expand(file, "node", NOTHING)
    assert [arm.name for arm in toy.arms] == [arm.name for arm in node.arms] == ["a, low lr, N=2", "a, high lr, N=2"]
    assert toy.overrides(toy.arms[1]) == ("algo=minirl", "train.optim.lr=2", "num_mini_batches=2")
    assert node.overrides(node.arms[1]) == ("algo=minirl", "train.optim.lr=4", "num_mini_batches=2")
