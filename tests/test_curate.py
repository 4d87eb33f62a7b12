"""Which problems can teach: measured once, kept in a file that a task reads, continued where it was left."""

import json
from itertools import chain
from pathlib import Path

import pytest
import torch
from tiny_chat import SIZES, problem, save_model, save_rows

from minirl import curate as room
from minirl.compose import load
from minirl.config import ConfigError
from minirl.curate import curate
from minirl.interfaces import VerifierError
from minirl.tasks.mathematics import build

NUM_SAMPLES, NUM_PROBLEMS = 4, 12


@pytest.fixture(scope="module")
def words(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    place = tmp_path_factory.mktemp("curate")
    save_model(place / "model")
    save_rows(place / "problems.parquet", [problem(number) for number in range(NUM_PROBLEMS)])
    save_rows(place / "set.jsonl", [problem(number) for number in range(50, 53)])
    part = f"{{path: {place}/set.jsonl, question: problem, answer: solution, gold: boxed}}"
    return [
        *("task=math", f"model.path={place}/model", f"task.train.path={place}/problems.parquet", *SIZES),
        *(f"group_size={NUM_SAMPLES}", f"+task.eval_sets={{x: {part}}}", "run.device=cpu"),
    ]


def number_of(prompt) -> int:
    return int(prompt.problem.answer) - 1


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """Problem n is solved n mod 5 times of 4; half the samples of problem 9 cannot be graded. Keeps what is asked."""
    asked: list[list[int]] = []

    def outcomes(task, engine, prompts, sampling, *, num_samples, world):
        assert sampling.purpose == "curate" and num_samples == NUM_SAMPLES
        asked.append([number_of(prompt) for prompt in prompts])
        found = torch.zeros(len(prompts), num_samples, 4, dtype=torch.float64)
        found[..., 1], found[..., 2] = 1.0, 5.0
        for row, prompt in zip(found, prompts, strict=True):
            row[: number_of(prompt) % 5, 0] = 1.0
            if number_of(prompt) == 9:
                row[2:] = torch.tensor([0.0, 0.0, 5.0, 1.0])
        return found

    monkeypatch.setattr(room, "sampled_outcomes", outcomes)
    return asked


ERRORS = "task.max_verifier_error_rate=1.0"
# 9: solved in both of its graded samples, so always
TEACH = {n for n in range(NUM_PROBLEMS) if 0 < n % 5 < 4} - {9}


@pytest.mark.parametrize("name", ["kept.parquet", "kept.jsonl"])
def test_what_is_kept_is_what_is_solved_sometimes_and_a_task_reads_it(words, engine, tmp_path, name: str) -> None:
    said: list[str] = []
    curate(load([*words, ERRORS]), tmp_path / name, said.append)
    assert sorted(chain.from_iterable(engine)) == list(range(NUM_PROBLEMS)) and all(len(part) <= 2 for part in engine)
    assert said[-2] == f"{tmp_path / name}: {len(TEACH)} of {NUM_PROBLEMS} problems can teach; to train on them:"
    assert any("left)" in line for line in said)
    config = load([*words, *said[-1].split()])
    task = build(config.task, config.coldstart)
    assert {int(each.answer) - 1 for each in task.train} == TEACH
    rows = [json.loads(line) for line in (tmp_path / "kept.measured.jsonl").read_text().splitlines()]
    rates = {int(row["answer"]) - 1: (row["num_correct"], row["num_graded"], row["pass_rate"]) for row in rows}
    assert rates[3] == (3, 4, 0.75) and rates[5] == (0, 4, 0.0) and rates[9] == (2, 2, 1.0)


def test_a_killed_measurement_goes_on_where_it_was(words, engine, tmp_path) -> None:
    config = load([*words, ERRORS])
    curate(config, tmp_path / "whole.jsonl", str)
    whole = list(chain.from_iterable(engine))
    engine.clear()

    def stop(text: str) -> None:
        if text.startswith("measured 6 "):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        curate(config, tmp_path / "kept.jsonl", stop)
    assert not (tmp_path / "kept.jsonl").exists()
    with (tmp_path / "kept.measured.jsonl").open("a") as file:
        file.write('{"version": 6, "questi')  # as a killed process leaves it
    curate(config, tmp_path / "kept.jsonl", str)
    assert list(chain.from_iterable(engine)) == whole, "each problem once, in the same order"
    assert (tmp_path / "kept.jsonl").read_text() == (tmp_path / "whole.jsonl").read_text()
    engine.clear()
    curate(config, tmp_path / "kept.jsonl", str)
    assert engine == [], "all is measured"


def test_the_last_chunk_is_a_whole_one_and_no_problem_is_counted_twice(words, engine, tmp_path) -> None:
    """Ranks that share an engine must all have prompts, whatever the number of problems."""
    curate(load([*words, ERRORS, "prompts_per_mini_batch=5"]), tmp_path / "kept.jsonl", str)
    assert [len(part) for part in engine] == [5, 5, 5]
    rows = [json.loads(line) for line in (tmp_path / "kept.measured.jsonl").read_text().splitlines()]
    assert sorted(int(row["answer"]) - 1 for row in rows) == list(range(NUM_PROBLEMS))


def test_rates_of_other_samples_are_not_mixed(words, engine, tmp_path) -> None:
    curate(load([*words, ERRORS]), tmp_path / "kept.jsonl", str)
    for other in ("sampling.temperature=0.5", "task.train.question=solution"):
        with pytest.raises(ConfigError, match=r"kept.measured.jsonl holds pass rates of other problems"):
            curate(load([*words, ERRORS, other]), tmp_path / "kept.jsonl", str)


def test_bad_input_and_a_broken_verifier(words, engine, tmp_path) -> None:
    with pytest.raises(ConfigError, match=r"kept.txt: expected a name that ends with .parquet or .jsonl"):
        curate(load(words), tmp_path / "kept.txt", str)
    with pytest.raises(VerifierError, match="could not be graded"):
        curate(load([*words, "task.max_verifier_error_rate=0.0"]), tmp_path / "kept.jsonl", str)
    assert not (tmp_path / "kept.jsonl").exists()


def test_a_real_engine_measures(words, tmp_path) -> None:
    """No stand-in: a random model solves nothing, and says so."""
    said: list[str] = []
    curate(load([*words, "prompts_per_mini_batch=6"]), tmp_path / "kept.jsonl", said.append)
    assert said[-2].startswith(f"{tmp_path / 'kept.jsonl'}: 0 of {NUM_PROBLEMS} problems")
    rows = [json.loads(line) for line in (Path(tmp_path) / "kept.measured.jsonl").read_text().splitlines()]
    assert all(row["num_graded"] == NUM_SAMPLES and row["mean_length"] >= 1 for row in rows)
