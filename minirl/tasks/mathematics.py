"""Problems with a final answer, out of files: chat prompts, graded by mathematical equality or by a user's grader."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import TypeVar

from minirl.config import ColdstartConfig, ConfigError, TaskConfig
from minirl.streams import stream
from minirl.tasks import problems, traces
from minirl.tasks.chat import Chat
from minirl.tasks.grader import Grader
from minirl.tasks.problems import IN_EVALUATION, TOO_LONG, UNREADABLE, Collection, Problem
from minirl.tasks.splits import Split, split_of
from minirl.types import Prompt

HELD_OUT = "held_out"  # the evaluation set of a task that names none: a tenth of its problems
SET_POSITIONS = 2**20  # positions that an evaluation set has to itself

Item = TypeVar("Item")


class MathTask:
    """interfaces.Task. train: in the order of its file. sets: the evaluation problems by the name of their set.
    demonstrated: (prompt, response) tokens of the cold start, empty without traces. notes: what was dropped."""

    def __init__(
        self,
        chat: Chat,
        grader: Grader,
        train: Collection,
        sets: Mapping[str, Collection],
        demonstrated: Sequence[traces.Demonstration],
        notes: Sequence[str],
    ) -> None:
        self.chat, self.grader = chat, grader
        self.train, self.sets = train.problems, sets
        self.demonstrated, self.notes = demonstrated, tuple(notes)
        self.vocab_size, self.eos, self.pad = chat.vocab_size, chat.eos, chat.pad
        self.num_graders = grader.verifiers.num_workers

    def prompts(self, start: int, count: int, seed: int) -> list[Prompt]:
        """Positions run through one shuffle of all problems after another, each a function of (seed, its number)."""
        found = ordered(self.train, start, count, seed, "problem order")
        return [self._prompt(start + index, problem) for index, problem in enumerate(found)]

    def eval_sets(self, count: int | None) -> dict[str, list[Prompt]]:
        """The first `count` problems of each set (None: all), in the order of its file. A problem's position, and so
        its draws, depend on its own set alone."""
        return {
            name: [self._prompt(first_position(name) + index, each) for index, each in enumerate(part.problems[:count])]
            for name, part in self.sets.items()
        }

    def demonstrations(self, start: int, count: int, seed: int) -> list[traces.Demonstration]:
        if not self.demonstrated:
            raise ConfigError("task=math has no demonstrations: set coldstart.traces, or coldstart.checkpoint")
        return list(ordered(self.demonstrated, start, count, seed, "trace order"))

    def grade(self, prompt: Prompt, response: Sequence[int]) -> float:
        """The grader's score of what stands before the first end of turn; 0 without one: nothing was answered."""
        tokens = list(response)
        if self.eos not in tokens:
            return 0.0
        return self.grader.score(prompt.problem, self.decode(tokens[: tokens.index(self.eos)]))

    def save_tokenizer(self, folder: Path) -> None:
        """In Hugging Face format, with the chat template in use."""
        self.chat.tokenizer.save_pretrained(folder)

    def encode(self, text: str) -> tuple[int, ...]:
        return self.chat.encode(text)

    def decode(self, tokens: Sequence[int]) -> str:
        return self.chat.decode(tokens)

    def _prompt(self, position: int, problem: Problem) -> Prompt:
        return Prompt(position, self.chat.prompt(problem.question), problem)


def ordered(items: Sequence[Item], start: int, count: int, seed: int, purpose: str) -> Iterator[Item]:
    """Positions start .. start + count of an endless order: epoch e is a permutation drawn from (seed, e)."""
    epoch, order = -1, None
    for position in range(start, start + count):
        if order is None or position // len(items) != epoch:
            epoch = position // len(items)
            order = stream(seed, purpose, epoch).permutation(len(items))
        yield items[order[position % len(items)]]


def first_position(name: str) -> int:
    """Where the positions of an evaluation set begin: of its name alone, so that a further set changes no draw."""
    return int.from_bytes(sha256(name.encode()).digest()[:4], "big") * SET_POSITIONS


def build(cfg: TaskConfig, coldstart: ColdstartConfig) -> MathTask:
    """The task of `task.train`, `task.eval_sets` and `coldstart.traces`. Evaluation problems neither train nor teach;
    a task without evaluation sets holds out a tenth of its problems. Raises ConfigError where nothing is left."""
    if cfg.train is None or cfg.chat is None or cfg.grading is None:
        raise ConfigError("task=math needs the blocks task.train, task.chat and task.grading")
    chat, grader = Chat.of(cfg.chat), Grader(cfg.grading)
    train = usable(problems.collect(cfg.train, "task.train"), chat, grader, cfg.chat.max_prompt_tokens)
    named = {name: problems.collect(part, f"task.eval_sets.{name}") for name, part in cfg.eval_sets.items()}
    sets = {name: usable(part, chat, grader, cfg.chat.max_prompt_tokens) for name, part in named.items()}
    if not sets:
        tenth = train.without("left to train on", lambda problem: split_of(problem.name) is not Split.eval)
        sets = {HELD_OUT: replace(tenth, key="held out of task.train")}
    held_out = {problem.name for part in sets.values() for problem in part.problems}
    train = train.without(IN_EVALUATION, lambda problem: problem.name in held_out)
    for part in (train, *sets.values()):
        if not part.problems:
            raise ConfigError(f"{part.key}: no problem is left; {part}")
    notes, demonstrated = [str(train), *map(str, sets.values())], list[traces.Demonstration]()
    if coldstart.traces is not None:
        found = traces.collect(coldstart.traces, chat, held_out)
        notes, demonstrated = [*notes, str(found)], found.demonstrations
    return MathTask(chat, grader, train, sets, demonstrated, notes)


def usable(found: Collection, chat: Chat, grader: Grader, max_prompt_tokens: int) -> Collection:
    """Without problems whose gold answer nothing could be compared with, and without those that are too long."""
    with ThreadPoolExecutor(grader.verifiers.num_workers) as pool:
        reasons = pool.map(grader.reason, [problem.answer for problem in found.problems])
        unreadable = {each.answer: why for each, why in zip(found.problems, reasons, strict=True) if why is not None}
    found = found.without(UNREADABLE, lambda each: each.answer in unreadable)
    found = found.without(TOO_LONG, lambda each: len(chat.prompt(each.question)) > max_prompt_tokens)
    return replace(found, examples=[f"{answer!r} is {why}" for answer, why in unreadable.items()])
