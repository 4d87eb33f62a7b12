"""HTML and SVG as values: whatever is not markup is escaped, so nothing from outside can become any."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from pathlib import Path
from typing import Any

VOID = frozenset({"meta", "link", "br", "hr", "img", "input"})


class Markup(str):
    """Text that is markup already: made by `element`, or a file of ours."""


Child = Any  # Markup, a string (escaped), a number, None (nothing), or an iterable of these


def element(tag: str, *children: Child, **attributes: Any) -> Markup:
    """<tag attributes>children</tag>. class_ is `class`, aria_label is `aria-label`; None leaves an attribute out,
    True writes its bare name; floats have one decimal (pixels)."""
    words = [_attribute(name, value) for name, value in attributes.items() if value is not None and value is not False]
    opening = f"<{' '.join([tag, *words])}>"
    return Markup(opening if tag in VOID else f"{opening}{join(children)}</{tag}>")


def join(children: Iterable[Child]) -> Markup:
    """Children one after another."""
    return Markup("".join(_child(child) for child in children))


def _child(child: Child) -> str:
    if child is None:
        return ""
    if isinstance(child, Markup):
        return child
    if isinstance(child, str | int | float):
        return escape(str(child))
    return join(child)


def _attribute(name: str, value: Any) -> str:
    name = name.rstrip("_").replace("_", "-")
    if value is True:
        return name
    return f'{name}="{pixels(value) if isinstance(value, float) else escape(str(value))}"'


def pixels(value: float) -> str:
    """One decimal, and none where it is 0: half of a page is coordinates."""
    text = f"{value:.1f}".removesuffix(".0")
    return "0" if text == "-0" else text


def own(name: str) -> Markup:
    """A file of ours beside this module, as it is."""
    return Markup((Path(__file__).parent / name).read_text(encoding="utf-8"))


def page_head(title: str) -> Markup:
    """The head of a page that needs nothing but itself."""
    return element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("link", rel="icon", href="data:,"),
        element("title", f"{title} · minirl"),
        element("style", own("page.css")),
    )
