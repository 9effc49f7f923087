"""Which level a question is answered at, and what stands in the way of a run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from app.diagnose import schemas
from app.diagnose.answers import storage
from app.errors import ContentTooLarge, Fault
from app.settings import Settings, run_allowed
from app.worker.pool import Runs
from kernels.call import Call

if TYPE_CHECKING:
    from app.diagnose.service import Question


def level_of(
    question: Question, pool: Runs, settings: Settings, assumed: list[str]
) -> tuple[schemas.Level, str]:
    """The level to answer at, and why no run is possible at level run; what is chosen is added to `assumed`.

    Raises ContentTooLarge where a run was asked for and its tensors are too large.
    """
    wanted, target = question.level, question.call.target
    if wanted == "checks":
        return wanted, ""
    size = storage(question.call)
    offered = pool.exists and run_allowed(settings) and not question.operation.needs
    if wanted is None:
        wanted = "run" if offered else "checks"
        if wanted == "run" and is_elsewhere(question):
            assumed.append(f"level checks: no worker of this service is a {target}")
            wanted = "checks"
        if wanted == "run" and size > settings.max_tensor_bytes:
            assumed.append(f"level checks: the tensors take {size:,} bytes, more than a run may here")
            wanted = "checks"
    if wanted == "checks":
        return wanted, ""
    if question.operation.needs:
        return wanted, f"a run needs {question.operation.needs}"
    if not pool.exists:
        return wanted, pool.absence
    if not run_allowed(settings):
        return wanted, "runs are off beyond loopback; the operator may set FAULTBOOK_OPEN"
    worker = question.worker
    kind = "cuda" if worker and worker.device.capability else "cpu"
    if worker and question.device not in ("auto", kind):
        return wanted, f"the worker of this service runs on {kind}, not on {question.device}"
    if is_elsewhere(question):
        return wanted, f"no worker of this service is a {target}"
    if not is_buildable(question.call):
        return wanted, "not run: torch has no tensors of an element type of this call"
    if size > settings.max_tensor_bytes:
        limit = settings.max_tensor_bytes
        raise ContentTooLarge(
            f"The tensors take {size:,} bytes and a run may have {limit:,}; level checks has no limit.",
            faults=[Fault("/arguments", f"{size:,} bytes of tensors")],
        )
    return wanted, ""


def is_buildable(call: Call) -> bool:
    """Whether torch has tensors of every element type of the call."""
    return all(tensor.dtype.in_torch for _, tensor in call.tensors())


def is_elsewhere(question: Question) -> bool:
    """Whether a call is meant for another architecture than that of the worker, as far as that is known."""
    target, own = question.call.target, question.own_target
    return target is not None and question.worker is not None and (own is None or not own.serves(target))
