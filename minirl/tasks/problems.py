"""Problems out of files: question and gold answer of each row, what cannot be used dropped and counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from minirl.config import ConfigError, GoldForm, ProblemsConfig
from minirl.tables import rows
from minirl.tasks.answers import boxed

NO_ANSWER, DUPLICATE, CONTRADICTORY = "without an answer", "duplicates", "with contradictory answers"
UNREADABLE, TOO_LONG, IN_EVALUATION = "with an unreadable answer", "too long", "in an evaluation set"
NUM_SHOWN = 3  # examples in a line


@dataclass(frozen=True, slots=True)
class Problem:
    """question: as it stands in its source · answer: the gold answer."""

    question: str
    answer: str

    @property
    def name(self) -> str:
        """Equal for problems that differ in spaces only."""
        return " ".join(self.question.split())


@dataclass(frozen=True)
class Collection:
    """The problems of one source, in its order, and how many rows were dropped for which reason. examples: the gold
    answers that could not be read, and why."""

    key: str
    problems: Sequence[Problem]
    dropped: Counter[str]
    examples: Sequence[str] = ()

    def without(self, reason: str, unwanted: Callable[[Problem], bool]) -> Collection:
        """Only the problems that are not `unwanted`, the others counted as dropped for this reason."""
        kept = [problem for problem in self.problems if not unwanted(problem)]
        dropped = self.dropped + Counter({reason: len(self.problems) - len(kept)})
        return replace(self, problems=kept, dropped=dropped)

    def __str__(self) -> str:
        reasons = ", ".join(f"{number} {reason}" for reason, number in self.dropped.items())
        shown = f" ({'; '.join(self.examples[:NUM_SHOWN])})" if self.examples else ""
        return f"{self.key}: {len(self.problems)} problems" + (f"; dropped: {reasons}" if reasons else "") + shown


def collect(cfg: ProblemsConfig, key: str) -> Collection:
    """The distinct problems of a source. Of a question with several gold answers none is right: all its rows go."""
    answers: dict[str, str | None] = {}
    found: dict[str, Problem] = {}
    dropped = Counter[str]()
    for row in rows(cfg.path, f"{key}.path", columns=[cfg.question, cfg.answer], where=cfg.where):
        answer = gold_answer(row[cfg.answer], cfg.gold)
        if answer is None:
            dropped[NO_ANSWER] += 1
            continue
        problem = Problem(question_of(row[cfg.question], f"{key}.question={cfg.question}"), answer)
        if problem.name not in found:
            found[problem.name], answers[problem.name] = problem, answer
        elif answers[problem.name] == answer:
            dropped[DUPLICATE] += 1
        else:
            answers[problem.name] = None
            dropped[CONTRADICTORY] += 1
    problems = [problem for name, problem in found.items() if answers[name] is not None]
    dropped[CONTRADICTORY] += len(found) - len(problems)
    return Collection(key, problems, +dropped)


def question_of(value: Any, place: str) -> str:
    """Text as it is; of a chat the last message of the user."""
    if isinstance(value, str):
        return value
    if isinstance(value, Iterable):
        for message in reversed(list(value)):
            if isinstance(message, dict) and message.get("role") == "user" and isinstance(message.get("content"), str):
                return str(message["content"])
    raise ConfigError(f"{place}: expected text, or a chat with a message of the user, found {type(value).__name__}")


def gold_answer(value: Any, form: GoldForm) -> str | None:
    r"""The gold answer of an answer's column: the whole value; what the last \boxed{} of a solution holds; or what
    stands after #### at its end, as in GSM8K. None where there is none."""
    if value is None:
        return None
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    text = str(value).strip()
    if form is GoldForm.boxed:
        return boxed(text) or None
    if form is GoldForm.after_hashes:
        _, found, text = text.rpartition("####")
        return text.strip() or None if found else None
    return text.strip("$ ") or None
