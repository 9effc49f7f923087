"""Stored diagnoses as answers to equal questions."""

from __future__ import annotations

from datetime import UTC, datetime

from app.diagnose.schemas import CachedModel, DiagnosisModel
from app.jobs.store import Answer
from app.worker.messages import Worker

_LASTING = frozenset({"passed", "rejected", "wrong-result"})


def shareable(answer: DiagnosisModel, worker: Worker | None) -> bool:
    """Whether an equal question has the same answer: a crash, or too little memory, may not come again, and
    of several hosts one may have other versions than the `worker` that the question was asked of.
    """
    found, expected = answer.environment, worker.environment if worker else None
    same = expected is not None and (found.torch, found.triton, found.cuda, found.driver) == (
        *(expected.torch, expected.triton, expected.cuda, expected.driver),
    )
    told = answer.upstream is None or answer.upstream.outcome in ("returned", "raised", "unlaunched")
    return same and told and answer.verdict in _LASTING and answer.detail is None


def repeated(stored: Answer, job: str) -> DiagnosisModel:
    """A stored answer under a new id, which says when it was made."""
    at = datetime.fromtimestamp(stored.at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    answer = DiagnosisModel.model_validate_json(stored.body)
    return answer.model_copy(update={"id": job, "cached": CachedModel(at=at)})
