"""One token per character: a vocabulary that a reader can check by eye."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

UNKNOWN = "\ufffd"


@dataclass(frozen=True)
class Vocabulary:
    """pad, eos, bos (or "" for none) and text characters; a token id is a character's place in `characters`.

    pad and eos are different tokens, so that nothing that ignores padding can ever ignore the end of a response.
    """

    text: str
    pad: str
    eos: str
    bos: str

    def __post_init__(self) -> None:
        if len(set(self.characters)) != len(self.characters):
            raise ValueError(f"a character occurs twice in the vocabulary {self.characters!r}")

    @property
    def characters(self) -> str:
        return self.pad + self.eos + self.bos + self.text

    @cached_property
    def ids(self) -> dict[str, int]:
        return {character: index for index, character in enumerate(self.characters)}

    def __len__(self) -> int:
        return len(self.characters)

    def missing(self, text: str) -> str:
        """The characters of `text` that have no token, once each."""
        return "".join(sorted(set(text) - set(self.characters)))

    def encode(self, text: str) -> tuple[int, ...]:
        """Token ids of `text`; special characters in it are encoded as such, none is added."""
        if missing := self.missing(text):
            raise ValueError(f"{text!r} holds {missing!r}, which the vocabulary {self.characters!r} lacks")
        return tuple(self.ids[character] for character in text)

    def decode(self, tokens: Sequence[int]) -> str:
        """The text; a token beyond the vocabulary (of a model with a larger one) is no character of it."""
        return "".join(self.characters[token] if token < len(self) else UNKNOWN for token in tokens)
