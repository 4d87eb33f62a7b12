"""How a problem becomes tokens: the tokenizer of a Hugging Face folder and its chat template."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jinja2 import TemplateError
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from minirl.config import ChatConfig, ConfigError
from minirl.hub import folder_of

Message = dict[str, str]
MARK = "0123456789"  # an answer that every tokenizer and template leaves as it is
THOUGHT = "<think>"


class Chat:
    """system: of every conversation, or None. instruction: what is asked for after each question, or None."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, system: str | None, instruction: str | None) -> None:
        self.tokenizer, self.system, self.instruction = tokenizer, system, instruction
        self.vocab_size = len(tokenizer)
        self.eos = self._end_of_turn()
        self.pad: int = self.eos if tokenizer.pad_token_id is None else tokenizer.pad_token_id

    @classmethod
    def of(cls, cfg: ChatConfig) -> Chat:
        if cfg.tokenizer is None:
            raise ConfigError("task.chat.tokenizer=null: set model.path, or a folder or hub id with a tokenizer")
        tokenizer = AutoTokenizer.from_pretrained(
            folder_of(cfg.tokenizer, "task.chat.tokenizer"), trust_remote_code=False, local_files_only=True
        )
        if cfg.template is not None:
            tokenizer.chat_template = Path(cfg.template).read_text(encoding="utf-8")
        if tokenizer.eos_token_id is None:
            raise ConfigError(f"task.chat.tokenizer={cfg.tokenizer}: it has no end-of-sequence token")
        return cls(tokenizer, cfg.system, cfg.instruction)

    def prompt(self, question: str) -> tuple[int, ...]:
        """The tokens of a conversation that ends where the answer to `question` begins."""
        return self.before_answer(self.conversation([{"role": "user", "content": question}]))

    def conversation(self, messages: Sequence[Message]) -> list[Message]:
        """The messages with our system prompt, where they have none, and our instruction after the last question."""
        *before, last = messages
        content = last["content"]
        if self.instruction is not None and self.instruction not in content:
            content = f"{content}\n{self.instruction}"
        begun = bool(messages) and messages[0]["role"] == "system"
        system = [] if self.system is None or begun else [{"role": "system", "content": self.system}]
        return [*system, *before, {**last, "content": content}]

    def before_answer(self, messages: list[Message]) -> tuple[int, ...]:
        """Everything up to the first token of the assistant's answer to the last message."""
        return self.encode(self._opened(messages))

    def answer(self, messages: list[Message], content: str) -> tuple[int, ...]:
        """The tokens of an answer to these messages, the end of the turn included: what the model would have sampled
        after `before_answer`. A template that opens the thought itself does not see it opened twice."""
        opened = self._opened(messages).rstrip()
        if opened.endswith(THOUGHT) and content.lstrip().startswith(THOUGHT):
            content = content.lstrip().removeprefix(THOUGHT).removeprefix("\n")
        return (*self.encode(content), self.eos)

    def encode(self, text: str) -> tuple[int, ...]:
        """Token ids of a text; special tokens in it are such, and none is added: the template has written them."""
        return tuple(self.tokenizer(text, add_special_tokens=False)["input_ids"])

    def decode(self, tokens: Sequence[int]) -> str:
        """Text with its special tokens; ids beyond the vocabulary (a model's embedding may have more rows) are not."""
        known = [token for token in tokens if token < self.vocab_size]
        return str(self.tokenizer.decode(known, skip_special_tokens=False, clean_up_tokenization_spaces=False))

    def _opened(self, messages: list[Message]) -> str:
        if self.tokenizer.chat_template is None:
            bos = self.tokenizer.bos_token or ""
            return bos + "".join(f"{message['content']}\n" for message in messages)
        return self._rendered(messages, add_generation_prompt=True)

    def _rendered(self, messages: list[Message], **how: Any) -> str:
        try:
            return str(self.tokenizer.apply_chat_template(messages, tokenize=False, **how))
        except TemplateError as error:
            roles = ", ".join(message["role"] for message in messages)
            raise ConfigError(f"task.chat: the chat template refuses a conversation of {roles} ({error})") from error

    def _end_of_turn(self) -> int:
        """The special token that the template writes after an answer; without one, the tokenizer's end of sequence.
        They differ: a base model may end texts with one token, its chat template turns with another."""
        end: int = self.tokenizer.eos_token_id
        if self.tokenizer.chat_template is None:
            return end
        chat = [{"role": "user", "content": "?"}, {"role": "assistant", "content": MARK}]
        tail = self.encode(self._rendered(chat).rpartition(MARK)[2].lstrip())
        added = self.tokenizer.added_tokens_decoder
        return tail[0] if tail and tail[0] in added and added[tail[0]].special else end
