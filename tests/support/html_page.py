"""A page as the standard library's parser reads it: elements with their attributes and texts."""

from __future__ import annotations

from dataclasses import dataclass, field
from html.parser import HTMLParser

VOID = {"meta", "br", "img", "input", "link", "hr"}


@dataclass(eq=False)
class Element:
    tag: str
    attributes: dict[str, str]
    content: list[Element | str] = field(default_factory=list)

    @property
    def text(self) -> str:
        return "".join(part if isinstance(part, str) else part.text for part in self.content)

    def all(self, tag: str = "", **attributes: str) -> list[Element]:
        """Return the elements inside with a tag and attributes, in document order."""
        found = []
        for part in self.content:
            if isinstance(part, Element):
                same = all(part.attributes.get(name.replace("_", "-")) == value for name, value in attributes.items())
                found += [part] * (tag in ("", part.tag) and same) + part.all(tag, **attributes)
        return found


class _Parser(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.path = [Element("", {})]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        element = Element(tag, {name: value or "" for name, value in attrs})
        self.path[-1].content.append(element)
        if tag not in VOID:
            self.path.append(element)

    def handle_endtag(self, tag: str) -> None:
        assert self.path[-1].tag == tag, f"</{tag}> ends <{self.path[-1].tag}>"
        self.path.pop()

    def handle_data(self, data: str) -> None:
        self.path[-1].content.append(data)


def parsed(html: str) -> Element:
    """Return the root of a page in which every element that is opened is closed."""
    parser = _Parser()
    parser.feed(html)
    parser.close()
    (root,) = parser.path
    return root
