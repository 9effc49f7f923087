"""What the compiled launchers, the compiler and Python's conversions refuse: texts, lines and order."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from kernels.checking import Origin, Status
from kernels.dtypes import DType
from kernels.inkling_attn_prologue.bound import CUDA, RUN
from kernels.inkling_attn_prologue.derived import view_strides
from kernels.inkling_attn_prologue.signature import PrologueCall
from kernels.registry import Operation
from kernels.spec import TensorSpec
from tests.kernels.inkling_attn_prologue.calls import DECODE, EXTEND, KINDS, VERIFY, base, failed, raised

PLACE = "Failed at python/sglang/kernels/jit/csrc/inkling/inkling_attn_prologue_fused.cuh:"
Change = Callable[[PrologueCall], PrologueCall]
ALL = pytest.mark.parametrize("operation", KINDS.values(), ids=list(KINDS))
BF16, F32, FP8, I32, I64 = DType.BF16, DType.F32, DType.F8_E4M3FN, DType.I32, DType.I64

ORDER = {
    "verify": """404 T != B*q|405 dims % head_dim|406 q lanes must tile heads
        |407 qkvr must be row-major with 16B-aligned rows|409 slice offsets must be 16B aligned
        |412 kv buf stride mismatch|413 conv caches must be channel-contiguous
        |414 inter buffers must be channel-contiguous with equal strides|419 token lanes must fit one block
        |421 MXFP8 fused prologue requires do_store=True|422 MXFP8 dims must tile 32-element scale blocks
        |423 MXFP8 page size must tile 32-token scale blocks|424 MXFP8 q_out must be fp8_e4m3
        |425 MXFP8 KV buffers must be fp8_e4m3|428 MXFP8 scale buffers must be passed as uint8 views
        |431 MXFP8 q_out must be contiguous|432 MXFP8 sfq must be contiguous [T, Hq, 4]
        |437 MXFP8 SFK/SFV must be 5D interleaved
        |438 MXFP8 SFK/SFV must use [pages, Hkv, 32, page/32, 4] layout
        |443 MXFP8 SFK/SFV must be contiguous BlockScaledBasicChunk layout|449 MXFP8 kv buf row alignment
        |451 kv buf rows must be 16B aligned|452 q_out dtype mismatch|457 log_tau must be fp32
        |458 log_tau must be contiguous|459 log_tau smaller than T|501 k/v cache+weight strides must match
        |509 CUDA error: {text}""",
    "decode": """809 dims % head_dim|810 q lanes must tile heads
        |811 qkvr must be row-major with 16B-aligned rows
        |813 slice offsets must be 16B aligned|816 conv caches must be channel-contiguous
        |817 k/v cache+weight strides must match|822 token lanes must fit one block|823 kv buf stride mismatch
        |825 MXFP8 fused decode prologue requires do_store=True
        |826 MXFP8 dims must tile 32-element scale blocks
        |827 MXFP8 page size must tile 32-token scale blocks|828 MXFP8 q_out must be fp8_e4m3
        |829 MXFP8 KV buffers must be fp8_e4m3|832 MXFP8 scale buffers must be passed as uint8 views
        |835 MXFP8 q_out must be contiguous|836 MXFP8 sfq must be contiguous [T, Hq, 4]
        |841 MXFP8 SFK/SFV must be 5D interleaved
        |842 MXFP8 SFK/SFV must use [pages, Hkv, 32, page/32, 4] layout
        |847 MXFP8 SFK/SFV must be contiguous BlockScaledBasicChunk layout|853 MXFP8 kv buf row alignment
        |855 kv buf rows must be 16B aligned|856 q_out dtype mismatch|861 log_tau must be fp32
        |862 log_tau must be contiguous|863 log_tau smaller than T|921 CUDA error: {text}""",
    "extend": """1303 dims % head_dim|1304 q lanes must tile heads
        |1305 qkvr must be row-major with 16B-aligned rows|1307 slice offsets must be 16B aligned
        |1310 si must cover T tokens|1311 cu must be [B+1]|1312 per-seq arrays must be [B]
        |1313 conv caches must be channel-contiguous|1314 k/v cache+weight strides must match
        |1319 token lanes must fit one block|1320 kv buf stride mismatch|1323 extend track needs gather rows
        |1326 MXFP8 fused extend prologue requires do_store=True
        |1327 MXFP8 dims must tile 32-element scale blocks
        |1328 MXFP8 page size must tile 32-token scale blocks|1329 MXFP8 q_out must be fp8_e4m3
        |1330 MXFP8 KV buffers must be fp8_e4m3|1333 MXFP8 scale buffers must be passed as uint8 views
        |1336 MXFP8 q_out must be contiguous|1337 MXFP8 sfq must be contiguous [T, Hq, 4]
        |1342 MXFP8 SFK/SFV must be 5D interleaved
        |1343 MXFP8 SFK/SFV must use [pages, Hkv, 32, page/32, 4] layout
        |1348 MXFP8 SFK/SFV must be contiguous BlockScaledBasicChunk layout|1354 MXFP8 kv buf row alignment
        |1356 kv buf rows must be 16B aligned|1357 q_out dtype mismatch|1363 log_tau must be fp32
        |1364 log_tau must be contiguous|1365 log_tau smaller than T|1437 CUDA error: {text}""",
}
UNREACHABLE = {
    "q lanes must tile heads",
    "MXFP8 dims must tile 32-element scale blocks",
    "MXFP8 q_out must be fp8_e4m3",
    "MXFP8 scale buffers must be passed as uint8 views",
    "MXFP8 sfq must be contiguous [T, Hq, 4]",
    "MXFP8 SFK/SFV must be 5D interleaved",
    "q_out dtype mismatch",
    "log_tau must be fp32",
}


@pytest.mark.parametrize("kind", KINDS)
def test_the_launchers_checks_and_their_lines_in_order(kind: str) -> None:
    operation = KINDS[kind]
    own = RUN[operation.call]  # type: ignore[index]
    found = []
    for check in operation.checks:
        lines = [site.pinned for site in check.sites if site.file is CUDA and site.function == own]
        if lines:
            found.append(f"{lines[-1]} {check.message}")
            assert bool(check.unreachable) == (check.message in UNREACHABLE), check.message
    assert found == [" ".join(row.split()) for row in ORDER[kind].split("|")]
    upstream = [check.origin() is Origin.UPSTREAM for check in operation.checks]
    assert upstream == sorted(upstream, reverse=True), "our own checks come last"


def tensor(name: str, /, **attributes: Any) -> Change:
    return lambda call: call.with_tensor(name, **attributes)


def arguments(**changes: Any) -> Change:
    return lambda call: call.replace(**changes)


def quantized(**changes: Any) -> Change:
    return lambda call: call.quantized().replace(**changes)


def paged(page: int, slots: int) -> Change:
    def change(call: PrologueCall) -> PrologueCall:
        for name in ("k_buf", "v_buf"):
            call = call.with_tensor(name, shape=(slots, 1, 128))
        return call.replace(page_size=page).quantized()

    return change


def of(dtype: DType, *names: str) -> Change:
    def change(call: PrologueCall) -> PrologueCall:
        call = call.quantized()
        for name in names:
            call = call.with_dtype(name, dtype)
        return call

    return change


def no_tokens(call: PrologueCall) -> PrologueCall:
    for name in ("qkvr", "cache_indices", "cache_mask", "loc"):
        call = call.with_tensor(name, shape=(0, *getattr(call, name).shape[1:]))
    return call


STATED: dict[str, tuple[Operation, Change, str]] = {
    "G6": (DECODE, quantized(do_store=False), "825: MXFP8 fused decode prologue requires do_store=True"),
    "G6 verify": (VERIFY, quantized(do_store=False), "421: MXFP8 fused prologue requires do_store=True"),
    "G6 extend": (
        EXTEND,
        quantized(do_store=False),
        "1326: MXFP8 fused extend prologue requires do_store=True",
    ),
    "G7": (DECODE, paged(48, 240), "827: MXFP8 page size must tile 32-token scale blocks"),
    "G8": (DECODE, of(BF16, "k_buf", "v_buf"), "829: MXFP8 KV buffers must be fp8_e4m3"),
    "G9": (
        DECODE,
        of(F32, "sfk", "sfv"),
        "842: MXFP8 SFK/SFV must use [pages, Hkv, 32, page/32, 4] layout",
    ),
    "G10": (DECODE, arguments(dq=192), "809: dims % head_dim"),
    "G11": (
        DECODE,
        tensor("qkvr", shape=(3, 517)),
        "811: qkvr must be row-major with 16B-aligned rows",
    ),
    "G12": (DECODE, arguments(k_off=257), "813: slice offsets must be 16B aligned"),
    "G13": (
        DECODE,
        tensor("v_cache", strides=(512, 128, 1)),
        "817: k/v cache+weight strides must match",
    ),
    "G14": (DECODE, tensor("v_buf", strides=(256, 128, 1)), "823: kv buf stride mismatch"),
    "G15": (DECODE, arguments(dq=8192), "822: token lanes must fit one block"),
    "G16": (
        DECODE,
        arguments(log_scaling_tau=TensorSpec((2,), F32)),
        "863: log_tau smaller than T",
    ),
    "G17": (VERIFY, arguments(draft_token_num=2), "404: T != B*q"),
    "G18": (
        VERIFY,
        tensor("v_inter", strides=(2048, 512, 128, 1)),
        "414: inter buffers must be channel-contiguous with equal strides",
    ),
    "G19": (EXTEND, tensor("cu", shape=(3,)), "1311: cu must be [B+1]"),
    "G20": (EXTEND, tensor("track_rows", shape=(0,)), "1323: extend track needs gather rows"),
    "G22": (DECODE, no_tokens, "921: CUDA error: invalid argument"),
    "G22 verify": (VERIFY, no_tokens, "509: CUDA error: invalid argument"),
    "one row counts": (
        EXTEND,
        lambda call: call.replace(
            qkvr=TensorSpec((1, 528), BF16, (517, 1)),
            cu=replace(call.cu, values=None),  # type: ignore[attr-defined]
        ),
        "1305: qkvr must be row-major with 16B-aligned rows",
    ),
    "tau a column": (
        VERIFY,
        arguments(log_scaling_tau=TensorSpec((3, 1), F32, (4, 1))),
        "458: log_tau must be contiguous",
    ),
    "no queries": (EXTEND, quantized(dq=0), "1336: MXFP8 q_out must be contiguous"),
    "FP8 slots of 136": (
        DECODE,
        lambda call: (
            call.quantized()
            .with_tensor("k_buf", strides=(136, 128, 1))
            .with_tensor("v_buf", strides=(136, 128, 1))
        ),
        "853: MXFP8 kv buf row alignment",
    ),
}


@pytest.mark.parametrize("row", STATED)
def test_refused_with_the_launchers_text(row: str) -> None:
    operation, change, text = STATED[row]
    call = change(base(operation))
    assert raised(operation, call) == ("RuntimeError", PLACE + text)
    violation = operation.examine(call).raised
    assert violation is not None
    for fix in violation.fixes(call):
        [own] = [o for o in operation.examine(fix.call).outcomes if o.check is type(violation)]
        assert own.status is Status.PASSED, fix.title


NOT_REFUSED: dict[str, tuple[Operation, Change]] = {
    "draft_token_num 3": (VERIFY, arguments(draft_token_num=3)),
    "48 query heads and 8 of keys": (DECODE, arguments(dq=8192 - 2 * 128)),
    "offsets beyond the slice": (
        DECODE,
        lambda call: call.replace(qkvr=TensorSpec((3, 256), BF16, (528, 1))),
    ),
    "tau in bfloat16, strided": (DECODE, arguments(log_scaling_tau=TensorSpec((3,), BF16, (2,)))),
    "tau longer": (DECODE, arguments(log_scaling_tau=TensorSpec((4, 1), F32))),
    "pages of 32": (EXTEND, paged(32, 256)),
    "scales as E8M0": (VERIFY, of(DType.F8_E8M0, "sfk", "sfv")),
    "per-layer slices": (
        EXTEND,
        lambda call: call.with_tensor("k_buf", strides=(512, 128, 1)).with_tensor(
            "v_buf", strides=(512, 128, 1)
        ),
    ),
    "counts as text": (DECODE, arguments(k_off="256", v_off=384.0, do_store=1)),
}


@pytest.mark.parametrize("row", NOT_REFUSED)
def test_what_upstream_takes(row: str) -> None:
    operation, change = NOT_REFUSED[row]
    assert raised(operation, change(base(operation))) is None


SIGNATURE = ", ".join(
    f"{index}: {'float' if index == 11 else 'int' if index in range(21, 27) else 'DLTensor*'}"
    for index in range(28)
)
ACCIDENTS: dict[str, tuple[Operation, Change, tuple[str, str]]] = {
    "G21": (
        DECODE,
        arguments(dkv=64),
        ("RuntimeError", "shape '[-1, 0]' is invalid for input of size 32768"),
    ),
    "negative dq": (
        DECODE,
        arguments(dq=-128),
        ("RuntimeError", "Trying to create tensor with negative dimension -128: [3, -128]"),
    ),
    "k_weight of one dimension": (
        EXTEND,
        tensor("k_weight", shape=(512,)),
        ("IndexError", "tuple index out of range"),
    ),
    "a head cut in two": (
        VERIFY,
        tensor("v_buf", shape=(256, 2, 64), strides=(256, 128, 1)),
        (
            "RuntimeError",
            (
                "view size is not compatible with input tensor's size and stride (at least one dimension "
                "spans across two contiguous subspaces). Use .reshape(...) instead."
            ),
        ),
    ),
    "eps a word": (DECODE, arguments(eps="x"), ("ValueError", "could not convert string to float: 'x'")),
    "eps absent": (
        DECODE,
        arguments(eps=None),
        ("TypeError", "float() argument must be a string or a real number, not 'NoneType'"),
    ),
    "offset absent": (
        DECODE,
        arguments(v_off=None),
        (
            "TypeError",
            "int() argument must be a string, a bytes-like object or a real number, not 'NoneType'",
        ),
    ),
    "offset a word": (
        VERIFY,
        arguments(q_off="x"),
        ("ValueError", "invalid literal for int() with base 10: 'x'"),
    ),
    "offset of 65 bits": (
        EXTEND,
        arguments(q_off=2**64),
        ("OverflowError", "Python int too large to convert to C long"),
    ),
    "width a float": (
        VERIFY,
        arguments(dq=256.0),
        (
            "TypeError",
            (
                "empty(): argument 'size' failed to unpack the object at pos 2 with error "
                '"type must be tuple of ints,but got float"'
            ),
        ),
    ),
    "flag absent": (
        DECODE,
        arguments(use_residual=None),
        ("TypeError", "Unsupported argument type for cpp template: <class 'NoneType'>"),
    ),
    "complex rows": (DECODE, tensor("qkvr", dtype=DType.C64), ("KeyError", "torch.complex64")),
    "state of two dimensions": (
        DECODE,
        tensor("k_cache", shape=(8, 384)),
        ("IndexError", "Index 2 out of bounds for tensor with 2 dimensions"),
    ),
    "rows of one dimension": (
        DECODE,
        tensor("qkvr", shape=(3,)),
        ("IndexError", "Index 1 out of bounds for tensor with 1 dimensions"),
    ),
    "windows of three dimensions": (
        VERIFY,
        tensor("k_inter", shape=(3, 3, 128)),
        ("IndexError", "Index 3 out of bounds for tensor with 3 dimensions"),
    ),
    "one bound": (
        EXTEND,
        tensor("cu", shape=()),
        ("IndexError", "Index 0 out of bounds for tensor with 0 dimensions"),
    ),
    "track slots absent": (
        DECODE,
        arguments(track_mask=TensorSpec((3,), DType.BOOL)),
        (
            "TypeError",
            (
                f"Mismatched type on argument #8 when calling: `attn_prologue_decode({SIGNATURE}) -> void`. "
                "Expected `DLTensor*` but got `None`"
            ),
        ),
    ),
    "float16": (
        DECODE,
        tensor("qkvr", dtype=DType.F16),
        (
            "RuntimeError",
            (
                "Failed to build JIT module "
                "sgl_kernel_jit_inkling_attn_prologue_fused_fp16_t_4_false_true_false_true in …:\n"
                f"{PLACE[10:-1]}(145): error: static assertion failed"
            ),
        ),
    ),
    "weights of Conv1d": (
        DECODE,
        tensor("k_weight", shape=(128, 1, 4)),
        (
            "RuntimeError",
            (
                "Failed to build JIT module "
                "sgl_kernel_jit_inkling_attn_prologue_fused_bf16_t_1_false_true_false_true in …:\n"
                f'{PLACE[10:-1]}(656): error: zero-sized variable "hist" is not allowed in device code'
            ),
        ),
    ),
}


@pytest.mark.parametrize("row", ACCIDENTS)
def test_refused_on_upstreams_behalf(row: str) -> None:
    operation, change, expected = ACCIDENTS[row]
    assert raised(operation, change(base(operation))) == expected


def test_the_second_launch_of_extend_is_of_sequences() -> None:
    call = EXTEND.checks[-1].valid  # type: ignore[attr-defined]
    for name, size in (("cache_indices", 0), ("cache_mask", 0), ("has_initial_state", 0), ("cu", 1)):
        call = call.with_tensor(name, shape=(size,))
    for name in ("track_mask", "track_dst", "track_rows"):
        call = call.with_tensor(name, shape=(0,))
    assert raised(EXTEND, call) == ("RuntimeError", PLACE + "1437: CUDA error: invalid argument")
    without = call.replace(do_cache_update=False)
    assert raised(EXTEND, without) is None
    assert failed(EXTEND, without) == ["sequences_out_of_step"]


@ALL
def test_a_check_is_not_evaluated_where_a_dimension_is_missing(operation: Operation) -> None:
    call = (
        base(operation).with_tensor("k_cache", strides=(384, 128, 2)).with_tensor("v_cache", shape=(8, 128))
    )
    assert "v_state_dimensions" in failed(operation, call)
    call = call.with_tensor("v_cache", shape=(8,)).with_tensor("v_weight", shape=())
    assert "weight_dimensions" in failed(operation, call)


NO_DIMENSION = "Index {index} out of bounds for tensor with {ndim} dimensions"
HALVES = {
    "state of k strided, of v flat": (
        {"k_cache": {"strides": (384, 128, 2)}, "v_cache": {"shape": (8, 384)}},
        {"v_cache": {"shape": (8, 384)}},
        {"decode": 816, "verify": 413, "extend": 1313},
        "conv caches must be channel-contiguous",
        (2, 2),
    ),
    "windows of k strided, of v flat": (
        {"k_inter": {"strides": (1152, 384, 128, 2)}, "v_inter": {"shape": (2, 3, 384)}},
        {"v_inter": {"shape": (2, 3, 384)}},
        {"verify": 414},
        "inter buffers must be channel-contiguous with equal strides",
        (3, 3),
    ),
    "masks of the convolution too many, of the state without a length": (
        {"cache_mask": {"shape": (5,)}, "has_initial_state": {"shape": ()}},
        {"has_initial_state": {"shape": ()}},
        {"extend": 1312},
        "per-seq arrays must be [B]",
        (0, 0),
    ),
    "strides of the state, weights of v without a dimension": (
        {"v_cache": {"strides": (512, 128, 1)}, "v_weight": {"shape": ()}},
        {"v_weight": {"shape": ()}},
        {"decode": 817, "verify": 501, "extend": 1314},
        "k/v cache+weight strides must match",
        (0, 0),
    ),
}
"""Both halves of a condition on two tensors broken, the second alone, the condition's lines, its text, and
what is asked of the second: index and dimensions.
"""


def changed(operation: Operation, tensors: dict[str, dict[str, Any]]) -> PrologueCall:
    call = base(operation)
    for name, attributes in tensors.items():
        call = call.with_tensor(name, **attributes)
    return call


@pytest.mark.parametrize(("row", "kind"), [(row, kind) for row, case in HALVES.items() for kind in case[2]])
def test_a_condition_that_fails_for_the_first_tensor_never_asks_the_second(row: str, kind: str) -> None:
    both, second, lines, text, (index, ndim) = HALVES[row]
    operation = KINDS[kind]
    assert raised(operation, changed(operation, both)) == ("RuntimeError", f"{PLACE}{lines[kind]}: {text}")
    missing = NO_DIMENSION.format(index=index, ndim=ndim)
    assert raised(operation, changed(operation, second)) == ("IndexError", missing)
    assert len([name for name in failed(operation, changed(operation, both)) if "dimensions" in name]) == 1


def test_extend_without_tokens_returns_before_it_looks_at_tau() -> None:
    call = base(EXTEND, qkvr=TensorSpec((0, 528), BF16), cache_indices=TensorSpec((2,), I32))
    tau = TensorSpec((4,), F32, strides=(2,))
    assert failed(EXTEND, call.replace(log_scaling_tau=tau)) == []


VIEWED = [((4, 2, 8), (16, 8, 1)), ((4, 2, 8), (32, 8, 1)), ((4, 2, 8), (32, 16, 1)), ((1, 2, 8), (99, 8, 1))]
VIEWED += [
    ((4, 1, 8), (0, 3, 2)),
    ((), ()),
    ((0, 2, 8), (16, 8, 1)),
    ((2, 8, 1), (8, 1, 7)),
    ((3, 4), (1, 3)),
]


@pytest.mark.parametrize(("shape", "strides"), VIEWED)
@pytest.mark.parametrize("row", [1, 4, 8, 16])
def test_views_are_torchs(shape: tuple[int, ...], strides: tuple[int, ...], row: int) -> None:
    live = torch.empty(512).as_strided(shape, strides)
    if live.numel() % row:
        return
    wanted = (live.numel() // row, row)
    try:
        expected = live.view(wanted).stride()
    except RuntimeError:
        expected = None
    assert view_strides(TensorSpec(shape, F32, strides), wanted) == expected
