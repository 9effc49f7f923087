"""Every record's example was run, and what was written down of it is what running it again finds."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime
from functools import cached_property
from typing import Any

import pytest

from catalog import verified
from catalog.faults import Demonstration, Fault, faults
from catalog.store import load_catalog
from kernels.checking import Fix
from kernels.dtypes import DType
from kernels.registry import operations

FAULTS = {fault.id: fault for fault in faults(operations().values())}
WRITTEN = verified.read()
NOT_HERE = {"flash_attn_fwd/paged_without_scaled_v", "sparse_attn_v4_paged_decode/fp8_not_compiled"}


def test_every_record_that_a_call_reaches_was_verified_and_no_other() -> None:
    reached = {fault.id for fault in FAULTS.values() if fault.shown is not None}
    assert set(WRITTEN) == reached, "python -m catalog.verified"


def test_what_is_written_has_the_contracts_members() -> None:
    for found in WRITTEN.values():
        assert list(found) == ["level", "device", "torch", "triton", "at", "maxAbsError"]
        assert found["level"] in ("checks", "run")
        assert (found["device"] is None) == (found["level"] == "checks")
        assert datetime.fromisoformat(found["at"]).tzinfo == UTC


def test_a_record_shows_it() -> None:
    for found in load_catalog().records:
        repro: dict[str, Any] | None = found.x["repro"]
        if repro is not None:
            assert repro["lastVerified"] == WRITTEN[found.record.id]


def test_only_what_no_run_can_show_is_left_at_level_checks() -> None:
    left = {fault.name for fault in FAULTS.values() if WRITTEN.get(fault.id, {}).get("level") == "checks"}
    assert left >= NOT_HERE
    assert len(left) < len(WRITTEN) / 5


def named(name: str) -> Fault:
    return next(fault for fault in FAULTS.values() if fault.name == name)


@pytest.mark.parametrize(
    "name",
    [
        "per_token_group_quant/unsupported_scale_dtype",
        "per_token_group_quant/group_size_does_not_divide",
        "quanto_int8_checkpoint/aux_scale_not_scalar",
        "comfy_checkpoint/nvfp4_types",
        "safetensors_file/header_too_large",
        *sorted(NOT_HERE),
    ],
)
def test_running_it_again_finds_the_same(triton_mode: None, name: str) -> None:
    fault = named(name)
    again = verified.verify(fault, "cpu")
    assert again is not None
    written = WRITTEN[fault.id]
    assert (again.level, again.max_abs_error) == (written["level"], written["maxAbsError"])


def test_a_record_without_a_call_is_not_verified() -> None:
    assert verified.verify(named("quanto_int8_checkpoint/config_from_dictionary"), "cpu") is None


class _Shown(Fault):
    """A fault that shows something else than its own example."""

    shown_instead: Demonstration

    @cached_property
    def shown(self) -> Demonstration | None:
        return self.shown_instead


def showing(fault: Fault, **changes: Any) -> Fault:
    other = _Shown(fault.repo, fault.message, fault.path, fault.cases)
    assert fault.shown is not None
    object.__setattr__(other, "shown_instead", replace(fault.shown, **changes))
    return other


def test_an_example_that_does_something_else_is_told(triton_mode: None) -> None:
    fault = named("per_token_group_quant/unsupported_scale_dtype")
    assert fault.shown is not None
    operation = fault.shown.case.operation
    passes = showing(fault, call=operation.valid)
    with pytest.raises(verified.Unverified, match="the checks say otherwise"):
        verified.verify(passes, "cpu")
    unrepaired = showing(fault, fix=Fix("nothing", fault.shown.call, safe=True))
    with pytest.raises(verified.Unverified, match="the checks say otherwise"):
        verified.verify(unrepaired, "cpu")
    other = next(iter(type(fault.shown.violation).find(fault.shown.call.with_dtype("output_s", DType.U8))))
    misquoted = showing(fault, violation=other)
    with pytest.raises(verified.Unverified, match="raised ValueError"):
        verified.verify(misquoted, "cpu")


def test_the_command_writes_what_it_found_and_counts_what_is_wrong(
    triton_mode: None, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    fault = named("quanto_int8_checkpoint/aux_scale_not_scalar")
    monkeypatch.setattr(verified, "FILE", tmp_path / "verified.json")
    assert verified.main([fault.id]) == 0
    found = json.loads((tmp_path / "verified.json").read_text())
    assert found[fault.id]["level"] == "run"
    with pytest.raises(SystemExit, match="no record has the id"):
        verified.main(["0" * 16])
