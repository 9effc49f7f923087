"""A reader of pages, and the whole service without a worker."""

from __future__ import annotations

from collections.abc import Iterator
from html.parser import HTMLParser

import pytest
from starlette.testclient import TestClient

from app.main import create_app
from app.settings import Settings


class Page(HTMLParser):
    """What a page holds: whether its tags are closed, its links, forms, headings, text and inline code."""

    VOID = frozenset({"meta", "link", "input", "br", "hr", "img"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.alternates: list[str] = []
        self.canonical = ""
        self.inline: list[str] = []
        self.open: list[str] = []
        self.tags: list[str] = []
        self.ids: list[str] = []
        self.labelled: list[str] = []
        self.fields: dict[str, str] = {}
        self.forms: list[tuple[str, dict[str, str]]] = []
        self.headings: list[tuple[int, str]] = []
        self.text = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        self.tags.append(tag)
        if tag not in self.VOID:
            self.open.append(tag)
        self.links += [values[name] for name in ("href", "src", "action") if name in values]
        self.ids += [values["id"]] if "id" in values else []
        if (values.get("rel"), values.get("type")) == ("alternate", "application/json"):
            self.alternates.append(values["href"])
        if values.get("rel") == "canonical":
            self.canonical = values["href"]
        if tag == "style" or (tag == "script" and "src" not in values) or "style" in values:
            self.inline.append(tag)
        self.inline += [name for name in values if name.startswith("on")]
        if tag == "form":
            self.forms.append((values["action"], {}))
        if tag == "label":
            self.labelled.append(values["for"])
        if tag in ("input", "textarea", "select"):
            self.forms[-1][1][values["name"]] = values.get("value", "")
            if values.get("type") != "hidden":
                self.fields[values["id"]] = values["name"]
        if tag in ("h1", "h2", "h3", "h4", "h5", "h6"):
            self.headings.append((int(tag[1]), ""))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data
        if self.open and self.open[-1] == "textarea":
            name = list(self.forms[-1][1])[-1]
            self.forms[-1][1][name] += data
        if any(tag in ("h1", "h2", "h3", "h4") for tag in self.open) and self.headings:
            level, text = self.headings[-1]
            self.headings[-1] = level, " ".join(f"{text} {data}".split())


@pytest.fixture(scope="session")
def read() -> type[Page]:
    """Reads a page's text."""
    return Page


@pytest.fixture(scope="package")
def service() -> Iterator[TestClient]:
    """Every capability with the real catalog, without a worker; redirects are not followed."""
    with TestClient(create_app(Settings(workers=0)), follow_redirects=False) as client:
        yield client
