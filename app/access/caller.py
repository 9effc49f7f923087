"""Who asks, and what they may see."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from starlette.requests import HTTPConnection


class Scope(StrEnum):
    """What a key is for; `admin` includes the others."""

    READ = "read"
    DIAGNOSE = "diagnose"
    ADMIN = "admin"


@dataclass(frozen=True, slots=True)
class Caller:
    """Who a request is from.

    name          the key's name; empty for whoever sent none
    scopes        what they may do, where the service has keys
    gpu_seconds   what their runs may take in one UTC day, seconds; None: no limit
    """

    name: str = ""
    scopes: frozenset[Scope] = frozenset()
    gpu_seconds: float | None = None

    def may(self, scope: Scope) -> bool:
        """Whether a scope includes what needs `scope`; whoever may diagnose may read."""
        return scope in self.scopes or (scope is Scope.READ and Scope.DIAGNOSE in self.scopes)

    def sees(self, owner: str) -> bool:
        """Whether they may read the result that `owner` (a caller's name) asked for.

        A result of nobody's key is protected by its unguessable id alone.
        """
        return owner in ("", self.name) or Scope.ADMIN in self.scopes


EVERYBODY = Caller(scopes=frozenset({Scope.READ, Scope.DIAGNOSE}))
"""Whoever asks a service that has no keys."""


def caller_of(connection: HTTPConnection) -> Caller:
    """Who asks, as the gate in front of every route has found; its `name` is the owner of what they start."""
    return cast(Caller, connection.scope.get("state", {}).get("caller", EVERYBODY))
