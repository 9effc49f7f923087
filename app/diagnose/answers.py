"""Parts of a diagnosis made of what was found: verdict, disagreement, fixes and runs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict

from app.diagnose import schemas
from app.diagnose.fixes import Repair
from app.worker.compiling import Compilation
from app.worker.messages import Device, Outcome
from kernels.call import Call, arguments_json
from kernels.examining import Examination
from kernels.registry import Operation
from kernels.rendering import fix_code

FITTED = "fitted to the shapes given"
"""Where the value of an argument that was not given comes from, unless it is the default."""


def fitted(assumed: Iterable[str]) -> frozenset[str]:
    """Names of the arguments that were not given and have no default."""
    return frozenset(sentence.partition(" = ")[0] for sentence in assumed if sentence.endswith(f"({FITTED})"))


def not_given(blamed: Iterable[str], guessed: frozenset[str]) -> str:
    """An addition to what a check found in these arguments, where some of them are our guess."""
    names = [name for name in blamed if name in guessed]
    return f" ({' and '.join(names)} not given: {FITTED})" if names else ""


def verdict(
    level: schemas.Level, examination: Examination, outcome: Outcome | None, obstacle: str
) -> schemas.Verdict:
    """What became of the call; at level run, of running it, where it was run."""
    if level == "checks" or outcome is None:
        if examination.rejected:
            return "rejected"
        return "unsupported" if level == "run" and obstacle else "passed"
    match outcome.ending:
        case "returned":
            if not outcome.agrees:
                return "wrong-result"
            return "rejected" if examination.rejected else "passed"
        case "raised":
            assert outcome.raised is not None
            return "rejected" if outcome.raised.check is not None else "crashed"
        case ending:
            return ending


def disagreement(examination: Examination, outcome: Outcome | None) -> str | None:
    """What the run said that the checks did not, or the other way round."""
    if outcome is None or outcome.ending in ("crashed", "out-of-memory", "timed-out"):
        return None
    predicted = examination.raised
    raised = outcome.raised
    if raised is None:
        return f"the checks predict {predicted.text!r}, yet the run returned" if predicted else None
    if raised.check is None:
        return f"the run raised {raised.error_class}: {raised.message}, which no check predicts"
    if predicted is None and any(found.check.id() == raised.check for found in examination.failed()):
        return None
    if predicted is None or type(predicted).id() != raised.check or predicted.text != raised.message:
        expected = type(predicted).id() if predicted else "no check"
        return f"the run was refused by {raised.check}, the checks name {expected}"
    return None


def fix(operation: Operation, call: Call, repair: Repair, outcome: Outcome | None) -> schemas.FixModel:
    """A repair as it is answered, with how far running it proved it."""
    proved: str = "checks-pass"
    if outcome is not None and outcome.ending == "returned":
        proved = "matches-reference" if outcome.agrees and outcome.implementation != "reference" else "ran"
    return schemas.FixModel(
        title=repair.title,
        edits=[
            schemas.EditModel(
                argument=edit.argument, attribute=edit.attribute, before=edit.before, after=edit.after
            )
            for edit in repair.edits
        ],
        safe=repair.safe,
        note=costs(call, repair),
        warnings=list(repair.warnings),
        level=proved,
        run=run_model(outcome),
        arguments=arguments_json(repair.call),
        code=fix_code(operation, call, repair.call),
    )


def costs(call: Call, repair: Repair) -> str:
    """What a repair costs, a clause: its fixes' own words, the memory, the warnings that it leaves."""
    parts = [repair.note] if repair.note else []
    more = sum(
        getattr(after, "storage_bytes", 0) - getattr(before, "storage_bytes", 0)
        for before, after in ((getattr(call, name), getattr(repair.call, name)) for name in call.names())
        if before is not after
    )
    if more:
        parts.append(f"the tensors described take {abs(more):,} bytes {'more' if more > 0 else 'less'}")
    if not repair.safe and not repair.note:
        parts.append("the numbers computed or the memory touched are others than before")
    if repair.warnings:
        parts.append(f"leaves a warning: {', '.join(repair.warnings)}")
    return "; ".join(parts)


def storage(call: Call) -> int:
    """Bytes that a call's tensors take, those of a checkpoint too."""
    return sum(getattr(value, "storage_bytes", 0) for _, value in call.stated())


def run_model(outcome: Outcome | None) -> schemas.RunModel | None:
    """A run beside its reference; None where nothing was run to an end."""
    if outcome is None or outcome.device is None or outcome.implementation is None:
        return None
    outputs = [
        schemas.OutputModel(
            name=output.name,
            shape=list(output.shape),
            dtype=output.dtype,
            max_abs_error=output.max_abs_error,
            max_rel_error=output.max_rel_error,
            mismatches=output.mismatches,
            elements=output.elements,
            within=output.within,
            tolerance=schemas.ToleranceModel(atol=output.atol, rtol=output.rtol, share=output.share),
        )
        for output in outcome.outputs
    ]
    widest = max(outputs, key=lambda output: output.max_abs_error or 0.0, default=None)
    detail = outcome.detail
    if outcome.raised is not None and outcome.raised.check is None:
        detail = f"{outcome.raised.error_class}: {outcome.raised.message}"
    return schemas.RunModel(
        device=device(outcome.device),
        implementation=outcome.implementation,
        milliseconds=outcome.milliseconds,
        max_abs_error=widest.max_abs_error if widest else None,
        max_rel_error=max((output.max_rel_error or 0.0 for output in outputs), default=None),
        tolerance=widest.tolerance if widest else None,
        outputs=outputs,
        detail=detail or None,
    )


def compilations(found: list[Compilation]) -> list[schemas.CompilationModel]:
    """Kernels as they are answered, with whether they fit into the architecture's shared memory."""
    return [
        schemas.CompilationModel(
            **asdict(each), fits=None if each.shared_bytes is None else each.shared_bytes <= each.shared_limit
        )
        for each in found
    ]


def device(found: Device) -> schemas.DeviceModel:
    """Where it ran."""
    return schemas.DeviceModel(name=found.name, capability=found.capability, emulated=found.emulated)
