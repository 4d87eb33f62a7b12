"""What a response is worth, in every format, wherever it is graded from."""

import asyncio
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from answer_pairs import ASYMMETRIC, DIFFERENT, EQUAL, PAIRS

from minirl.choices import AnswerFormat, GoldForm
from minirl.config import GradingConfig
from minirl.tasks.answers import number
from minirl.tasks.grader import Grader
from minirl.tasks.problems import Problem, gold_answer

REAL = Path(__file__).resolve().parents[3] / "shared" / "data"


def grader(name: str) -> Grader:
    return Grader(
        GradingConfig(
            format=AnswerFormat(name),
            field="answer" if name == "json" else None,
            grader=None,
            num_workers=2,
            max_seconds=20.0,
            max_gradings=1000,
        )
    )


@pytest.fixture(scope="module", params=list(PAIRS))
def table(request: pytest.FixtureRequest) -> Iterator[tuple[Grader, list[tuple[str, str, float]]]]:
    made = grader(request.param)
    yield made, PAIRS[request.param]
    made.verifiers.close()


def scores(made: Grader, pairs: list[tuple[str, str, float]]) -> list[tuple[str, str, float]]:
    return [(gold, response, made.score(Problem("", gold), response)) for gold, response, _ in pairs]


def test_the_table_is_large_enough() -> None:
    assert sum(map(len, PAIRS.values())) >= 150
    assert len(set(EQUAL)) == len(EQUAL) and len(set(DIFFERENT)) == len(DIFFERENT)


def test_from_the_main_thread(table: tuple[Grader, list[tuple[str, str, float]]]) -> None:
    made, pairs = table
    assert scores(made, pairs) == pairs


def test_from_worker_threads(table: tuple[Grader, list[tuple[str, str, float]]]) -> None:
    made, pairs = table
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda pair: scores(made, [pair])[0], pairs))
    assert found == pairs


def test_from_asyncio(table: tuple[Grader, list[tuple[str, str, float]]]) -> None:
    made, pairs = table

    async def inside_the_loop() -> list[tuple[str, str, float]]:
        return scores(made, pairs[::3])

    async def beside_the_loop() -> list[list[tuple[str, str, float]]]:
        return await asyncio.gather(*(asyncio.to_thread(scores, made, pairs[i::3]) for i in range(3)))

    assert asyncio.run(inside_the_loop()) == pairs[::3]
    assert asyncio.run(beside_the_loop()) == [pairs[i::3] for i in range(3)]


def test_gold_stands_first_where_it_matters() -> None:
    """math-verify is not symmetric: an interval answers an inequality, a derivation ends with the number asked for."""
    made = grader("boxed")
    for gold, answer in ASYMMETRIC:
        assert made.equal(gold, answer) and not made.equal(answer, gold), (gold, answer)
    made.verifiers.close()


def real_answers() -> list[str]:
    found = {}
    for name, form in (("gsm8k_test.jsonl", GoldForm.after_hashes), ("math500_aime24_aime25.jsonl", GoldForm.whole)):
        for line in (REAL / name).read_text("utf-8").splitlines():
            answer = gold_answer(json.loads(line)["answer"], form)
            assert answer is not None, line
            found[answer] = None
    return list(found)


@pytest.mark.skipif(not REAL.is_dir(), reason="the data sets are not here")
def test_every_real_gold_answer_is_worth_1_or_is_unreadable_for_a_reason() -> None:
    """What is no plain number also by the verifier itself, not only because the two texts are one."""
    made = grader("boxed")
    answers = real_answers()
    assert len(answers) > 600
    unreadable = {answer: why for answer in answers if (why := made.reason(answer)) is not None}
    assert all(isinstance(why, str) and why for why in unreadable.values())
    assert len(unreadable) <= 0.01 * len(answers), unreadable
    for answer in answers:
        assert made.score(Problem("", answer), f"\\boxed{{{answer}}}") == 1.0, answer
        if number(answer) is None and answer not in unreadable:
            assert made.verifiers.ask(gold=answer, answer=answer) is True, answer
    made.verifiers.close()
