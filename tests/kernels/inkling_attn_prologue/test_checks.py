"""Every refusal of the three prologues: class and exact text, its fixes, and the example of each check."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import pytest

from kernels.checking import Check, Origin, Status
from kernels.dtypes import DType
from kernels.inkling_attn_prologue.checks import OPERATIONS
from kernels.inkling_attn_prologue.signature import (
    PYTHON,
    DecodeCall,
    ExtendCall,
    PrologueCall,
    VerifyCall,
)
from kernels.registry import Operation
from kernels.spec import TensorSpec
from kernels.values import Full, Listed, Values, bounds

DECODE, VERIFY, EXTEND = OPERATIONS
ALL = pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.name)

PROLOGUE = "MXFP8 fused prologue requires "
DECODE_PROLOGUE = "MXFP8 fused decode prologue requires "
HEADS = "head_dim-aligned Q/K/V."
BUFFERS = "K/V scale buffers."
SHAPES = "interleaved K/V scale buffers with shape {sf_shape}, got {tuple(sfk.shape)} and {tuple(sfv.shape)}."
DENSE = "contiguous interleaved SFK/SFV."


@pytest.mark.parametrize(
    ("operation", "prefix", "decode", "lines"),
    [
        (DECODE, DECODE_PROLOGUE, "decode_", [(323,), (327,), (330,), (335,)]),
        (VERIFY, PROLOGUE, "", [(92, 209), (94, 211), (97, 214), (102, 219)]),
        (EXTEND, PROLOGUE, "", [(92, 209), (94, 211), (97, 214), (102, 219)]),
    ],
)
def test_upstreams_checks_are_these_in_this_order(
    operation: Operation, prefix: str, decode: str, lines: list[tuple[int, ...]]
) -> None:
    declared = [check for check in operation.checks if PYTHON in [site.file for site in check.sites]]
    assert [check.message for check in declared] == [
        prefix + rest for rest in (HEADS, BUFFERS, SHAPES, DENSE)
    ]
    assert [check.id().removeprefix(decode) for check in declared] == [
        "heads_not_aligned",
        "scale_buffers_missing",
        "scale_buffer_shape",
        "scale_buffer_gaps",
    ]
    assert [tuple(site.pinned for site in check.sites) for check in declared] == lines
    assert all(site.pinned == site.released for check in declared for site in check.sites)
    assert {check.raises for check in declared} == {ValueError}
    own = operation.name
    assert all(own in [site.function for site in check.sites] for check in declared)


def base(operation: Operation) -> PrologueCall:
    """What the failing configurations vary: three tokens, rows of 528 elements, one head of keys."""
    given: dict[str, Any] = {
        "qkvr": TensorSpec((3, 528), DType.BF16),
        "k_cache": TensorSpec((8, 3, 128), DType.BF16),
        "k_buf": TensorSpec((256, 1, 128), DType.BF16),
        "dq": 256,
        "dkv": 128,
    }
    if operation is not DECODE:
        given["cache_indices"] = TensorSpec((1,), DType.I32)
    call = operation.fit(given)
    assert isinstance(call, PrologueCall)
    assert (call.q_off, call.k_off, call.v_off) == (0, 256, 384)
    assert not operation.examine(call).failed()
    return call


def quantized(operation: Operation) -> PrologueCall:
    """The base with MXFP8, page 128 and scale buffers (2, 1, 32, 4, 4)."""
    call = base(operation).quantized()
    assert call.sfk is not None
    assert call.sfk.shape == (2, 1, 32, 4, 4)
    assert not operation.examine(call).failed()
    return call


@dataclass(frozen=True)
class Failing:
    changes: Mapping[str, Any]
    raises: type[Exception]
    text: str
    failed: str


SCALES = TensorSpec((2, 1, 32, 4, 4), DType.U8)
WRONG = "interleaved K/V scale buffers with shape {}, got {} and {}."
FAILING = {
    "G1": Failing({"dq": 192}, ValueError, HEADS, "heads_not_aligned"),
    "G1 dkv": Failing({"dkv": 192}, ValueError, HEADS, "heads_not_aligned"),
    "G2": Failing({"sfk": None}, ValueError, BUFFERS, "scale_buffers_missing"),
    "G2 sfv": Failing({"sfv": None}, ValueError, BUFFERS, "scale_buffers_missing"),
    "G3": Failing(
        {"sfk": SCALES.with_shape(1, 1, 32, 4, 4)},
        ValueError,
        WRONG.format("(2, 1, 32, 4, 4)", "(1, 1, 32, 4, 4)", "(2, 1, 32, 4, 4)"),
        "scale_buffer_shape",
    ),
    "G4": Failing(
        dict.fromkeys(("k_buf", "v_buf"), TensorSpec((100, 1, 128), DType.F8_E4M3FN)),
        ValueError,
        WRONG.format("(0, 1, 32, 4, 4)", "(2, 1, 32, 4, 4)", "(2, 1, 32, 4, 4)"),
        "scale_buffer_shape",
    ),
    "the seed's": Failing(
        {"sfk": SCALES.with_shape(2, 1, 32, 4), "sfv": SCALES.with_shape(2, 1, 32, 4)},
        ValueError,
        WRONG.format("(2, 1, 32, 4, 4)", "(2, 1, 32, 4)", "(2, 1, 32, 4)"),
        "scale_buffer_shape",
    ),
    "negative page": Failing(
        {"page_size": -128},
        ValueError,
        WRONG.format("(-2, 1, 32, -4, 4)", "(2, 1, 32, 4, 4)", "(2, 1, 32, 4, 4)"),
        "scale_buffer_shape",
    ),
    "G5": Failing(
        {"sfk": replace(SCALES, strides=(1024, 1024, 32, 8, 1))}, ValueError, DENSE, "scale_buffer_gaps"
    ),
    "G23": Failing(
        {"page_size": 0}, ZeroDivisionError, "integer division or modulo by zero", "page_size_is_zero"
    ),
    "page of 0.0": Failing(
        {"page_size": 0.0}, ZeroDivisionError, "float floor division by zero", "page_size_is_float_zero"
    ),
    "page absent": Failing(
        {"page_size": None},
        TypeError,
        "unsupported operand type(s) for //: 'int' and 'NoneType'",
        "page_size_is_not_a_number",
    ),
    "width absent": Failing(
        {"dkv": None},
        TypeError,
        "unsupported operand type(s) for %: 'NoneType' and 'int'",
        "width_is_not_a_number",
    ),
    "width a word": Failing(
        {"dq": "256"},
        TypeError,
        "not all arguments converted during string formatting",
        "width_is_text",
    ),
    "pool without slots": Failing(
        {"k_buf": TensorSpec((), DType.F8_E4M3FN)},
        IndexError,
        "tuple index out of range",
        "k_buf_has_no_slots",
    ),
    "rows absent": Failing(
        {"qkvr": TensorSpec((), DType.BF16)}, IndexError, "tuple index out of range", "qkvr_has_no_rows"
    ),
}


@ALL
@pytest.mark.parametrize("row", FAILING)
def test_refused_with_upstreams_class_and_text(operation: Operation, row: str) -> None:
    case = FAILING[row]
    examination = operation.examine(quantized(operation).replace(**case.changes))
    assert examination.raised is not None
    error = examination.raised.exception()
    prefix = (DECODE_PROLOGUE if operation is DECODE else PROLOGUE) if case.raises is ValueError else ""
    assert (type(error), str(error)) == (case.raises, prefix + case.text)
    failed = [outcome.check for outcome in examination.failed()]
    upstream = [check for check in failed if check.origin() is Origin.UPSTREAM]
    assert [check.id().removeprefix("decode_") for check in upstream] == [case.failed]


@ALL
@pytest.mark.parametrize("row", FAILING)
def test_the_first_fix_is_enough(operation: Operation, row: str) -> None:
    call = quantized(operation).replace(**FAILING[row].changes)
    found = operation.examine(call).failed()[0].occurrences[0]
    fix = next(iter(found.violation.fixes(found.subject)))
    assert fix.edits(call)
    assert not operation.examine(fix.call).failed()


FIRST_FIXES = {
    "G1": [("dq", "value", 256)],
    "G1 dkv": [("dkv", "value", 128)],
    "G4": [("k_buf", "shape", [256, 1, 128]), ("v_buf", "shape", [256, 1, 128])],
    "G5": [("sfk", "strides", [512, 512, 16, 4, 1])],
    "G23": [("page_size", "value", 128)],
}


@pytest.mark.parametrize("row", FIRST_FIXES)
def test_what_the_first_fix_changes(row: str) -> None:
    call = quantized(DECODE).replace(**FAILING[row].changes)
    raised = DECODE.examine(call).raised
    assert raised is not None
    fix = next(iter(raised.fixes(call)))
    assert [(edit.argument, edit.attribute, edit.after) for edit in fix.edits(call)] == FIRST_FIXES[row]


def test_buffers_made_for_another_page_size_name_it() -> None:
    paged = base(DECODE).replace(page_size=64).quantized()
    call = paged.replace(page_size=128)
    raised = DECODE.examine(call).raised
    assert raised is not None
    first, second = raised.fixes(call)
    assert first.call == paged
    assert not first.safe
    assert second.call.scale_shape == (2, 1, 32, 4, 4)
    assert not DECODE.examine(second.call).failed()


@pytest.mark.parametrize("sizes", [(1, 256), (2, 300), (3, 640)])
def test_growing_a_pool_to_whole_pages_resizes_the_buffers_that_need_it(sizes: tuple[int, int]) -> None:
    pages, slots = sizes
    call = quantized(DECODE)
    for name in ("k_buf", "v_buf"):
        call = call.with_tensor(name, shape=(slots, 1, 128))
    for name in ("sfk", "sfv"):
        call = call.with_tensor(name, shape=(pages, 1, 32, 4, 4))
    raised = DECODE.examine(call).raised
    if raised is None:
        assert slots // 128 == pages
        return
    [fix] = raised.fixes(call)
    assert not DECODE.examine(fix.call).failed()
    grown = fix.call.k_buf.shape[0]
    assert grown % 128 == 0
    assert grown >= slots


@ALL
def test_without_quantization_its_arguments_are_not_looked_at(operation: Operation) -> None:
    call = base(operation).replace(sfk=TensorSpec((7,), DType.F32), page_size=0)
    assert all(outcome.status is Status.PASSED for outcome in operation.examine(call).outcomes)


@ALL
def test_a_shape_that_cannot_be_computed_is_not_compared(operation: Operation) -> None:
    call = quantized(operation).replace(page_size=0, sfk=None)
    outcomes = {o.check.id().removeprefix("decode_"): o.status for o in operation.examine(call).outcomes}
    assert outcomes["scale_buffers_missing"] is Status.FAILED
    assert outcomes["page_size_is_zero"] is Status.FAILED
    assert outcomes["scale_buffer_shape"] is Status.NOT_REACHED
    assert outcomes["heads_not_aligned"] is Status.PASSED


CASES = [
    (operation, check)
    for operation in OPERATIONS
    for check in operation.checks
    if check.origin() is Origin.UPSTREAM and not check.unreachable
]


@pytest.mark.parametrize(("operation", "check"), CASES, ids=lambda item: getattr(item, "name", None))
def test_an_example_breaks_its_own_check_first_and_every_fix_passes_it(
    operation: Operation, check: type[Check[Any]]
) -> None:
    example = check.example()
    assert isinstance(example, operation.call)
    found = operation.examine(example)
    assert type(found.raised) is check
    [first] = [o.occurrences[0] for o in found.failed() if o.check is check]
    fixes = list(first.violation.fixes(first.subject))
    assert fixes
    for fix in fixes:
        [outcome] = [o for o in operation.examine(fix.call).outcomes if o.check is check]
        assert outcome.status is Status.PASSED, fix.title


@ALL
@pytest.mark.parametrize("value", [None, True, -128, 0, 0.5, 1e300, "x", "%d", 10**30])
@pytest.mark.parametrize("name", ["dq", "dkv", "page_size", "q_off", "k_off", "eps", "draft_token_num"])
def test_odd_scalars_are_examined_and_never_break_a_check(
    operation: Operation, name: str, value: Any
) -> None:
    if name not in {parameter.name for parameter in operation.call.arguments()}:
        return
    for given in ({name: value}, {name: value, "mxfp8_quant": True, "sfk": SCALES, "sfv": SCALES}):
        call = operation.fit(given)
        operation.fill(call)
        for outcome in operation.examine(call).failed():
            for occurrence in outcome.occurrences:
                assert occurrence.violation.explain()
                for fix in occurrence.violation.fixes(occurrence.subject):
                    operation.examine(fix.call)


GIVEN: list[tuple[Operation, Mapping[str, Any], Mapping[str, Any]]] = [
    (
        DECODE,
        {
            "qkvr": TensorSpec((6, 512), DType.BF16, strides=(1088, 1)),
            "k_cache": TensorSpec((12, 3, 256), DType.BF16),
        },
        {"dq": 512, "k_off": 512, "v_off": 768, "k_weight": (256, 4), "k_buf": (256, 2, 128), "loc": (6,)},
    ),
    (
        DECODE,
        {"qkvr": TensorSpec((2, 528), DType.BF16), "k_weight": TensorSpec((128, 3), DType.BF16)},
        {"dq": 256, "k_cache": (8, 2, 128), "v_weight": (128, 3)},
    ),
    (
        DECODE,
        {"mxfp8_quant": True, "sfk": TensorSpec((3, 2, 32, 4, 4), DType.U8)},
        {"k_buf": (384, 2, 128), "dkv": 256, "v_off": 512},
    ),
    (VERIFY, {"draft_token_num": 4}, {"qkvr": (8, 512), "k_inter": (2, 4, 3, 128)}),
    (VERIFY, {"qkvr": TensorSpec((7, 512), DType.BF16)}, {"cache_indices": (1,), "draft_token_num": 7}),
    (
        VERIFY,
        {"k_inter": TensorSpec((3, 2, 3, 256), DType.BF16)},
        {"qkvr": (6, 768), "v_inter": (3, 2, 3, 256)},
    ),
    (EXTEND, {"cu": TensorSpec((4,), DType.I64)}, {"qkvr": (9, 512), "track_rows": (3, 3), "si": (9,)}),
    (EXTEND, {"qkvr": TensorSpec((0, 512), DType.BF16)}, {"cu": (1,), "loc": (0,)}),
    (EXTEND, {"track_mask": TensorSpec((0,), DType.BOOL)}, {"cu": (3,), "track_dst": (2,)}),
]


@pytest.mark.parametrize(("operation", "given", "wanted"), GIVEN)
def test_a_partial_call_is_completed_to_fit(
    operation: Operation, given: Mapping[str, Any], wanted: Mapping[str, Any]
) -> None:
    call = operation.fit(given)
    found = {name: getattr(call, name) for name in wanted}
    assert {name: getattr(value, "shape", value) for name, value in found.items()} == wanted
    assert {name: getattr(call, name) for name in given} == given


@ALL
def test_each_argument_alone_completes_to_a_valid_call(operation: Operation) -> None:
    assert operation.fit({}) == operation.valid
    for name, tensor in operation.valid.tensors():
        moved = operation.fit({name: replace(tensor, device="cuda:1")})
        assert not operation.examine(moved).failed()
        assert {tensor.device for _, tensor in moved.tensors()} == {"cuda:1"}


def spread(values: Values, count: int) -> list[float]:
    """The elements of an arithmetic sequence, a list or a constant."""
    if isinstance(values, Listed):
        return list(values.flat())[:count]
    low, high = bounds(values, (max(count, 1),)) or (None, None)
    assert low is not None
    assert high is not None
    return [low + (high - low) * index / max(count - 1, 1) for index in range(count)]


FILLED = [operation.fit(given) for operation, given, _ in GIVEN] + [
    operation.valid.quantized() for operation in OPERATIONS
]
CROWDED = DECODE.fit(
    {
        "qkvr": TensorSpec((9, 512), DType.BF16),
        "k_cache": TensorSpec((4, 3, 128), DType.BF16),
        "k_buf": TensorSpec((5, 1, 128), DType.BF16),
    }
)


@pytest.mark.parametrize("call", [*FILLED, CROWDED])
def test_the_fill_gives_every_token_slots_of_its_own(call: PrologueCall) -> None:
    operation = next(operation for operation in OPERATIONS if operation.call is type(call))
    values = operation.fill(call)
    assert set(values) == {name for name, _ in call.tensors()}
    for name, slots in (("cache_indices", call.k_cache.shape[0]), ("loc", call.k_buf.shape[0])):
        chosen = spread(values[name], getattr(call, name).numel)
        used = [slot for slot in chosen if slot >= 0]
        assert len(set(used)) == len(used)
        assert all(slot < slots for slot in used)
        assert used or not chosen or slots < len(chosen)


def test_the_fill_of_described_padding_masks_it_and_tracks_elsewhere() -> None:
    indices = TensorSpec((3,), DType.I32, values=Listed((1, -1, 5)))
    call = DECODE.valid.replace(
        cache_indices=indices,
        track_mask=TensorSpec((3,), DType.BOOL),
        track_indices=TensorSpec((3,), DType.I64),
    )
    values = DECODE.fill(call)
    assert values["cache_mask"] == Listed((True, False, True))
    assert values["track_indices"] == Listed((0, 2, 3))
    unknown = call.with_tensor("cache_indices", values=Full(-1))
    assert (
        DECODE.fill(unknown)["track_mask"]
        == DECODE.fill(CROWDED.replace(track_mask=call.track_mask, track_indices=call.track_indices))[
            "track_mask"
        ]
    )


@pytest.mark.parametrize(("tokens", "sequences"), [(6, 2), (7, 3), (3, 5), (5, 1), (12, 12), (1, 0), (0, 3)])
def test_the_fill_splits_tokens_into_consistent_sequences(tokens: int, sequences: int) -> None:
    call = EXTEND.fit(
        {
            "qkvr": TensorSpec((tokens, 512), DType.BF16),
            "cache_indices": TensorSpec((sequences,), DType.I32),
        }
    )
    values = EXTEND.fill(call)
    starts = [int(start) for start in spread(values["cu"], sequences + 1)]
    owners = [int(owner) for owner in spread(values["si"], tokens)]
    assert starts[0] == 0
    assert starts == sorted(starts)
    if sequences:
        assert starts[-1] == tokens
        assert all(starts[owner] <= token < starts[owner + 1] for token, owner in enumerate(owners))


def test_signatures_are_upstreams() -> None:
    decode, verify, extend = (
        [parameter.name for parameter in call.arguments()] for call in (DecodeCall, VerifyCall, ExtendCall)
    )
    shared = ["q_gamma", "k_gamma", "eps", "loc", "k_buf", "v_buf", "q_off", "k_off", "v_off", "dq", "dkv"]
    rows = ["qkvr", "k_cache", "v_cache", "cache_indices", "cache_mask"]
    quantization = ["do_store", "mxfp8_quant", "sfk", "sfv", "page_size"]
    assert decode == [
        *rows,
        "k_weight",
        "v_weight",
        *shared,
        "activation",
        "use_residual",
        "track_mask",
        "track_indices",
        *quantization,
        "log_scaling_tau",
    ]
    assert verify == [
        *rows,
        "k_weight",
        "v_weight",
        "k_inter",
        "v_inter",
        *shared,
        "draft_token_num",
        "activation",
        "use_residual",
        *quantization,
        "log_scaling_tau",
    ]
    assert extend == [
        *rows,
        "has_initial_state",
        "cu",
        "si",
        "k_weight",
        "v_weight",
        "track_rows",
        "track_mask",
        "track_dst",
        *shared,
        "activation",
        "use_residual",
        *quantization,
        "do_cache_update",
        "log_scaling_tau",
    ]
    required = {
        call: sum(parameter.required for parameter in call.arguments())
        for call in (DecodeCall, VerifyCall, ExtendCall)
    }
    assert required == {DecodeCall: 18, VerifyCall: 21, ExtendCall: 24}
