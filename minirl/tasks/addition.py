"""Addition of two zero-padded numbers, by columns from the right: 317+486=

Styles of the demonstrations: `reversed` writes the sum's digits as they are found, then the sum (3080#0803);
`carry` writes each column out (7+6+0=13,1+8+1=10,3+4+1=08#0803).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from minirl.tasks.procedural import slip
from minirl.tasks.vocabulary import Vocabulary

Problem = tuple[int, int]
# (left digit, right digit, carry in, total) of one column
Column = tuple[int, int, int, int]


def reversed_digits(columns: list[Column]) -> str:
    """The digits in the order in which they are found, the last carry included."""
    return "".join(str(total % 10) for *_, total in columns) + str(columns[-1][3] // 10)


def carry_trace(columns: list[Column]) -> str:
    """Every column as left+right+carry=total."""
    return ",".join(f"{left}+{right}+{carry}={total:02d}" for left, right, carry, total in columns)


STYLES: dict[str, Callable[[list[Column]], str]] = {"reversed": reversed_digits, "carry": carry_trace}


@dataclass(frozen=True)
class Addition:
    """digits: of each number. work: what a demonstration writes before #. wrong_step_rate: of wrong column totals."""

    digits: int
    work: Callable[[list[Column]], str]
    wrong_step_rate: float
    vocabulary = Vocabulary(text="0123456789+=,#", pad="_", eos="$", bos="")

    def draw(self, random: np.random.Generator) -> Problem:
        left, right = random.integers(10**self.digits, size=2)
        return int(left), int(right)

    def name(self, problem: Problem) -> str:
        return f"{min(problem)}+{max(problem)}"

    def question(self, problem: Problem) -> str:
        left, right = problem
        return f"{left:0{self.digits}d}+{right:0{self.digits}d}="

    def demonstration(self, problem: Problem, random: np.random.Generator) -> str:
        """The work, then # and the sum that follows from it (a wrong total is carried on)."""
        columns = self._columns(problem, random)
        return f"{self.work(columns)}#{reversed_digits(columns)[::-1]}"

    def score(self, problem: Problem, answer: str) -> float:
        """1 iff all that follows the first # is the zero-padded sum: a second guess is a wrong answer."""
        return float(answer.partition("#")[2] == f"{sum(problem):0{self.digits + 1}d}")

    def _columns(self, problem: Problem, random: np.random.Generator) -> list[Column]:
        columns: list[Column] = []
        carry = 0
        for place in range(self.digits):
            left, right = (number // 10**place % 10 for number in problem)
            total = slip(left + right + carry, 20, self.wrong_step_rate, random)
            columns.append((left, right, carry, total))
            carry = total // 10
        return columns
