"""Block-scaled attention: every text to the letter, with and without assertions, and what passes."""

from __future__ import annotations

import pytest

from kernels.checking import Status
from kernels.dtypes import DType
from kernels.examining import guard
from kernels.flash_attn_fwd.checks import OPERATIONS, STAGES
from kernels.flash_attn_fwd.signature import FULL, PLAIN, VALID, AttentionCall, fit, like, scales_of
from kernels.rendering import reproduction
from kernels.spec import TensorSpec

[OPERATION] = OPERATIONS
E4M3, E8M0, BF16 = DType.F8_E4M3FN, DType.F8_E8M0, DType.BF16
TABLE = TensorSpec((1, 2), DType.I32)
PAGES = TensorSpec((2, 128, 1, 128), E4M3)

ACCEPTED = {
    "bfloat16": PLAIN,
    "float16": AttentionCall(like(DType.F16), like(DType.F16), like(DType.F16)),
    "fp8 with descales": AttentionCall(
        like(E4M3), like(E4M3), like(E4M3), k_descale=TensorSpec((1, 1), DType.F32), _arch=100
    ),
    "q and k scaled": VALID,
    "all scaled, paged": FULL.replace(
        k=PAGES, v=PAGES, sfk=scales_of(PAGES), sfv=scales_of(PAGES), page_table=TABLE
    ),
    "without assertions": VALID.replace(assertions=False),
}


@pytest.mark.parametrize("name", ACCEPTED)
def test_accepted(name: str) -> None:
    assert {outcome.status for outcome in OPERATION.examine(ACCEPTED[name]).outcomes} == {Status.PASSED}


DIRECT = VALID.replace(assertions=False)

REFUSED: dict[str, tuple[AttentionCall, type[Exception], str]] = {
    "scales of two types": (
        DIRECT.with_dtype("sfk", E4M3),
        TypeError,
        "Type mismatch: Float8E8M0FNU != Float8E4M3FN",
    ),
    "a scale as bytes": (
        DIRECT.with_dtype("sfk", DType.U8),
        TypeError,
        "Type mismatch: Float8E8M0FNU != Uint8",
    ),
    "keys in bfloat16": (
        DIRECT.with_dtype("k", BF16),
        TypeError,
        "Type mismatch: Float8E4M3FN != BFloat16",
    ),
    "values in fp8": (
        PLAIN.with_dtype("v", E4M3).replace(assertions=False),
        TypeError,
        "Type mismatch: BFloat16 != Float8E4M3FN",
    ),
    "keys in fp8 beside sfv": (
        PLAIN.replace(k=like(E4M3), v=like(E4M3), sfv=scales_of(like(E4M3)), v_sf_vec_size=32),
        TypeError,
        "Type mismatch: BFloat16 != Float8E4M3FN",
    ),
    "no sfk": (
        VALID.replace(sfk=None),
        AssertionError,
        "sfq and sfk must both be provided for qk_blockscaled",
    ),
    "no sfq": (
        PLAIN.replace(sfk=VALID.sfk),
        AssertionError,
        "sfq and sfk must both be provided for qk_blockscaled",
    ),
    "q in bfloat16": (
        VALID.with_dtype("q", BF16),
        AssertionError,
        "qk_blockscaled Q must be float8_e4m3fn",
    ),
    "k in bfloat16": (
        VALID.with_dtype("k", BF16),
        AssertionError,
        "qk_blockscaled Q and K must have the same dtype",
    ),
    "sfq as bytes": (VALID.with_dtype("sfq", DType.U8), AssertionError, "sfq must be float8_e8m0fnu"),
    "sfk in float32": (VALID.with_dtype("sfk", DType.F32), AssertionError, "sfk must be float8_e8m0fnu"),
    "sfv as bytes": (FULL.with_dtype("sfv", DType.U8), AssertionError, "sfv must be float8_e8m0fnu"),
    "sfv with v in bfloat16": (
        FULL.with_dtype("v", BF16),
        AssertionError,
        "v_blockscaled V must be float8_e4m3fn",
    ),
    "paged without sfv": (
        VALID.replace(page_table=TABLE),
        AssertionError,
        "paged KV with qk_blockscaled requires v_blockscaled",
    ),
    "v in fp8 without sfv": (
        VALID.with_dtype("v", E4M3),
        AssertionError,
        "qk_blockscaled V must be float16 or bfloat16",
    ),
    "no block size of v": (
        FULL.replace(v_sf_vec_size=None),
        AssertionError,
        "v_sf_vec_size must be provided for v_blockscaled",
    ),
    "no block size of q and k": (
        VALID.replace(qk_sf_vec_size=None),
        AssertionError,
        "qk_sf_vec_size must be provided for qk_blockscaled",
    ),
    "an fp8 cache": (
        PLAIN.with_dtype("k", E4M3).with_dtype("v", E4M3),
        AssertionError,
        "q.dtype torch.bfloat16 != k.dtype torch.float8_e4m3fn",
    ),
    "v in int8": (
        PLAIN.with_dtype("v", DType.I8),
        AssertionError,
        "inputs must be float16, bfloat16, fp8 e4m3fn, or fp8 e5m2",
    ),
    "lengths in int64": (
        PLAIN.replace(cu_seqlens_k=TensorSpec((2,), DType.I64)),
        AssertionError,
        "cu_seqlens_q, cu_seqlens_k, seqused_q, seqused_k must be int32",
    ),
    "fp8 on hopper": (
        FULL.replace(_arch=90),
        AssertionError,
        "FP8 is only supported on SM100 (compute capability 10.x) for FA4 CuTe.",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    call, error, text = REFUSED[name]
    raised = OPERATION.examine(call).raised
    assert raised is not None
    assert (raised.raises, raised.text) == (error, text)
    with pytest.raises(error) as caught:
        guard(STAGES, call)
    assert str(caught.value) == text


@pytest.mark.parametrize("name", REFUSED)
def test_without_assertions_only_the_traced_comparisons_are_left(name: str) -> None:
    call, _, _ = REFUSED[name]
    raised = OPERATION.examine(call.replace(assertions=False)).raised
    assert raised is None or raised.raises is TypeError


def test_every_pair_that_differs_is_listed() -> None:
    call = AttentionCall(like(BF16), like(DType.F16), like(E4M3))
    [outcome] = [item for item in OPERATION.examine(call).outcomes if item.check.id() == "input_types_differ"]
    assert [occurrence.violation.text for occurrence in outcome.occurrences] == [
        "q.dtype torch.bfloat16 != k.dtype torch.float16",
        "q.dtype torch.bfloat16 != v.dtype torch.float8_e4m3fn",
        "k.dtype torch.float16 != v.dtype torch.float8_e4m3fn",
    ]


def test_scales_on_the_host_are_not_looked_at() -> None:
    assert OPERATION.examine(VALID.with_tensor("sfq", device="cpu")).raised is None


def test_what_is_missing_is_like_what_is_given() -> None:
    call = fit({"k": TensorSpec((2, 64, 4, 64), DType.F16)})
    assert (call.q, call.v) == (call.k, call.k)
    assert not OPERATION.examine(call).failed()
    assert not OPERATION.examine(fit({})).failed()


def test_the_reproduction_names_upstreams_arguments_only() -> None:
    script = reproduction(OPERATION, DIRECT)
    compile(script, "reproduction", "exec")
    assert script.rstrip().endswith("_flash_attn_fwd(q, k, v, sfq=sfq, sfk=sfk, qk_sf_vec_size=32)")
