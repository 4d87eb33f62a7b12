"""A recurrence unrolled for as many steps as the prompt says, so that responses vary in length.

    value_t = (value_{t-1} + value_{t-k}) mod 10,  the first k values and the number of steps given

Numbers of steps are one token each, the letters a = 1, b = 2, ... With k = 3, ^e471= asks for 5 steps from 4, 7, 1.
Styles of the demonstrations: `count` writes the steps left before each value (e5d2c3b8a0#0), `plain` the values
alone (52380#0).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from string import ascii_lowercase

import numpy as np

from minirl.tasks.procedural import slip
from minirl.tasks.vocabulary import Vocabulary

# (number of steps, the given values)
Problem = tuple[int, tuple[int, ...]]
MAX_STEPS = len(ascii_lowercase)


def steps(number: int) -> str:
    """The one-letter name of a number of steps."""
    return ascii_lowercase[number - 1]


def counted(values: list[int]) -> str:
    """Each value after the number of steps that were left when it was computed."""
    return "".join(f"{steps(len(values) - done)}{value}" for done, value in enumerate(values))


def plain(values: list[int]) -> str:
    """The values alone: where to stop must be known from the prompt."""
    return "".join(map(str, values))


STYLES: dict[str, Callable[[list[int]], str]] = {"count": counted, "plain": plain}


def values_of(problem: Problem, note: Callable[[int], int]) -> list[int]:
    """The values of all steps; each is noted down (rightly or not) and reckoned with as noted."""
    num_steps, given = problem
    values = list(given)
    for _ in range(num_steps):
        values.append(note((values[-1] + values[-len(given)]) % 10))
    return values[len(given) :]


@dataclass(frozen=True)
class Chain:
    """num_given: k of the recurrence. work: what a demonstration writes before #."""

    num_given: int
    min_steps: int
    max_steps: int
    work: Callable[[list[int]], str]
    wrong_step_rate: float

    @cached_property
    def vocabulary(self) -> Vocabulary:
        return Vocabulary(text="0123456789=#" + ascii_lowercase[: self.max_steps], pad="_", eos="$", bos="^")

    def draw(self, random: np.random.Generator) -> Problem:
        num_steps = int(random.integers(self.min_steps, self.max_steps + 1))
        return num_steps, tuple(int(value) for value in random.integers(10, size=self.num_given))

    def name(self, problem: Problem) -> str:
        return self.question(problem)

    def question(self, problem: Problem) -> str:
        num_steps, given = problem
        return f"{steps(num_steps)}{plain(list(given))}="

    def demonstration(self, problem: Problem, random: np.random.Generator) -> str:
        """The work, then # and its last value."""
        values = values_of(problem, lambda value: slip(value, 10, self.wrong_step_rate, random))
        return f"{self.work(values)}#{values[-1]}"

    def score(self, problem: Problem, answer: str) -> float:
        """1 iff all that follows the first # is the last value of the recurrence, whatever stands before."""
        return float(answer.partition("#")[2] == str(values_of(problem, int)[-1]))
