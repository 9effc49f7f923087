"""What `doctor` finds of others that the settings name: the broker and upstream's interpreter."""

from __future__ import annotations

import subprocess
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from urllib.parse import urlsplit

from app.host import Finding
from app.settings import variable

VERSIONS = """
import sys
from importlib import metadata, util
for name in sys.argv[1:]:
    if util.find_spec(name) is not None:
        try:
            print(name, metadata.version(name))
        except metadata.PackageNotFoundError:
            print(name, "from a folder")
"""
"""Run by upstream's interpreter: finds modules without importing them."""


def broker(url: str) -> Iterator[Finding]:
    """Whether Redis answers, keeps jobs on disk, and has workers. Its password is never shown."""
    parts = urlsplit(url)
    place = f"{parts.hostname}:{parts.port or 6379}" if parts.hostname else parts.path
    try:
        from redis import RedisError, ResponseError

        from app.cluster.broker import connect
        from app.cluster.names import NODES
    except ImportError:
        remedy = "pip install 'faultbook[cluster]'"
        yield Finding("broker", "broken", "celery and redis are not installed", remedy)
        return
    try:
        client = connect(url)
        client.ping()
        nodes = [name.removeprefix(NODES).partition(":")[0] for name in client.scan_iter(f"{NODES}*", 1000)]
    except (RedisError, ValueError) as error:
        remedy = f"start Redis there, or correct {variable('broker_url')}; a wrong password is said as such"
        yield Finding("broker", "broken", f"{place}: {error}", remedy)
        return
    yield Finding("broker", "ok", place)
    with suppress(ResponseError):  # CONFIG is refused where somebody else runs Redis
        told = client.config_get("appendonly") | client.config_get("maxmemory-policy")
        if told["appendonly"] != "yes":
            remedy = "redis-server --appendonly yes"
            detail = "keeps nothing across its own restart"
            yield Finding("broker-disk", "missing", detail, remedy, required=False)
        if told["maxmemory-policy"] != "noeviction":
            remedy = "redis-server --maxmemory-policy noeviction"
            detail = f"drops jobs when memory is short ({told['maxmemory-policy']})"
            yield Finding("broker-memory", "missing", detail, remedy, required=False)
    if not nodes:
        remedy = "faultbook worker, on a host with a GPU that reaches this Redis"
        yield Finding("workers", "missing", "none has joined", remedy, required=False)
    else:
        counted = ", ".join(f"{count} of {queue}" for queue, count in sorted(Counter(nodes).items()))
        yield Finding("workers", "ok", counted)


def upstream(python: str, modules: str) -> Finding:
    """Whether upstream's interpreter starts and has the packages of `modules`, prefixes between commas."""
    names = list(dict.fromkeys(name.strip().partition(".")[0] for name in modules.split(",") if name.strip()))
    remedy = f"set {variable('upstream_python')} to the interpreter that imports {' and '.join(names)}"
    command = [python, "-c", VERSIONS, *names]
    try:
        asked = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.SubprocessError) as error:
        reason = error.strerror if isinstance(error, OSError) else "does not answer"
        return Finding("upstream", "broken", f"{python}: {reason}", remedy)
    seen = asked.stdout.split("\n")[:-1]
    if asked.returncode or not seen:
        return Finding("upstream", "broken", f"{python} has none of {', '.join(names)}", remedy)
    return Finding("upstream", "ok", ", ".join(seen))
