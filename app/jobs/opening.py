"""Which store the settings ask for."""

from __future__ import annotations

import logging

from app.jobs.file_store import FileStore
from app.jobs.store import Room, Store, StoreUnavailable
from app.settings import Settings

log = logging.getLogger("faultbook.jobs")


def open_store(settings: Settings) -> Store:
    """The broker's where there is one, else the data folder's.

    Where that folder cannot be written: one in memory, and a warning.
    """
    room = Room(int(settings.max_store_bytes))
    if settings.broker_url:
        from app.cluster.store import RedisStore

        return RedisStore(settings.broker_url, settings.retention, room)
    try:
        return FileStore(settings.data, room)
    except StoreUnavailable as error:
        log.warning("jobs and results are kept in memory only, a restart forgets them: %s", error)
        return FileStore(None, room)
