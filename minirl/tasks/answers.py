r"""Where the final answer of a response stands, and when two answers are equal without further ado.

Formats: `boxed`, the last \boxed{...}; `last_number`; `choice`, a letter; `json`, a field of the last JSON object. What
a model writes before </think> is no part of its answer.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from fractions import Fraction

THOUGHT_ENDS = "</think>"
BOXED = re.compile(r"\\(?:boxed|fbox)\s*\{")
# a sign belongs to a number unless something stands before it that it could be subtracted from
NUMBER = re.compile(
    r"(?<![\w.,])(?:(?<![\w)\]}.])[-+])?(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?(?:\s*/\s*\d+(?:,\d{3})*)?"
    r"|(?<![\w.,])(?:(?<![\w)\]}.])[-+])?\.\d+"
)
FRACTION = re.compile(r"\\[dt]?frac\s*(?:\{(\d+)\}|(\d))\s*(?:\{(\d+)\}|(\d))")
CHOICE_SAID = re.compile(r"(?i:answer|option|choice)(?i:\s+is)?\W{0,6}(?:\\text\{)?\(?([A-Z])\b(?![''])")
CHOICE_ALONE = re.compile(r"(?:^|[\s(*{])\(?([A-Z])[)}.*]*\s*$", flags=re.MULTILINE)
WRAPPED = re.compile(r"\\(?:text|textbf|mathrm|mathbf|mbox|boxed|fbox)\s*\{([^{}]*)\}")
PLAIN_NUMBER = re.compile(r"[-+]?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?|[-+]?\.\d+")
NO_MATHEMATICS = str.maketrans({"$": "", "−": "-", "–": "-", "\u00a0": " ", "\u2009": " "})
SPACING = (("\\$", ""), ("\\!", ""), ("\\,", " "), ("\\;", " "), ("\\ ", " "), ("~", " "))
NUM_BRACES = 200  # of a response, from its end, at which a JSON object may begin


def after_thought(response: str) -> str:
    """What stands after the last </think>, or everything."""
    return response.rpartition(THOUGHT_ENDS)[2]


def boxed(text: str) -> str | None:
    r"""What the last complete \boxed{...} holds; braces may be nested, \{ and \} are no braces."""
    for start in reversed(list(BOXED.finditer(text))):
        depth, index = 1, start.end()
        while index < len(text) and depth:
            if text[index] == "\\":
                index += 1
            else:
                depth += {"{": 1, "}": -1}.get(text[index], 0)
            index += 1
        if depth == 0:
            return text[start.end() : index - 1].strip()
    return None


def last_number(text: str) -> str | None:
    """The last number: signed, with thousands separated, a decimal, or a fraction a/b."""
    text = FRACTION.sub(lambda found: "/".join(part for part in found.groups() if part), text.translate(NO_MATHEMATICS))
    found = NUMBER.findall(text)
    return found[-1].replace(",", "").replace(" ", "") if found else None


def choice(text: str) -> str | None:
    """The letter that is boxed, else the last one that is called the answer, else the last one that ends a line."""
    inside = boxed(text)
    if inside is not None:
        return letter(inside)
    for pattern in (CHOICE_SAID, CHOICE_ALONE):
        found = pattern.findall(text)
        if found:
            return str(found[-1])
    return None


def letter(text: str) -> str | None:
    r"""C of C, (C), C., \text{(C)}, C) 42 or c; None where no single letter is meant."""
    plain = normalised(text).strip("()[].: ")
    head = re.match(r"([A-Za-z])(?:[).:\]]|$)", plain)
    return head[1].upper() if head else None


def json_field(field: str) -> Callable[[str], str | None]:
    """Reads `field` of the last JSON object in a text that has it; a value that is no text is written as JSON."""

    def read(text: str) -> str | None:
        decoder = json.JSONDecoder()
        starts = [index for index, character in enumerate(text) if character == "{"]
        for start in starts[: -NUM_BRACES - 1 : -1]:
            try:
                found, _ = decoder.raw_decode(text, start)
            except (json.JSONDecodeError, RecursionError):
                continue
            if field in found:
                value = found[field]
                return value if isinstance(value, str) else json.dumps(value)
        return None

    return read


def normalised(answer: str) -> str:
    r"""Without $, \text{...} and the like, spaces at the ends and a full stop; a thin or hard space is a space."""
    text = (
        answer.replace("\\$", "")
        .translate(NO_MATHEMATICS)
        .replace("\\,", " ")
        .replace("\\!", "")
        .replace("\\ ", " ")
        .replace("~", " ")
    )
    while WRAPPED.search(text):
        text = WRAPPED.sub(r"\1", text)
    return " ".join(text.split()).rstrip(". ")


def same_text(gold: str, answer: str) -> bool:
    """Equal as text, whatever the case and the spaces."""
    return squeezed(gold) == squeezed(answer) != ""


def squeezed(answer: str) -> str:
    return "".join(normalised(answer).lower().split())


def number(answer: str) -> Fraction | None:
    """The value of a plain number: digits, sign, point and thousands separators, nothing else."""
    text = normalised(answer)
    return Fraction(text.replace(",", "")) if PLAIN_NUMBER.fullmatch(text) else None
