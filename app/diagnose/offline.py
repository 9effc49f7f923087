"""Diagnosis without a server: the command line's door to the same service."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from app.diagnose.arguments import schema
from app.diagnose.components import INDEX, MAX_INDEX
from app.diagnose.files import diagnose_files
from app.diagnose.questions import operation_named, parse_question
from app.diagnose.service import Diagnoser, summaries
from app.settings import Settings, load
from app.upstream.asking import Upstream, opened
from app.worker.pool import WorkerPool
from catalog import current
from catalog.store import load_catalog
from kernels.safetensors_file.file_start import FileStart, first_bytes


async def diagnose_paths(paths: list[Path], operation: str | None) -> dict[str, Any]:
    """The answer that POST /api/diagnose/checkpoint would give for these files; only headers are read."""
    settings = load(workers=0)
    starts = {str(path): _start(path) for path in paths}
    answer = await diagnose_files(_diagnoser(settings, WorkerPool(settings)), starts, operation)
    return answer.model_dump(by_alias=True, mode="json")


def _start(path: Path) -> FileStart:
    """A file up to the end of its header, an index as a whole."""
    if not path.name.endswith(INDEX):
        return first_bytes(path)
    with path.open("rb") as file:
        return FileStart(file.read(MAX_INDEX))


async def diagnose_body(body: bytes) -> dict[str, Any]:
    """The answer that POST /api/diagnose would give; workers are started only for level run."""
    question = parse_question(body)
    settings = load(host="127.0.0.1", workers=1 if question.level == "run" else 0)
    pool = WorkerPool(settings)
    pool.start()
    upstream = opened(settings)
    try:
        answer = await _diagnoser(settings, pool, upstream).diagnose(question)
    finally:
        await pool.stop()
        if upstream is not None:
            upstream.close()
    return answer.model_dump(by_alias=True, mode="json")


def operation_list() -> dict[str, Any]:
    """The answer of GET /api/operations."""
    return {"operations": [item.model_dump(by_alias=True) for item in summaries(lambda path: path)]}


def operation_document(name: str) -> dict[str, Any]:
    """The answer of GET /api/operations/{name}."""
    operation = operation_named(name)
    settings = load(workers=0)
    answer = _diagnoser(settings, WorkerPool(settings)).describe(operation, schema(operation.call))
    return answer.model_dump(by_alias=True, mode="json")


def _diagnoser(settings: Settings, pool: WorkerPool, upstream: Upstream | None = None) -> Diagnoser:
    current.use_unless_used(settings.data, settings.notes)
    catalog = load_catalog()
    return Diagnoser(settings, pool, catalog.record_id_of, catalog.dataset_version, upstream=upstream)
