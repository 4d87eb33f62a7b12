"""Which numbers of a document have been explained: a document is its texts, and a text with a digit in it is explained
once somebody has said what all of it must be. What is left over at the end was checked by nobody."""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from math import floor, isfinite, log10
from typing import Any

SUPERSCRIPT = str.maketrans("⁻⁰¹²³⁴⁵⁶⁷⁸⁹", "-0123456789")
PATTERN = r"([+−-]?\d[\d,]*(?:\.\d+)?(?:e[+−-]?\d+)?(?:·10[⁻⁰¹²³⁴⁵⁶⁷⁸⁹]+)?[⁻⁰¹²³⁴⁵⁶⁷⁸⁹]*%?)"
MOST_DIGITS = 12  # more are told by no rounding
POWER = re.compile(r"(?:([+−-]?[\d.]+)·)?10([⁻⁰¹²³⁴⁵⁶⁷⁸⁹]+)")


@dataclass(frozen=True)
class Number:
    """A number as it must be printed: `value`, rounded at the place given by one of: digits (significant ones) ·
    decimals · spread (to a twentieth of it, for an estimate beside its interval). signed: a plus is written."""

    value: float
    digits: int = 3
    decimals: int | None = None
    spread: float = 0.0
    signed: bool = False

    @property
    def tolerance(self) -> float:
        """Half of the last place that must be right."""
        if self.decimals is not None:
            return 0.5 * 10.0**-self.decimals
        place = 0.5 * 10.0 ** (floor(log10(abs(self.value))) + 1 - self.digits) if self.value else 0.0
        return max(place, self.spread / 20)

    def is_printed_as(self, text: str) -> bool:
        """Whether the text says this number."""
        if self.signed and not text.startswith(("+", "−", "-")):
            return False
        return abs(read(text) - self.value) <= min(self.tolerance, last_place(text) / 2) * (1 + 1e-9) + 1e-15


def exact(value: float) -> Number:
    """To the last digits that arithmetic in another order leaves."""
    return Number(value, digits=10)


def count(value: float) -> Number:
    """A whole number."""
    return Number(value, decimals=0) if float(value).is_integer() else Number(value, digits=16)


def read(text: str) -> float:
    """The number that a text prints: 1,234 · −0.5 · 12% · 10⁻³ · 2·10⁻³ · 1e-05."""
    power = POWER.fullmatch(text)
    if power is not None:
        mantissa = float((power[1] or "1").replace("−", "-"))
        return mantissa * 10.0 ** int(power[2].translate(SUPERSCRIPT))
    plain = text.replace("−", "-").replace(",", "").rstrip("%")
    return float(plain) / (100 if text.endswith("%") else 1)


def last_place(text: str) -> float:
    """What the last printed digit counts: 0.01 for 0.25, 1 for 1,234; no limit where digits are those of arithmetic."""
    if POWER.fullmatch(text) or sum(letter.isdigit() for letter in text) > MOST_DIGITS:
        return float("inf")
    places = Decimal(text.replace("−", "-").replace(",", "").rstrip("%")).as_tuple().exponent
    return 10.0 ** (int(places) - (2 if text.endswith("%") else 0))


Part = str | Number


def refusal(text: str, parts: Iterable[Part]) -> str | None:
    """What is wrong with a text that must be these parts one after another; None where nothing is."""
    known = list(parts)
    pattern = "".join(PATTERN if isinstance(part, Number) else re.escape(part) for part in known)
    found = re.fullmatch(pattern, text, re.DOTALL)
    if found is None:
        return f"{text!r} is not {''.join(part if isinstance(part, str) else f'<{part.value!r}>' for part in known)!r}"
    numbers = [part for part in known if isinstance(part, Number)]
    wrong = [
        f"{printed} in {text!r} should be {number.value!r}"
        for number, printed in zip(numbers, found.groups(), strict=True)
        if not number.is_printed_as(printed)
    ]
    return "; ".join(wrong) or None


def listed(entries: Iterable[Iterable[Part]], between: str) -> list[Part]:
    """The entries one after another, with a text between them."""
    parts: list[Part] = []
    for place, entry in enumerate(entries):
        parts += [*([between] if place else []), *entry]
    return parts


def numbers_of(value: Any) -> list[float]:
    """Every finite number of a tree of lists and dictionaries."""
    if isinstance(value, Mapping):
        return [number for part in value.values() for number in numbers_of(part)]
    if isinstance(value, list | tuple):
        return [number for part in value for number in numbers_of(part)]
    return [float(value)] if isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value) else []


class Ledger:
    """texts: all texts of a document, by a key that says where they stand."""

    def __init__(self, texts: Mapping[Hashable, str]) -> None:
        self.texts = dict(texts)
        self.open = {key for key, text in texts.items() if any(letter.isdigit() for letter in text)}
        self.wrong: list[str] = []
        self.num_numbers = 0

    def says(self, keys: Iterable[Hashable], text: str, *parts: Part) -> None:
        """The text, which stands at `keys`, must be these parts."""
        refused = refusal(text, parts)
        if refused is not None:
            self.wrong.append(refused)
        self.num_numbers += sum(isinstance(part, Number) for part in parts)
        self.open -= set(keys)

    def allows(self, keys: Iterable[Hashable]) -> None:
        """Texts whose digits are no numbers of the experiment; the caller says why."""
        self.open -= set(keys)

    def settle(self) -> None:
        """Raises AssertionError for wrong numbers, and for those that nobody has explained."""
        assert not self.wrong, "\n".join(self.wrong)
        left = [f"{key}: {self.texts[key]!r}" for key in sorted(self.open, key=str)]
        assert not left, f"{len(left)} texts with digits that no rule explains:\n" + "\n".join(left[:40])
