"""A page as a tree of nodes, read strictly: every element is closed, in order."""

from __future__ import annotations

from collections.abc import Iterator
from html.parser import HTMLParser

from minirl.report.markup import VOID


class Node:
    def __init__(self, tag: str, attributes: dict[str, str | None]) -> None:
        self.tag, self.attributes, self.content = tag, attributes, list[Node | str]()

    def __getitem__(self, name: str) -> str:
        """An attribute that must be there; "" where it stands without a value."""
        return self.attributes[name] or ""

    @property
    def children(self) -> list[Node]:
        return [child for child in self.content if isinstance(child, Node)]

    def all(self, tag: str | None = None, **attributes: str) -> Iterator[Node]:
        """Every node below with this tag and these attributes (class_ for class: one of several words)."""
        wanted = {name.rstrip("_").replace("_", "-"): value for name, value in attributes.items()}
        for child in self.children:
            has = {name: child.attributes.get(name) or "" for name in wanted}
            if tag in (None, child.tag) and all(
                value == has[name] or value in has[name].split() for name, value in wanted.items()
            ):
                yield child
            yield from child.all(tag, **attributes)

    def one(self, tag: str | None = None, **attributes: str) -> Node:
        """The only such node."""
        (found,) = self.all(tag, **attributes)
        return found

    def child(self, tag: str) -> Node:
        """The only such node directly below."""
        (found,) = (child for child in self.children if child.tag == tag)
        return found

    def below(self) -> Iterator[Node]:
        """Itself and every node below."""
        yield self
        for child in self.children:
            yield from child.below()

    def words(self) -> str:
        return "".join(child if isinstance(child, str) else child.words() for child in self.content)


class Tree(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.root = Node("", {})
        self.open = [self.root]
        self.feed(text)
        self.close()
        assert self.open == [self.root], f"<{self.open[-1].tag}> is not closed"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        node = Node(tag, dict(attrs))
        self.open[-1].content.append(node)
        if tag not in VOID:
            self.open.append(node)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop().tag == tag

    def handle_data(self, data: str) -> None:
        self.open[-1].content.append(data)
