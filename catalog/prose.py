"""The written part of a curated record: one TOML file each, read strictly."""

from __future__ import annotations

import tomllib
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from catalog.errors import CatalogError
from catalog.families import FAMILIES
from catalog.record import Handling

RECORDS: Final = Path(__file__).parent / "records"
"""`<folder of the operation>/<id of the record's first check>.toml`."""


@dataclass(frozen=True, slots=True)
class Related:
    """Another record worth reading: `check` names one of its checks, `folder/check id`."""

    check: str
    reason: str


@dataclass(frozen=True, slots=True)
class Prose:
    """What people wrote about one record; everything else is derived from its checks."""

    family: str
    tags: tuple[str, ...]
    handling: Handling
    documentation: str
    triggers: str
    situations: str
    solutions: tuple[str, ...]
    tips: tuple[str, ...]
    related: tuple[Related, ...]
    validation: str | None = None
    type_guard: str | None = None
    try_catch: str | None = None


TEXTS: Final = ("family", "handling", "documentation", "triggers", "situations")
LISTS: Final = ("tags", "solutions", "tips")
CODES: Final = ("validation", "type_guard", "try_catch")


def path_of(name: str) -> Path:
    """The file of the record called `folder/check id`."""
    return RECORDS / f"{name}.toml"


def written_names() -> set[str]:
    """Names of all records that have a file."""
    return {f"{path.parent.name}/{path.stem}" for path in RECORDS.glob("*/*.toml")}


def read(path: Path) -> Prose:
    """One file; CatalogError names it and what is wrong."""
    try:
        table = tomllib.loads(path.read_text("utf-8"))
        return _prose(table)
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, CatalogError) as error:
        raise CatalogError(f"{path.parent.name}/{path.name}: {error}") from None


def _prose(table: Mapping[str, Any]) -> Prose:
    known = {*TEXTS, *LISTS, *CODES, "related"}
    if unknown := sorted(set(table) - known):
        raise CatalogError(f"unknown keys {', '.join(unknown)}")
    values: dict[str, Any] = {name: _text(table, name) for name in TEXTS}
    values |= {name: tuple(_texts(table, name)) for name in LISTS}
    values |= {name: _text(table, name) for name in CODES if name in table}
    if values["family"] not in FAMILIES:
        raise CatalogError(f"family {values['family']!r} is not one of {', '.join(FAMILIES)}")
    if values["handling"] not in typing.get_args(Handling):
        raise CatalogError(f"handling must be one of {', '.join(typing.get_args(Handling))}")
    return Prose(**values, related=tuple(map(_related, table.get("related", ()))))


def _text(table: Mapping[str, Any], name: str) -> str:
    value = table.get(name)
    if not isinstance(value, str) or not value.strip():
        raise CatalogError(f"{name} must be a text")
    return value.strip("\n").rstrip()


def _texts(table: Mapping[str, Any], name: str) -> list[str]:
    value = table.get(name)
    if not isinstance(value, list) or not value or not all(isinstance(item, str) and item for item in value):
        raise CatalogError(f"{name} must be a list of texts")
    return [item.strip() for item in value]


def _related(entry: Any) -> Related:
    if not isinstance(entry, dict) or set(entry) != {"check", "reason"}:
        raise CatalogError("each [[related]] has the keys check and reason")
    return Related(_text(entry, "check"), _text(entry, "reason"))
