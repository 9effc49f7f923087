"""How the service ends: uvicorn waits for open requests, so those that only watch are told first."""

from __future__ import annotations

from contextlib import suppress
from types import FrameType

import uvicorn
from fastapi import FastAPI


def serve(config: uvicorn.Config, app: FastAPI) -> bool:
    """Serve until a signal; streams of events end at the first one. False where it could not start."""
    server = _Server(config, app)
    with suppress(KeyboardInterrupt):  # raised again by uvicorn once it has stopped
        server.run()
    return server.started


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, app: FastAPI) -> None:
        super().__init__(config)
        self._app = app

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        super().handle_exit(sig, frame)
        jobs = getattr(self._app.state, "jobs", None)
        if jobs is not None:
            jobs.leave()
