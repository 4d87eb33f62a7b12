"""The whole chain on real formats: a model's folder with its tokenizer, a parquet file of problems with boxed answers
and a teacher's traces; cold start, training, evaluation."""

import json
from pathlib import Path

import pytest
import torch
from tiny_chat import SIZES, problem, save_model, save_rows, trace
from transformers import AutoModelForCausalLM, AutoTokenizer
from typer.testing import CliRunner

from minirl.cli import app

QUESTION = "What is $7 + 1$?"


def said(*words: str) -> str:
    result = CliRunner().invoke(app, ["--debug", *words])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.output


@pytest.fixture(scope="module")
def chain(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """A folder in which a cold start was made and a run of two updates has ended, and how they were asked for."""
    place = tmp_path_factory.mktemp("chain")
    save_model(place / "model")
    save_rows(place / "problems.parquet", [problem(number) for number in range(60)])
    save_rows(place / "sets.csv", [problem(number) for number in range(200, 212)])
    save_rows(place / "traces.parquet", [trace(number) for number in range(100, 140)])
    columns = "question: problem, answer: solution, gold: boxed"
    sets = ", ".join(
        f"{name}: {{path: {place}/sets.csv, {columns}, where: {{level: {level}}}}}" for name, level in SETS
    )
    words = [
        *("task=math", f"model.path={place}/model", f"task.train.path={place}/problems.parquet", *SIZES),
        *("coldstart=traces", f"coldstart.traces.path={place}/traces.parquet", f"run.outputs={place}/outputs"),
        f"+task.eval_sets={{{sets}}}",
    ]
    start = said("coldstart", *words)
    assert "coldstart.traces: 40 traces" in start and "task.train: 60 problems" in start
    assert "cold start, step 6: loss" in start and "0:00 left" in start
    assert said("run", *words).splitlines()[-1] in ("finished", "collapsed")
    return place, words


SETS = [("odd", "Level 2"), ("even", "Level 1")]


def only(places: Path, pattern: str) -> Path:
    [found] = [path for path in places.glob(pattern) if path.is_dir()]
    return found


def test_a_stock_tool_takes_the_cold_start_and_speaks_as_we_do(chain: tuple[Path, list[str]]) -> None:
    folder = only(chain[0] / "outputs", "coldstarts/*")
    model = AutoModelForCausalLM.from_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    chat = [{"role": "user", "content": QUESTION}]
    ids = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    with torch.no_grad():
        assert torch.isfinite(model(**ids).logits).all()
    run = only(chain[0] / "outputs", "runs/*")
    prompts = [json.loads(line)["prompt"] for line in (run / "samples.jsonl").read_text().splitlines()]
    template = tokenizer.apply_chat_template(chat, add_generation_prompt=True, tokenize=False)
    assert prompts and all(prompt.startswith(template.partition("7")[0]) for prompt in prompts)


def test_the_curve_of_the_cold_start_lies_beside_it(chain: tuple[Path, list[str]]) -> None:
    folder = only(chain[0] / "outputs", "coldstarts/*")
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [row["version"] for row in rows] == [2, 4, 6]
    assert rows[0]["loss"] > rows[1]["loss"] > rows[2]["loss"] > 0
    assert all(row["optim/lr"] > 0 and row["optim/grad_norm"] > 0 for row in rows)
    assert (
        not (folder / "checkpoints").exists()
        and json.loads((folder / "coldstart.json").read_text())["accuracy"] is None
    )


def test_every_version_is_evaluated_on_every_set_and_problem(chain: tuple[Path, list[str]]) -> None:
    run = only(chain[0] / "outputs", "runs/*")
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [row["version"] for row in rows] == [0, 1, 2]
    for row in rows:
        assert {"eval/avg", "eval_odd/avg", "eval_even/avg", "eval_odd/pass_se"} <= row.keys()
        table = [
            json.loads(line) for line in (run / "evaluations" / f"{row['version']}.jsonl").read_text().splitlines()
        ]
        assert [each["set"] for each in table] == ["odd"] * 3 + ["even"] * 3
        lengths = {name: [n for each in table if each["set"] == name for n in each["lengths"]] for name, _ in SETS}
        for name, found in lengths.items():
            assert row[f"eval_{name}/length"] == pytest.approx(sum(found) / len(found))


def test_a_checkpoint_and_a_folder_are_evaluated(chain: tuple[Path, list[str]]) -> None:
    place, words = chain
    run, start = only(place / "outputs", "runs/*"), only(place / "outputs", "coldstarts/*")
    text = said("eval", str(run))
    assert "version                 2" in text and "avg@2" in text and "pass@1" in text and "odd" in text
    own = [word for word in words if not word.startswith(("model.path", "coldstart"))]
    again = said("eval", str(start), *own, "eval.num_samples=4")
    assert "version                 0" in again and "avg@4" in again and "pass@2" in again
    table = Path(again.rpartition("every sample: ")[2].strip())
    assert all(len(json.loads(line)["rewards"]) == 4 for line in table.read_text().splitlines())


def test_the_engine_of_the_rollouts_can_evaluate(chain: tuple[Path, list[str]]) -> None:
    place, words = chain
    before = set((place / "outputs" / "runs").iterdir())
    said("run", *words, "eval.numerics=null", "seed=1")
    [run] = set((place / "outputs" / "runs").iterdir()) - before
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [row["version"] for row in rows if "eval/avg" in row] == [0, 1, 2]


def test_a_model_as_it_is_needs_no_cold_start(chain: tuple[Path, list[str]]) -> None:
    place, words = chain
    words = [word for word in words if not word.startswith("coldstart")]
    said("run", *words, f"run.outputs={place}/as_it_is", "num_updates=1", "train.checkpoint_every=1")
    run = only(place / "as_it_is", "runs/*")
    assert json.loads((run / "run.json").read_text())["coldstart"]["folder"] == str(place / "model")
