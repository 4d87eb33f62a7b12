"""A task made of problems that are drawn, not stored: prompts by position, exact grading, demonstrations."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from minirl.config import ConfigError
from minirl.streams import stream
from minirl.tasks.splits import Split, split_of
from minirl.tasks.vocabulary import Vocabulary
from minirl.types import Prompt

# A split that is a tenth of the problems is missed this often in a row with probability 1e-46.
MAX_DRAWS = 1000


class Source(Protocol):
    """What is particular to one task; every method is a pure function."""

    @property
    def vocabulary(self) -> Vocabulary: ...

    def draw(self, random: np.random.Generator) -> Any:
        """A problem: whatever value the other methods understand."""
        ...

    def name(self, problem: Any) -> str:
        """Equal for problems that must not be told apart by the split (317+486 and 486+317)."""
        ...

    def question(self, problem: Any) -> str: ...

    def demonstration(self, problem: Any, random: np.random.Generator) -> str:
        """A response in the configured style, without EOS."""
        ...

    def score(self, problem: Any, answer: str) -> float:
        """The reward of a complete response, EOS taken off. Raises VerifierError."""
        ...


class ProceduralTask:
    """interfaces.Task over a source."""

    num_graders = 1
    notes: tuple[str, ...] = ()

    def __init__(self, source: Source) -> None:
        self.source = source
        self.vocabulary = source.vocabulary
        self.vocab_size = len(self.vocabulary)
        self.eos = self.vocabulary.ids[self.vocabulary.eos]
        self.pad = self.vocabulary.ids[self.vocabulary.pad]

    def prompts(self, start: int, count: int, seed: int) -> list[Prompt]:
        """The problem at a position is a function of (seed, position) alone, whatever is asked for beside it."""
        return [self._prompt(p, self._problem(Split.train, seed, "prompts", p)) for p in range(start, start + count)]

    def eval_sets(self, count: int | None) -> dict[str, list[Prompt]]:
        """One set."""
        if count is None:
            raise ConfigError("eval.num_problems=null: the problems of this task are drawn, say how many")
        return {"held_out": self.eval_prompts(count)}

    def eval_prompts(self, count: int) -> list[Prompt]:
        """The first `count` distinct held-out problems of one fixed order."""
        found: dict[str, Any] = {}
        draw = since = 0
        # the last unseen one of n problems is missed 20 n times in a row with probability e^-20
        while len(found) < count and since <= 100 + 20 * len(found):
            problem = self._problem(Split.eval, 0, "eval problems", draw)
            since = since + 1 if self.source.question(problem) in found else 0
            found.setdefault(self.source.question(problem), problem)
            draw += 1
        if len(found) < count:
            raise ConfigError(
                f"eval.num_problems={count}: this task has only {len(found)} held-out problems, use fewer"
            )
        return [self._prompt(position, problem) for position, problem in enumerate(found.values())]

    def demonstrations(self, start: int, count: int, seed: int) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
        """(prompt, response with EOS) at positions start .. start + count of the cold start's own order."""
        return [self._demonstration(position, seed) for position in range(start, start + count)]

    def grade(self, prompt: Prompt, response: Sequence[int]) -> float:
        """The source's score of what stands before the first EOS; 0 without an EOS, because nothing was answered."""
        tokens = list(response)
        if self.eos not in tokens:
            return 0.0
        return self.source.score(prompt.problem, self.decode(tokens[: tokens.index(self.eos)]))

    def save_tokenizer(self, folder: Path) -> None:
        """No file: a token is a character of `vocabulary`."""

    def encode(self, text: str) -> tuple[int, ...]:
        return self.vocabulary.encode(text)

    def decode(self, tokens: Sequence[int]) -> str:
        return self.vocabulary.decode(tokens)

    def _prompt(self, position: int, problem: Any) -> Prompt:
        return Prompt(position, self.encode(self.vocabulary.bos + self.source.question(problem)), problem)

    def _demonstration(self, position: int, seed: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        problem = self._problem(Split.coldstart, seed, "demonstrations", position)
        text = self.source.demonstration(problem, stream(seed, "demonstration steps", position))
        return self._prompt(position, problem).tokens, self.encode(text + self.vocabulary.eos)

    def _problem(self, split: Split, seed: int, purpose: str, position: int) -> Any:
        """The first problem of the split in the stream of this position."""
        random = stream(seed, purpose, position)
        for _ in range(MAX_DRAWS):
            problem = self.source.draw(random)
            if split_of(self.source.name(problem)) is split:
                return problem
        raise ConfigError(
            f"no {split.value} problem in {MAX_DRAWS} draws: the task's keys leave too few problems to split"
        )


def slip(value: int, num_values: int, rate: float, random: np.random.Generator) -> int:
    """With probability `rate` another of the values 0 .. num_values - 1, else the value itself."""
    if random.random() >= rate:
        return value
    return (value + int(random.integers(1, num_values))) % num_values
