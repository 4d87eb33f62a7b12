"""docs/adding_a_task.md, done to the letter: the files of the page make a task, and its commands are understood."""

import json
import re
from pathlib import Path

import pytest
from tiny_chat import SIZES, save_model
from typer.testing import CliRunner

from minirl.cli import app
from minirl.compose import load
from minirl.tasks.mathematics import build
from minirl.validate import validate

PAGE = (Path(__file__).resolve().parents[1] / "docs" / "adding_a_task.md").read_text(encoding="utf-8")
NEW = re.compile(r"New file `([^`\n]+)`:\n\n```\w+\n(.*?)```", re.DOTALL)


@pytest.fixture
def place(own_folder: Path) -> Path:
    files = NEW.findall(PAGE)
    assert [name for name, _ in files] == ["mine/task/school.yaml", "short.py"]
    for name, text in files:
        (own_folder / name).parent.mkdir(parents=True, exist_ok=True)
        (own_folder / name).write_text(text)
    splits = ["train"] * 6 + ["easy"] * 2 + ["hard"] * 2
    rows = [{"exercise": f"{n}+1?", "result": {"value": n + 1}, "split": split} for n, split in enumerate(splits)]
    (own_folder / "school.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    save_model(own_folder / "FOLDER")
    return own_folder


def test_the_yaml_is_a_task(place: Path) -> None:
    config = load(["task=school", "model.path=FOLDER", "task.grading.num_workers=1"], [place / "mine"])
    validate(config)
    task = build(config.task, config.coldstart)
    assert {each.answer for each in task.train} == {str(n + 1) for n in range(6)}
    assert {name: len(part) for name, part in task.eval_sets(None).items()} == {"easy": 2, "hard": 2}
    text = task.decode(task.prompts(0, 1, 0)[0].tokens)
    assert "You are good at school mathematics." in text and "+1?\nGive the result in \\boxed{}." in text


def test_the_grader_is_asked(place: Path) -> None:
    words = ["task=school", "model.path=FOLDER", "task.grading.grader=short.py", "task.grading.num_workers=1"]
    config = load(words, [place / "mine"])
    validate(config)
    task = build(config.task, config.coldstart)
    prompt = task.prompts(0, 1, 0)[0]
    for text, right in ((f"<think>no</think> {prompt.problem.answer}", 1.0), ("nothing", 0.0)):
        assert task.grade(prompt, [*task.encode(text), task.eos]) == pytest.approx(right - 0.001 * len(text))
    task.grader.verifiers.close()


def test_a_run_of_the_page_runs(place: Path) -> None:
    sizes = [word for word in SIZES if not word.startswith(("coldstart", "task.chat.instruction"))]
    words = [
        "run",
        "--config-dir",
        "mine",
        "task=school",
        "model.path=FOLDER",
        *sizes,
        "task.chat.max_prompt_tokens=200",
    ]
    result = CliRunner().invoke(app, ["--debug", *words, "eval.num_problems=2"])
    assert result.exit_code == 0, result.output
    assert "task.train: 6 problems" in result.output and "finished" in result.output


def test_every_key_and_command_of_the_page_exists() -> None:
    from minirl.suggest import schema_keys

    keys = schema_keys()
    named = set(re.findall(r"`((?:task|coldstart|eval)\.[a-z_.]+)`", PAGE))
    assert len(named) > 5
    for name in named:
        assert any(name == key or name.startswith(f"{key}.") for key in keys), name
    for command in re.findall(r"^minirl (\w+)", PAGE, flags=re.MULTILINE):
        assert CliRunner().invoke(app, [command, "--help"]).exit_code == 0
