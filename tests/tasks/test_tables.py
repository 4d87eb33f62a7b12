"""Rows of files: the same from every format, whatever is asked of them; bad files are told in one line."""

from pathlib import Path
from typing import Any

import pytest
from tiny_chat import problem, save_rows

from minirl import tables
from minirl.config import ConfigError

FLAT = [problem(n) for n in range(5)]
NESTED = [
    {"q": [{"role": "user", "content": str(n)}], "reward_model": {"ground_truth": str(n), "style": "r"}} for n in (1, 2)
]


def read(path: object, *columns: str, where: dict[str, Any] | None = None) -> list[tables.Row]:
    return list(tables.rows(str(path), "task.train.path", columns=columns, where=where or {}))


@pytest.mark.parametrize("name", ["p.parquet", "p.jsonl", "p.csv"])
def test_every_format_gives_the_same_rows(tmp_path: Path, name: str) -> None:
    path = save_rows(tmp_path / name, FLAT)
    assert read(path, "problem", "solution") == [{k: row[k] for k in ("problem", "solution")} for row in FLAT]
    chosen = read(path, "problem", where={"level": "Level 3"})
    assert [row["problem"] for row in chosen] == [FLAT[2]["problem"]]


@pytest.mark.parametrize("name", ["p.parquet", "p.jsonl"])
def test_nested_columns(tmp_path: Path, name: str) -> None:
    path = save_rows(tmp_path / name, NESTED)
    assert [row["reward_model.ground_truth"] for row in read(path, "q", "reward_model.ground_truth")] == ["1", "2"]
    assert read(path, "q")[0]["q"] == [{"role": "user", "content": "1"}]
    with pytest.raises(ConfigError, match=r"no column reward_model.gold: at 'gold' it has ground_truth, style"):
        read(path, "reward_model.gold")


@pytest.mark.parametrize("name", ["p.parquet", "p.jsonl", "p.csv"])
def test_a_missing_column_names_those_that_are_there(tmp_path: Path, name: str) -> None:
    path = save_rows(tmp_path / name, FLAT)
    with pytest.raises(ConfigError, match=r"has no column answer: .*problem, solution, level"):
        read(path, "problem", "answer")


def test_a_pattern_is_its_files_in_order(tmp_path: Path) -> None:
    for part in (1, 0):
        save_rows(tmp_path / f"part-{part}.jsonl", [problem(part)])
    assert [row["problem"] for row in read(tmp_path / "part-*.jsonl", "problem")] == [
        FLAT[0]["problem"],
        FLAT[1]["problem"],
    ]


@pytest.mark.parametrize(
    ("name", "text", "what"),
    [
        ("p.jsonl", '{"problem": 1}\n{"problem"', r"line 2 is not JSON"),
        ("p.jsonl", "[1]\n", r"line 1 is not a JSON object"),
        ("p.parquet", "no parquet at all", r"not a parquet file"),
        ("p.txt", "x", r"p.txt is none of .parquet, .jsonl, .csv"),
        ("p.pkl", "x", r"none of"),
    ],
)
def test_what_cannot_be_read_is_told(tmp_path: Path, name: str, text: str, what: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(ConfigError, match=rf"task.train.path={tmp_path / name}: .*{what}"):
        read(tmp_path / name, "problem")


def test_no_file_and_a_pickle_in_disguise(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"task.train.path=nowhere.jsonl: no such file"):
        read("nowhere.jsonl", "problem")


def test_the_hub_is_asked_for_the_files_that_are_meant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub

    asked = []

    def snapshot(repo: str, **how: Any) -> str:
        asked.append((repo, how["repo_type"], how["revision"], how["allow_patterns"]))
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot)
    (tmp_path / "main").mkdir()
    save_rows(tmp_path / "main" / "test-0.parquet", FLAT)
    assert len(read("hf://datasets/openai/gsm8k@abc/main/test-*.parquet", "problem")) == 5
    assert len(read("hf://datasets/openai/gsm8k/main/test-*.parquet", "problem")) == 5
    assert asked == [("openai/gsm8k", "dataset", r, ["main/test-*.parquet"]) for r in ("abc", None)]
    for bad in ("hf://datasets/openai", "hf://datasets/openai/gsm8k", "hf://datasets//x/y"):
        with pytest.raises(ConfigError, match="expected hf://datasets/OWNER/NAME@REVISION/PATTERN"):
            read(bad, "problem")


def test_without_the_hub_the_error_is_one_line() -> None:
    with pytest.raises(ConfigError, match=r"not in the local cache and not to be had from the hub") as told:
        read("hf://datasets/nobody/nothing/x.parquet", "problem")
    assert len(str(told.value).splitlines()) == 1


def test_content_is_of_bytes_and_not_of_names(tmp_path: Path) -> None:
    one, two = save_rows(tmp_path / "a.jsonl", FLAT), save_rows(tmp_path / "b.jsonl", FLAT)
    assert tables.content(str(one), "k") == tables.content(str(two), "k")
    save_rows(two, FLAT[:-1])
    assert tables.content(str(one), "k") != tables.content(str(two), "k")
    assert tables.content("hf://datasets/a/b@c/d.csv", "k") == "hf://datasets/a/b@c/d.csv"
