"""How a diagnosis, or a problem, is written as a job's end."""

from __future__ import annotations

import json

from app.diagnose.schemas import DiagnosisModel
from app.errors import Problem
from app.jobs.store import Ending, Status

LONGEST_SHARED = 256 << 10
"""Characters of an answer that may answer equal questions. Each job keeps its own: what is longer, for a call
that describes many values, has to be run again, or asking would fill the store faster than any run.
"""


def written(answer: DiagnosisModel) -> str:
    """A diagnosis as it is sent."""
    return answer.model_dump_json(by_alias=True)


def done(answer: DiagnosisModel, key: str) -> Ending:
    """The end of a job that was carried out; `key` identifies its question where its answer may be shared."""
    body = written(answer)
    return Ending(Status.DONE, 200, body, key if len(body) <= LONGEST_SHARED else "", answer.verdict)


def failed(problem: Problem, job: str) -> Ending:
    """The end of a job that was refused."""
    document = problem.document(base="", instance=f"/api/diagnoses/{job}")
    members = {name: value for name, value in document.items() if name in ("detail", "errors")}
    return Ending(Status.FAILED, problem.status, json.dumps(members))
