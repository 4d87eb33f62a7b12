"""Any dataset of the reasoning-gym package by name, character by character, graded by the dataset itself.

A problem is an entry of the dataset made from its own seed, so that no dataset is ever listed and the number of
problems is the dataset's own. Demonstrations are the gold answers (style `answer`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from string import ascii_letters, digits, punctuation
from typing import Any

import numpy as np

from minirl.config import ConfigError
from minirl.interfaces import VerifierError
from minirl.suggest import did_you_mean
from minirl.tasks.vocabulary import Vocabulary

Entry = Mapping[str, Any]
# the Unicode pictures of NUL, END OF TRANSMISSION and START OF TEXT: no dataset writes them
PRINTABLE = Vocabulary(text=ascii_letters + digits + punctuation + " \n", pad="␀", eos="␄", bos="␂")
NUM_SEEDS = 2**31
# questions with other characters are passed over; a dataset that has almost no others is refused
MAX_DRAWS = 100


class ReasoningGym:
    """The source of one dataset. entry(seed) makes a problem; verify(answer, entry) is the dataset's own score."""

    vocabulary = PRINTABLE

    def __init__(self, dataset: str, entry: Callable[[int], Entry], verify: Callable[[str, Entry], float]) -> None:
        self.dataset, self.entry, self.verify = dataset, entry, verify

    def draw(self, random: np.random.Generator) -> Entry:
        for _ in range(MAX_DRAWS):
            entry = self.entry(int(random.integers(NUM_SEEDS)))
            missing = self.vocabulary.missing(entry["question"] + str(entry["answer"]))
            if not missing:
                return entry
        raise ConfigError(
            f"task.dataset={self.dataset} writes {missing!r}: only datasets in printable ASCII can be used"
        )

    def name(self, problem: Entry) -> str:
        return str(problem["question"])

    def question(self, problem: Entry) -> str:
        return str(problem["question"])

    def demonstration(self, problem: Entry, random: np.random.Generator) -> str:
        """The gold answer. Some datasets have none, because many answers are right."""
        answer = problem["answer"]
        if not isinstance(answer, str):
            raise ConfigError(
                f"task.dataset={self.dataset} has no gold answers to learn from: set coldstart.checkpoint"
            )
        return answer

    def score(self, problem: Entry, answer: str) -> float:
        try:
            value = float(self.verify(answer, problem))
        except Exception as error:  # a foreign verifier may raise anything on a strange answer
            raise VerifierError(f"{self.dataset} on {answer!r}: {type(error).__name__}: {error}") from error
        if not math.isfinite(value):
            raise VerifierError(f"{self.dataset} on {answer!r}: the score is {value}")
        return value


def source(dataset: str, options: Mapping[str, Any]) -> ReasoningGym:
    """The source of `dataset` with the dataset's own options."""
    try:
        from reasoning_gym.factory import DATASETS, create_dataset
    except ImportError as error:
        raise ConfigError("task=reasoning_gym needs the package reasoning-gym: pip install minirl[tasks]") from error
    if dataset not in DATASETS:
        raise ConfigError(f"task.dataset={dataset} is not in reasoning-gym{did_you_mean(dataset, DATASETS)}")
    make = partial(create_dataset, dataset, size=1, **options)
    try:
        verify = make(seed=0).score_answer
    except (TypeError, ValueError, AssertionError) as error:
        known = ", ".join(name for name in DATASETS[dataset][1].__annotations__ if name not in ("seed", "size"))
        raise ConfigError(f"task.options={dict(options)} do not fit {dataset} ({error}); it has: {known}") from error
    return ReasoningGym(dataset, entries(make), verify)


def entries(make: Callable[..., Sequence[Entry]]) -> Callable[[int], Entry]:
    """entry(seed) = make(seed=seed)[0]. Most datasets draw problem i from seed + i and nothing else: of these it is
    problem `seed` of one dataset, and word lists are read once. Three problems tell which kind it is."""
    dataset = make(seed=0)
    try:
        same = all(dataset[seed]["question"] == make(seed=seed)[0]["question"] for seed in (1, 2**30, NUM_SEEDS - 1))
    except IndexError:
        same = False
    return dataset.__getitem__ if same else lambda seed: make(seed=seed)[0]
