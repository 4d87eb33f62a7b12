"""Demonstrations out of a teacher's traces: what stood before the last answer is the prompt, the answer is learned."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from minirl.config import ConfigError, TracesConfig
from minirl.tables import rows
from minirl.tasks.chat import Chat, Message
from minirl.tasks.problems import DUPLICATE, IN_EVALUATION, TOO_LONG

KEY = "coldstart.traces"
NO_ANSWER = "that do not end with an answer"

Demonstration = tuple[tuple[int, ...], tuple[int, ...]]


@dataclass(frozen=True)
class Traces:
    """demonstrations: (prompt tokens, answer tokens with the end of the turn), in the order of the files."""

    demonstrations: list[Demonstration]
    dropped: Counter[str]

    def __str__(self) -> str:
        reasons = ", ".join(f"{number} {reason}" for reason, number in self.dropped.items())
        return f"{KEY}: {len(self.demonstrations)} traces" + (f"; dropped: {reasons}" if reasons else "")


def collect(cfg: TracesConfig, chat: Chat, held_out: set[str]) -> Traces:
    """held_out: names of evaluation problems; what teaches their answers is dropped."""
    columns = [name for name in (cfg.messages, cfg.question, cfg.response) if name is not None]
    found: dict[Demonstration, None] = {}
    dropped = Counter[str]()
    for row in rows(cfg.path, f"{KEY}.path", columns=columns, where=cfg.where):
        messages = conversation(row, cfg)
        if not messages or messages[-1]["role"] != "assistant":
            dropped[NO_ANSWER] += 1
            continue
        *before, last = messages
        if any(" ".join(message["content"].split()) in held_out for message in before):
            dropped[IN_EVALUATION] += 1
            continue
        asked = chat.conversation(before)
        demonstration = chat.before_answer(asked), chat.answer(asked, last["content"])
        if len(demonstration[1]) > cfg.max_response_tokens:
            dropped[TOO_LONG] += 1
        elif demonstration in found:
            dropped[DUPLICATE] += 1
        else:
            found[demonstration] = None
    if not found:
        raise ConfigError(f"{KEY}.path={cfg.path}: no trace is left; dropped: {dict(dropped)}")
    return Traces(list(found), dropped)


def conversation(row: Mapping[str, Any], cfg: TracesConfig) -> list[Message]:
    """The messages of a row: its chat, or its question and the response to it. What a message keeps as its thought
    (`reasoning_content`, `reasoning` or `thinking`) stands before its content, between <think> and </think>."""
    if cfg.messages is None:
        pair = (("user", cfg.question), ("assistant", cfg.response))
        return [{"role": role, "content": str(row[name])} for role, name in pair if name and row[name] is not None]
    messages = row[cfg.messages]
    if not isinstance(messages, list) or not all(isinstance(each, dict) and "role" in each for each in messages):
        raise ConfigError(f"{KEY}.messages={cfg.messages}: expected a list of messages with role and content")
    return [{"role": str(each["role"]), "content": _text(each)} for each in messages]


def _text(message: Mapping[str, Any]) -> str:
    content = str(message.get("content") or "")
    thoughts = [message.get(name) for name in ("reasoning_content", "reasoning", "thinking")]
    thought = next((text for text in thoughts if text), None)
    return content if thought is None else f"<think>\n{thought.strip()}\n</think>\n\n{content}"
