"""Arguments that go through one statement in turn: all faults of the first come before those of the next."""

from __future__ import annotations

import pytest
import torch

from app.diagnose.fixes import search
from kernels.dtypes import DType
from kernels.inkling_attn_prologue.signature import PrologueCall
from kernels.registry import Operation
from kernels.spec import TensorSpec
from tests.kernels.inkling_attn_prologue.calls import DECODE, EXTEND, KINDS, VERIFY, base, failed, raised

ALL = pytest.mark.parametrize("operation", KINDS.values(), ids=list(KINDS))
NOT_VIEWABLE = (
    "view size is not compatible with input tensor's size and stride (at least one dimension spans across "
    "two contiguous subspaces). Use .reshape(...) instead."
)
AMBIGUOUS = (
    "cannot reshape tensor of 0 elements into shape [-1, 0] because the unspecified dimension size -1 can "
    "be any value and is ambiguous"
)


def split_heads(call: PrologueCall) -> PrologueCall:
    """A key pool whose heads are cut in two and lie apart, and a value pool of one element."""
    apart = call.with_tensor("k_buf", shape=(256, 2, 64), strides=(256, 128, 1))
    return apart.with_tensor("v_buf", shape=())


def no_heads(call: PrologueCall, dkv: int) -> PrologueCall:
    """Less than a head wide, with an empty key pool."""
    return call.with_tensor("k_buf", shape=(256, 0, 128)).replace(dkv=dkv)


# What an H200's torch said first of calls drawn at random, word by word.
@pytest.mark.parametrize(
    ("operation", "call", "text", "others"),
    [
        (
            VERIFY,
            split_heads(base(VERIFY)).with_tensor("cache_mask", shape=(1, 1)),
            NOT_VIEWABLE,
            ["pool_size_does_not_divide", "pool_not_viewable"],
        ),
        (
            EXTEND,
            no_heads(base(EXTEND), 0).replace(k_off=257).with_tensor("si", shape=(1,)),
            AMBIGUOUS,
            ["pool_rows_ambiguous", "pool_size_does_not_divide", "offsets_unaligned", "owners_too_few"],
        ),
        (
            EXTEND,
            no_heads(base(EXTEND), 64).replace(activation="swish"),
            AMBIGUOUS,
            ["pool_rows_ambiguous", "pool_size_does_not_divide", "widths_split_heads"],
        ),
        (
            EXTEND,
            base(EXTEND, si=TensorSpec((3,), DType.I32, offset=8)).replace(dq=2**63 - 1),
            "Storage size calculation overflowed with sizes=[3, 9223372036854775807]",
            ["storage_overflows"],
        ),
    ],
    ids=["heads split beside one element", "no heads", "half a head", "no size"],
)
def test_what_is_said_first_and_what_else_is_wrong(
    operation: Operation, call: PrologueCall, text: str, others: list[str]
) -> None:
    assert raised(operation, call) == ("RuntimeError", text)
    assert failed(operation, call)[: len(others)] == others


@ALL
def test_a_width_of_q_is_refused_before_one_of_k_whatever_is_wrong_with_them(operation: Operation) -> None:
    call = base(operation).replace(dq=2**63 - 1, dkv=-128)
    assert raised(operation, call) == (
        "RuntimeError",
        "Storage size calculation overflowed with sizes=[3, 9223372036854775807]",
    )
    assert {"negative_width", "storage_overflows"} <= set(failed(operation, call))
    swapped = base(operation).replace(dq=-128, dkv=2**63 - 1)
    assert raised(operation, swapped) == (
        "RuntimeError",
        "Trying to create tensor with negative dimension -128: [3, -128]",
    )


@ALL
def test_a_text_is_divided_before_the_nothing_behind_it(operation: Operation) -> None:
    call = base(operation).quantized()
    said = raised(operation, call.replace(dq="256", dkv=None))
    assert said == ("TypeError", "not all arguments converted during string formatting")
    assert {"width_is_text", "width_is_not_a_number"} <= set(
        failed(operation, call.replace(dq="256", dkv=None))
    )
    said = raised(operation, call.replace(dq=None, dkv="128"))
    assert said == ("TypeError", "unsupported operand type(s) for %: 'NoneType' and 'int'")
    assert raised(operation, call.replace(dq=192, dkv=None)) == (
        "ValueError",
        f"MXFP8 fused {'decode ' if operation is DECODE else ''}prologue requires head_dim-aligned Q/K/V.",
    )


@pytest.mark.parametrize("width", [2**62 - 1, 2**62, 2**63 - 1, -(2**62), -(2**62) - 1, -(2**63)])
@pytest.mark.parametrize("rows", [0, 1, 2, 3])
def test_the_sizes_at_which_torch_itself_changes_its_word(rows: int, width: int) -> None:
    call = base(DECODE).with_tensor("qkvr", shape=(rows, 528)).replace(dq=width)
    predicted = raised(DECODE, call)
    device = "cpu" if width < 0 else "meta"  # what is possible is not allocated
    said = _said_by_torch(rows, width, device)
    if predicted is None or predicted[1].startswith("Failed at"):
        assert said is None
    else:
        assert predicted[0] == "RuntimeError"
        assert said is not None
        assert said.endswith(predicted[1].removeprefix("…"))


def _said_by_torch(rows: int, width: int, device: str) -> str | None:
    try:
        torch.empty(rows, width, dtype=torch.bfloat16, device=device)
    except RuntimeError as error:
        return str(error)
    return None


@ALL
@pytest.mark.parametrize("dkv", [0, 64])
def test_a_call_of_several_such_faults_is_mended(operation: Operation, dkv: int) -> None:
    for call in (no_heads(base(operation), dkv), split_heads(base(operation)).replace(dq=2**63 - 1)):
        best = search(call, operation.examine(call), operation.examine).repairs[0]
        assert not operation.examine(best.call).rejected
