"""From a response's text to its reward: the final answer is read, and compared with the gold one."""

from __future__ import annotations

from collections.abc import Callable

from minirl.config import AnswerFormat, GradingConfig
from minirl.tasks import answers
from minirl.tasks.problems import Problem
from minirl.tasks.verifiers import Verifiers

LONGEST_ANSWER = 500  # characters; a longer one is no final answer


class Grader:
    """The score of a response's text. Raises VerifierError where the verifier itself fails."""

    def __init__(self, cfg: GradingConfig) -> None:
        self.verifiers = Verifiers(
            num_workers=cfg.num_workers,
            max_seconds=cfg.max_seconds,
            max_gradings=cfg.max_gradings,
            grader=cfg.grader,
        )
        self.verifiers.check()
        self.is_users, self.is_choice = cfg.grader is not None, cfg.format is AnswerFormat.choice
        self.read = READERS[cfg.format](cfg.field)

    def score(self, problem: Problem, response: str) -> float:
        """1 iff the response's final answer equals the gold answer; the user's grader may say anything finite."""
        if self.is_users:
            return float(self.verifiers.ask(question=problem.question, answer=problem.answer, response=response))
        answer = self.read(answers.after_thought(response))
        return 0.0 if answer is None else float(self.equal(problem.answer, answer))

    def equal(self, gold: str, answer: str) -> bool:
        """What is plainly the same, or plainly another integer or letter, needs no verifier."""
        if self.is_choice:
            return answers.letter(gold) == answer
        if answers.same_text(gold, answer):
            return True
        numbers = answers.number(gold), answers.number(answer)
        if all(value is not None and value.denominator == 1 for value in numbers):
            return numbers[0] == numbers[1]
        if len(answer) > LONGEST_ANSWER:
            return False
        return bool(self.verifiers.ask(gold=gold, answer=answer))

    def reason(self, gold: str) -> str | None:
        """Why a gold answer cannot be graded against; None where it can."""
        if self.is_users:
            return None
        if self.is_choice:
            return None if answers.letter(gold) else "not a letter"
        if answers.number(gold) is not None:
            return None
        found: str | None = self.verifiers.ask(reason=gold)
        return found


READERS: dict[AnswerFormat, Callable[[str | None], Callable[[str], str | None]]] = {
    AnswerFormat.boxed: lambda field: answers.boxed,
    AnswerFormat.last_number: lambda field: answers.last_number,
    AnswerFormat.choice: lambda field: answers.choice,
    AnswerFormat.json: lambda field: answers.json_field(str(field)),
}
