"""The walk: order, premises, loops and stages, on a small operation of its own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Self

import pytest

from kernels.call import Call, argument, arguments_json
from kernels.checking import Check, Each, Given, Origin, Severity, Status, Step, aside
from kernels.dtypes import DType
from kernels.examining import examine, guard
from kernels.message import parse, render
from kernels.spec import TensorSpec
from kernels.upstream import SGLANG, File

FILE = File(SGLANG, "some/file.py", length=30)


@dataclass(frozen=True)
class Sum(Call):
    rows: tuple[int, ...] = argument("numbers to add")
    limit: int = argument("largest allowed", default=10)
    out: TensorSpec | None = argument("where to write", default=None)


@dataclass(frozen=True)
class NoRows(Check[Sum]):
    raises = ValueError
    message = "no rows"
    sites = (FILE.at("add", 4),)
    reason = "there is nothing to add"
    looks_at = ("rows",)
    requires = "at least one row"
    category = "presence"

    @classmethod
    def find(cls, call: Sum, /) -> Iterator[Self]:
        if not call.rows:
            yield cls()


@dataclass(frozen=True)
class TooLarge(Check[int]):
    raises = OverflowError
    message = "row {value!r} of {limit}"
    sites = (FILE.at("add", 25),)
    reason = "{value} is {over} too large"
    looks_at = ("rows",)
    requires = "rows of at most 10"
    category = "values"
    value: int
    limit: int
    over: int = aside()

    @classmethod
    def find(cls, row: int, /) -> Iterator[Self]:
        if row > 10:
            yield cls(row, 10, row - 10)


@dataclass(frozen=True)
class Odd(Check[int]):
    raises = ValueError
    reason = "{value} is odd"
    requires = "even rows"
    category = "values"
    severity = Severity.WARNING
    premises = (TooLarge,)
    value: int

    @classmethod
    def find(cls, row: int, /) -> Iterator[Self]:
        if row % 2:
            yield cls(row)


@dataclass(frozen=True)
class OutTooSmall(Check[Sum]):
    raises = RuntimeError
    message = "out is too small"
    sites = (FILE.at("add", 28),)
    reason = "out has no room"
    looks_at = ("out.shape",)
    requires = "one element"
    category = "shape"

    @classmethod
    def find(cls, call: Sum, /) -> Iterator[Self]:
        assert call.out is not None
        if call.out.numel < 1:
            yield cls()


@dataclass(frozen=True)
class Zero(Check[int]):
    raises = ValueError
    message = "a zero"
    reason = "a row is zero"
    requires = "no zeros"
    category = "values"
    reads_values = True

    @classmethod
    def find(cls, row: int, /) -> Iterator[Self]:
        if row == 0:
            yield cls()


def allocate(call: Sum) -> Sum:
    return call if call.out is not None else call.replace(out=TensorSpec((1,), DType.I64))


STAGES = (
    NoRows,
    Step(allocate, premises=(NoRows,)),
    Each(lambda call: call.rows, (TooLarge, Odd), premises=(NoRows,)),
    Given((NoRows,), (OutTooSmall,)),
)


def statuses(call: Sum) -> dict[str, Status]:
    return {outcome.check.id(): outcome.status for outcome in examine(STAGES, call).outcomes}


def test_a_valid_call_passes_everything_and_the_guard_is_silent() -> None:
    call = Sum((2, 4))
    guard(STAGES, call)
    assert set(statuses(call).values()) == {Status.PASSED}


def test_a_failed_premise_leaves_what_needs_it_unreached() -> None:
    assert statuses(Sum(())) == {
        "no_rows": Status.FAILED,
        "too_large": Status.NOT_REACHED,
        "odd": Status.NOT_REACHED,
        "out_too_small": Status.NOT_REACHED,
    }


def test_a_loop_finishes_an_item_before_the_next_and_keeps_one_row_a_check() -> None:
    examination = examine(STAGES, Sum((3, 12, 13)))
    assert examination.raised == TooLarge(12, 10, 2)
    rows = {outcome.check: outcome for outcome in examination.outcomes}
    assert [found.violation for found in rows[TooLarge].occurrences] == [
        TooLarge(12, 10, 2),
        TooLarge(13, 10, 3),
    ]
    assert [found.violation for found in rows[Odd].occurrences] == [Odd(3)]


def test_the_guard_raises_the_first_violation_in_upstreams_words() -> None:
    with pytest.raises(OverflowError) as caught:
        guard(STAGES, Sum((3, 12), out=TensorSpec((0,), DType.I64)))
    assert str(caught.value) == "row 12 of 10"
    assert caught.value.violation == TooLarge(12, 10, 2)  # type: ignore[attr-defined]


def test_the_guard_reads_no_values_in_loops_either() -> None:
    stages = (Each(lambda call: call.rows, (TooLarge, Zero)),)
    guard(stages, Sum((0,)))
    assert examine(stages, Sum((0,))).rejected
    with pytest.raises(OverflowError):
        guard(stages, Sum((0, 11)))


def test_a_later_check_is_evaluated_although_an_earlier_one_failed() -> None:
    assert statuses(Sum((12,), out=TensorSpec((0,), DType.I64)))["out_too_small"] is Status.FAILED


def test_a_warning_of_our_own_neither_raises_nor_rejects_and_comes_last() -> None:
    call = Sum((3,))
    guard(STAGES, call)
    examination = examine(STAGES, call)
    assert (examination.raised, examination.rejected) == (None, False)
    assert examination.outcomes[-1].check is Odd
    assert Odd.origin() is Origin.BEYOND


def test_a_violation_explains_itself_with_printed_and_kept_fields() -> None:
    violation = TooLarge(12, 10, 2)
    assert violation.explain() == "12 is 2 too large"
    assert violation.printed_fields() == ("value", "limit")
    assert NoRows().describe_actual(Sum(())) == "rows = ()"
    assert OutTooSmall().describe_actual(Sum(())) == "out.shape = absent"


def test_a_site_links_to_the_lines_around_it_within_the_file() -> None:
    assert NoRows.sites[0].url is not None
    assert NoRows.sites[0].url.endswith("some/file.py#L1-L22")
    assert TooLarge.sites[0].url is not None
    assert TooLarge.sites[0].url.endswith("#L7-L30")
    assert FILE.at("add", None, 9).url is None


def test_edits_name_each_changed_attribute_in_signature_order() -> None:
    before = Sum((1,), out=TensorSpec((4, 2), DType.F32))
    after = Sum((1,), 3, TensorSpec((2, 4), DType.F32, offset=8))
    found = [(edit.argument, edit.attribute, edit.before, edit.after) for edit in before.edits_to(after)]
    assert found == [
        ("limit", "value", 10, 3),
        ("out", "shape", [4, 2], [2, 4]),
        ("out", "strides", [2, 1], [4, 1]),
        ("out", "offset", 0, 8),
    ]
    removed = before.edits_to(before.without("out"))
    assert [(edit.attribute, edit.after) for edit in removed] == [("presence", None)]


def test_one_and_true_are_different_values() -> None:
    assert [edit.attribute for edit in Sum((1,), 1).edits_to(Sum((1,), True))] == ["value"]


def test_arguments_at_their_defaults_are_not_written() -> None:
    call = Sum((1, 2), out=TensorSpec((2,), DType.I64, offset=1))
    assert arguments_json(call) == {
        "rows": [1, 2],
        "out": {"shape": [2], "dtype": "int64", "strides": [1], "offset": 1},
    }


def test_holes_are_opaque_and_keep_their_conversion() -> None:
    message = "scale {names['a']!r} of {tuple(x.shape)} is {{odd}}"
    assert [part if isinstance(part, str) else part.text for part in parse(message)] == [
        "scale ",
        "names['a']!r",
        " of ",
        "tuple(x.shape)",
        " is {",
        "odd}",
    ]
    assert render(message, ["k", (2, 1)]) == "scale 'k' of (2, 1) is {odd}"
    with pytest.raises(ValueError, match="too few"):
        render(message, ["k"])
    with pytest.raises(ValueError, match="too many"):
        render(message, [1, 2, 3])
