"""Problems out of files: which are used, in which order, and what a response is worth."""

import json
from pathlib import Path

import pytest
from math_tasks import MANY, questions, task_of
from tiny_chat import problem, save_rows

from minirl.config import ConfigError
from minirl.tasks.mathematics import MathTask
from minirl.tasks.problems import gold_answer, question_of
from minirl.tasks.splits import Split, split_of

REAL = Path(__file__).resolve().parents[3] / "shared" / "data"


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> MathTask:
    return task_of(tmp_path_factory.mktemp("math"), MANY)


def test_order_is_a_function_of_seed_and_position(task: MathTask) -> None:
    number = len(task.train)
    whole = task.prompts(0, 3 * number, seed=0)
    assert whole == task.prompts(0, 7, 0) + task.prompts(7, 2 * number, 0) + task.prompts(2 * number + 7, number - 7, 0)
    epochs = [questions(whole[i * number : (i + 1) * number]) for i in range(3)]
    assert all(sorted(epoch) == sorted(each.question for each in task.train) for epoch in epochs), "each once an epoch"
    assert epochs[0] != epochs[1] != epochs[2] and questions(task.prompts(0, number, seed=1)) != epochs[0]
    assert [prompt.position for prompt in whole] == list(range(3 * number))
    assert task.prompts(2**40, 2, 0) == task.prompts(2**40, 2, 0)


def test_without_sets_a_tenth_is_held_out_by_its_name(task: MathTask) -> None:
    [(name, held_out)] = task.eval_sets(None).items()
    assert name == "held_out" and set(questions(held_out)) == {
        q for q in questions(held_out) if split_of(q) is Split.eval
    }
    assert not set(questions(held_out)) & {each.question for each in task.train}
    assert len(held_out) + len(task.train) == len(MANY)
    assert task.eval_sets(2)["held_out"] == held_out[:2]


def test_what_cannot_be_used_is_dropped_and_counted(tmp_path: Path) -> None:
    rows = [
        *MANY,
        MANY[0],
        {**MANY[1], "problem": f" {MANY[1]['problem']}  "},  # the same but for spaces
        {"problem": "No answer?", "solution": "None is boxed.", "level": ""},
        {"problem": "Two answers?", "solution": r"\boxed{1}", "level": ""},
        {"problem": "Two answers?", "solution": r"\boxed{2}", "level": ""},
        {"problem": "Unreadable?", "solution": r"\boxed{\frac{}{}}", "level": ""},
        {"problem": "Long " * 100, "solution": r"\boxed{3}", "level": ""},
    ]
    task = task_of(tmp_path, rows, "task.chat.max_prompt_tokens=200")
    train, _ = task.notes
    assert train.startswith(f"task.train: {len(task.train)} problems; dropped: ")
    for said in ("2 duplicates", "1 without an answer", "2 with contradictory answers", "1 with an unreadable answer"):
        assert said in train
    assert "1 too long" in train and r"'\\frac{}{}' is not a mathematical expression" in train
    assert {"No answer?", "Two answers?", "Unreadable?"}.isdisjoint(each.question for each in task.train)
    assert len(task.train) + len(task.eval_sets(None)["held_out"]) == len(MANY)


def test_several_sets_are_kept_out_of_training_and_draw_alone(tmp_path: Path) -> None:
    def sets(*names: str) -> str:
        columns = "question: problem, answer: solution, gold: boxed"
        parts = [f"{name}: {{path: {tmp_path}/{name}.csv, {columns}}}" for name in names]
        return f"+task.eval_sets={{{', '.join(parts)}}}"

    for index, name in enumerate(("first", "second")):
        save_rows(tmp_path / f"{name}.csv", [problem(number) for number in range(5 * index, 5 * index + 5)])
    task = task_of(tmp_path, MANY, sets("first", "second"))
    found = task.eval_sets(None)
    assert {name: questions(part) for name, part in found.items()} == {
        "first": [problem(number)["problem"] for number in range(5)],
        "second": [problem(number)["problem"] for number in range(5, 10)],
    }
    assert len(task.train) == 30 and "10 in an evaluation set" in task.notes[0]
    alone = task_of(tmp_path, MANY, sets("second")).eval_sets(3)["second"]
    assert alone == found["second"][:3], "another set beside it changes no position, and so no draw"
    positions = [prompt.position for part in found.values() for prompt in part]
    assert len(set(positions)) == 10


