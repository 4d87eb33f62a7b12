"""A page of the report as a ledger of all its texts and attributes, and its plots as numbers again."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from math import log10
from typing import Any

import numpy as np
from html_tree import Node, Tree
from ledger import Ledger, Number, Part, read, refusal

# how things look, and where they stand: of curves and marks, `shape` explains it
LOOKS = {"class", "id", "tabindex", "viewbox", "lang", "name", "content", "charset", "r"}
GEOMETRY = {"x", "y", "x1", "x2", "y1", "y2", "cx", "cy", "d", "transform", "width", "height"}
STRUCTURE = {"grid", "axis", "cursor", "ticks", "unit", "ends", "below", "name", "swatch", "verdict"}
PIXELS = 0.75


class Document(Ledger):
    """root: the page · script: its curves. Texts of the style sheet and of the script's code are ours and tell nothing
    of the sweep."""

    def __init__(self, html: str) -> None:
        self.root = Tree(html).root
        self.paths: dict[int, str] = {}
        self._name(self.root, "")
        self.script: dict[str, Any] = {}
        texts: dict[Any, str] = {}
        for node in self.root.below():
            if node.tag == "script" and node.attributes.get("id") == "series":
                self.script = json.loads(node.words())
            if node.tag in ("style", "script"):
                continue
            texts |= {self._key(node, i): text for i, text in enumerate(node.content) if isinstance(text, str)}
            texts |= {self._key(node, name): text or "" for name, text in node.attributes.items() if name not in LOOKS}
        super().__init__(texts)
        for node, inside in self._walk(self.root, frozenset()):
            if (node.tag in ("text", "line", "svg") or inside & STRUCTURE) and "bound" not in inside:
                self.allows(self._key(node, name) for name in GEOMETRY)

    def _name(self, node: Node, path: str) -> None:
        self.paths[id(node)] = path
        for place, child in enumerate(node.children):
            mark = child.attributes.get("id") or child.attributes.get("data-metric") or child.attributes.get("class")
            self._name(child, f"{path}/{child.tag}[{place}]{f'({mark})' if mark else ''}")

    def _walk(self, node: Node, inside: frozenset[str]) -> Any:
        inside = inside | set((node.attributes.get("class") or "").split())
        yield node, inside
        for child in node.children:
            yield from self._walk(child, inside)

    def _key(self, node: Node, name: str | int) -> str:
        return f"{self.paths[id(node)]} {name}"

    def words(self, node: Node, *parts: Part) -> None:
        """All that is written in the node is these parts."""
        places = [(each, i) for each in node.below() for i, text in enumerate(each.content) if isinstance(text, str)]
        self.says((self._key(each, i) for each, i in places), node.words(), *parts)

    def attribute(self, node: Node, name: str, *parts: Part) -> None:
        """The attribute is these parts; without parts, it is not there."""
        if not parts and name in node.attributes:
            self.wrong.append(f"{self._key(node, name)} stands for nothing: {node.attributes[name]}")
        if parts:
            self.says([self._key(node, name)], node.attributes.get(name) or "", *parts)

    def each(self, nodes: Sequence[Node], expected: Sequence[Sequence[Part]]) -> None:
        """Every node is one of the expected texts."""
        for node in nodes:
            refused = [refusal(node.words(), parts) for parts in expected]
            parts = next((parts for parts, why in zip(expected, refused, strict=True) if why is None), None)
            if parts is None:
                self.wrong.append(f"{self.paths[id(node)]}: {node.words()!r} is none of these: {refused}")
            else:
                self.words(node, *parts)

    def constant(self, node: Node, *names: str) -> None:
        """Attributes whose digits are none of the experiment's."""
        self.allows(self._key(node, name) for name in names)

    def shape(self, node: Node, found: Sequence[Any], expected: Sequence[Any]) -> None:
        """What a curve or a mark shows, in pixels, is where it must be."""
        self.allows(self._key(node, name) for name in GEOMETRY)
        there, wanted = np.array(found, float), np.array(expected, float)
        if there.shape != wanted.shape:
            self.wrong.append(f"{self.paths[id(node)]}: {there.shape} points, expected {wanted.shape}")
        elif there.size and np.abs(there - wanted).max() > PIXELS:
            self.wrong.append(f"{self.paths[id(node)]}: off by {np.abs(there - wanted).max():.2f} pixels")
        self.num_numbers += there.size


# --- plots --------------------------------------------------------------------------------------------------------

Pixel = Callable[[float], float]


def along(known: Sequence[tuple[float, float]], *, log: bool) -> Pixel:
    """From a value to its pixel, by the (value, pixel) of an axis' ticks."""
    (low, start), (high, stop) = min(known), max(known)

    def pixel(value: float) -> float:
        if log:
            return start + (log10(value) - log10(low)) / (log10(high) - log10(low)) * (stop - start)
        return start + (value - low) / (high - low) * (stop - start)

    return pixel


def ticks(page: Document, svg: Node, side: str, *, log: bool = False) -> list[tuple[float, float]]:
    """(value, pixel) of the ticks at the x or y axis, as labelled: at least two, all on one scale."""
    (group,) = [one for one in svg.all("g", class_="ticks") if side in one["class"].split()]
    shift = 4.0 if side == "y" else 0.0
    labels = list(group.all("text"))
    known = [(read(text.words()), float(text[side]) - shift) for text in labels]
    assert len(known) > 1, f"{page.paths[id(svg)]}: one tick is no scale"
    pixel = along(known, log=log)
    for text, (value, place) in zip(labels, known, strict=True):
        page.words(text, Number(value, digits=4))
        page.shape(text, [place], [pixel(value)])
    return known


def polyline(d: str) -> list[tuple[float, float]]:
    """The points of a path of M, L, l and Z, absolute; a gap is no point."""
    points: list[tuple[float, float]] = []
    for command, text in re.findall(r"([MLl])([^MLlZ]*)", d):
        x, y = (float(number) for number in re.findall(r"-?\d+(?:\.\d+)?", text))
        points.append((points[-1][0] + x, points[-1][1] + y) if command == "l" else (x, y))
    return points


def place(mark: Node) -> tuple[float, float]:
    """Where a marker has been moved."""
    x, y = mark["transform"].removeprefix("translate(").removesuffix(")").split()
    return float(x), float(y)
