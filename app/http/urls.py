"""Addresses as users see them: behind a proxy's prefix, and absolute where PUBLIC_URL is set."""

from __future__ import annotations

from typing import cast

from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Receive, Scope, Send

from app.settings import Settings


class Prefix:
    """Tells the router which part of the path the proxy's prefix is, whether or not the proxy removed it."""

    def __init__(self, app: ASGIApp, root_path: str) -> None:
        self.app = app
        self.root_path = root_path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            scope["root_path"] = self.root_path
        await self.app(scope, receive, send)


def settings_of(connection: HTTPConnection) -> Settings:
    """The settings of the service that answers."""
    return cast(Settings, connection.app.state.settings)


def route_path(connection: HTTPConnection) -> str:
    """The path without ROOT_PATH, whether or not the proxy has removed that."""
    return path_of(connection.scope)


def path_of(scope: Scope) -> str:
    """`route_path` of what a middleware gets."""
    path, root = scope["path"], scope["app"].state.settings.root_path
    return cast(str, path.removeprefix(root) if root and path.startswith(root + "/") else path)


def link(connection: HTTPConnection, path: str) -> str:
    """An address on the same host, for a page's own links: ROOT_PATH + `path`."""
    return settings_of(connection).root_path + path


def absolute(connection: HTTPConnection, path: str) -> str:
    """An address to hand out: with PUBLIC_URL where it is set, else as `link`; never from the Host header."""
    return settings_of(connection).base_url + path