def test_a_response_is_graded_up_to_its_end(task: MathTask) -> None:
    prompt = task.prompts(0, 1, 0)[0]
    right = task.encode(f"so \\boxed{{{prompt.problem.answer}}}")
    assert task.grade(prompt, [*right, task.eos]) == 1.0
    assert task.grade(prompt, [*right, task.eos, *task.encode("\\boxed{no}")]) == 1.0
    assert task.grade(prompt, right) == 0.0, "cut off: nothing was answered"
    assert task.grade(prompt, [task.eos]) == 0.0
    assert task.grade(prompt, [*task.encode("\\boxed{-1}"), 270, task.eos]) == 0.0, "a row beyond the vocabulary"


def test_nothing_left_is_bad_input(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"task.train: no problem is left; task.train: 0 problems; dropped: 40 too long"
    ):
        task_of(tmp_path, MANY, "task.chat.max_prompt_tokens=5")


def test_forms_of_gold_answers_and_questions() -> None:
    from minirl.choices import GoldForm

    assert gold_answer("work\n#### 1,234", GoldForm.after_hashes) == "1,234"
    assert gold_answer("no hashes", GoldForm.after_hashes) is None
    assert gold_answer(r"so $\boxed{\frac{1}{2}}$.", GoldForm.boxed) == r"\frac{1}{2}"
    found = [gold_answer(value, GoldForm.whole) for value in (204, 204.0, "204", "$204$", None, " ")]
    assert found == ["204"] * 4 + [None] * 2
    chat = [{"role": "system", "content": "s"}, {"role": "user", "content": "q"}]
    assert question_of(chat, "k") == "q" == question_of("q", "k")
    with pytest.raises(ConfigError, match=r"k: expected text, or a chat"):
        question_of(5, "k")


@pytest.mark.skipif(not REAL.is_dir(), reason="the data sets are not here")
def test_the_real_files(tmp_path: Path) -> None:
    """GSM8K to train on; MATH-500, AIME 2024 and AIME 2025 to evaluate on, told apart by their column."""
    path = REAL / "math500_aime24_aime25.jsonl"
    columns = f"path: {path}, question: problem, answer: answer, gold: whole"
    sources = {"math500": "MATH-500", "aime24": "aime2024", "aime25": "aime2025"}
    sets = [f"{name}: {{{columns}, where: {{source: {value}}}}}" for name, value in sources.items()]
    task = task_of(
        tmp_path,
        [json.loads(line) for line in (REAL / "gsm8k_test.jsonl").read_text("utf-8").splitlines()],
        "task.train.question=question",
        "task.train.answer=answer",
        "task.train.gold=after_hashes",
        "task.chat.max_prompt_tokens=4096",
        "task.grading.num_workers=2",
        f"+task.eval_sets={{{', '.join(sets)}}}",
    )
    found = {name: len(part) for name, part in task.eval_sets(None).items()}
    assert found["aime24"] == found["aime25"] == 30 and 495 <= found["math500"] <= 500, task.notes
    assert 1300 <= len(task.train) <= 1319, task.notes
    for prompt in task.prompts(0, 50, 0) + task.eval_sets(10)["aime24"] + task.eval_sets(40)["math500"]:
        answer = task.encode(f"The answer is $\\boxed{{{prompt.problem.answer}}}$.")
        assert task.grade(prompt, [*answer, task.eos]) == 1.0, prompt.problem
