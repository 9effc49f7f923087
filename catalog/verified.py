"""When a record's own example was last run, on what, and how far the passing call was from its reference.

`python -m catalog.verified` runs them all on this host and writes `verified.json`; with ids it runs those.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from catalog.faults import Demonstration, Fault, faults
from kernels.call import Call
from kernels.registry import Operation, folder_of, operations
from kernels.safetensors_file.file_start import FileStart
from kernels.spec import TensorSpec

FILE: Final = Path(__file__).with_name("verified.json")

MOST_BYTES: Final = 1 << 28
"""Of a call's tensors; larger examples are only checked."""


@dataclass(frozen=True, slots=True)
class Verified:
    """One verification.

    level           run: the real function raised the failing example's text (where a running call is refused
                    at all: not for elements, nor with a warning) and ran the passing call; checks where no
                    host could, or this one not
    device          that it ran on; None at level checks
    at              UTC, ISO 8601
    max_abs_error   of the passing call's outputs, in their own units; None where it was not run or has none
    """

    level: str
    device: str | None
    torch: str | None
    triton: str | None
    at: str
    max_abs_error: float | None

    def to_json(self) -> dict[str, Any]:
        """As a record has it."""
        fields = asdict(self)
        fields["maxAbsError"] = fields.pop("max_abs_error")
        return fields


class Unverified(Exception):
    """A record's example does not do what the record says; the text says what it does."""


@cache
def read() -> Mapping[str, dict[str, Any]]:
    """Record id → its last verification."""
    found: dict[str, dict[str, Any]] = json.loads(FILE.read_text("utf-8")) if FILE.is_file() else {}
    return found


def verify(fault: Fault, device: str) -> Verified | None:
    """Run a record's failing and passing call on a device; None for a record that no call reaches.

    Raises Unverified where the function raises another error than the record's, or none, or where the passing
    call is off its reference.
    """
    shown = fault.shown
    if shown is None:
        return None
    import torch
    import triton

    level, error = "checks", None
    passing = shown.case.operation.valid if shown.fix is None else shown.fix.call
    _check(shown, passing)
    if _can_run(shown.case.operation, shown.call, passing):
        level, error = "run", _run(shown, passing, device)
    name = torch.cuda.get_device_name() if device == "cuda" else "cpu"
    return Verified(
        level,
        name if level == "run" else None,
        torch.__version__,
        triton.__version__,
        datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        error,
    )


def _check(shown: Demonstration, passing: Call) -> None:
    """The checks' own verdict on both calls."""
    operation = shown.case.operation
    failed = {outcome.check for outcome in operation.examine(shown.call).failed()}
    if shown.case.check not in failed or operation.examine(passing).raised is not None:
        raise Unverified(f"{shown.case.name}: the checks say otherwise")


def _can_run(operation: Operation, *calls: Call) -> bool:
    """Whether this host can build and run the calls at all."""
    sizes = (getattr(value, "storage_bytes", 0) for call in calls for _, value in call.stated())
    tensors = (value for call in calls for _, value in call.stated() if isinstance(value, TensorSpec))
    buildable = all(tensor.dtype.in_torch for tensor in tensors)
    aimed = any(call.target is not None for call in calls)
    starts = (value for call in calls for _, value in call.stated() if isinstance(value, FileStart))
    whole = all(start.size is not None or start.header is not None for start in starts)
    return not operation.needs and not aimed and buildable and whole and max(sizes, default=0) <= MOST_BYTES


def _run(shown: Demonstration, passing: Call, device: str) -> float | None:
    """The failing call refused by the real function, then the passing one beside its reference."""
    from kernels.live import stated_devices
    from kernels.running import compare, materialise
    from kernels.values import seeded

    operation = shown.case.operation
    runner = import_module(f"kernels.{folder_of(operation)}.op").RUNNERS[operation.name]

    def arguments(call: Call) -> dict[str, Any]:
        made: dict[str, Any] = (runner.build or materialise)(call, seeded(operation.fill(call), 0), device)
        return made

    def called(call: Call, live: dict[str, Any]) -> Any:
        with stated_devices({id(live[name]): tensor.device_index for name, tensor in call.tensors()}):
            return runner.function(**live)

    guarded = not shown.case.check.reads_values and shown.case.check.severity.value == "error"
    if guarded:
        try:
            called(shown.call, arguments(shown.call))
        except Exception as error:
            if str(error) != shown.violation.text:
                raise Unverified(f"{shown.case.name}: raised {error!r}") from error
        else:
            raise Unverified(f"{shown.case.name}: returned")
    live = arguments(passing)
    written = runner.outputs(live, called(passing, live))
    expected = runner.reference(arguments(passing))
    errors = []
    for name, tensor in written.items():
        found = compare(name, tensor, expected[name], runner.tolerance(name, passing))
        if not found.within:
            raise Unverified(f"{shown.case.name}: {name} is off its reference by {found.max_abs_error}")
        errors.append(found.max_abs_error)
    return max(errors, default=None)


def _prepared() -> str:
    """The device of this host, its interpreter corrected where there is no GPU."""
    import torch

    if torch.cuda.is_available():
        return "cuda"
    from kernels import interpreter

    interpreter.prepare()
    return "cpu"


def _wanted(ids: list[str]) -> Iterator[Fault]:
    known = faults(operations().values())
    missing = set(ids) - {fault.id for fault in known}
    if missing:
        sys.exit(f"no record has the id {min(missing)}")
    yield from (fault for fault in known if not ids or fault.id in ids)


def main(ids: list[str]) -> int:
    """Verify and write; the number of records that do not do what they say."""
    device = _prepared()
    found, wrong = dict(read()) if ids else {}, 0
    for fault in _wanted(ids):
        try:
            result = verify(fault, device)
        except Unverified as error:
            wrong += 1
            sys.stderr.write(f"{fault.id} {error}\n")
            continue
        if result is not None:
            found[fault.id] = result.to_json()
    lines = (f"  {json.dumps(key)}: {json.dumps(value)}" for key, value in sorted(found.items()))
    FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n", "utf-8")
    return wrong


if __name__ == "__main__":
    sys.exit(min(main(sys.argv[1:]), 100))
