"""The configurations that are in use pass, and the guarded function agrees with the reference on them."""

from __future__ import annotations

from typing import Any

import pytest

from kernels.dtypes import DType
from kernels.inkling_attn_prologue.op import RUNNERS
from kernels.inkling_attn_prologue.signature import PrologueCall
from kernels.live import stated_devices
from kernels.registry import Operation
from kernels.running import compare, materialise
from kernels.spec import TensorSpec
from kernels.values import Full, Listed, seeded
from tests.kernels.inkling_attn_prologue.calls import DECODE, EXTEND, VERIFY, failed, listed

BF16, BOOL, F32, I32, I64 = DType.BF16, DType.BOOL, DType.F32, DType.I32, DType.I64

W_GIVEN: dict[str, Any] = {
    "qkvr": TensorSpec((6, 512), BF16, (1088, 1)),
    "k_cache": TensorSpec((12, 3, 256), BF16),
    "loc": listed(5, 0, 131, -1, 383, 37),
    "k_buf": TensorSpec((384, 2, 128), BF16),
}
W_DECODE = W_GIVEN | {
    "cache_indices": listed(3, -1, 5, 1, 7, 2, dtype=I32),
    "cache_mask": listed(1, 1, 0, 1, 1, 1, dtype=BOOL),
    "track_mask": listed(1, 1, 0, 0, 1, 0, dtype=BOOL),
    "track_indices": listed(9, 10, 11, 9, 11, 9),
}
W_VERIFY = W_GIVEN | {
    "cache_indices": listed(3, -1, dtype=I32),
    "cache_mask": TensorSpec((2, 1, 1), BOOL, values=Listed((1, 0))),
    "k_inter": TensorSpec((3, 3, 3, 256), BF16, values=Full(9.0)),
    "draft_token_num": 3,
}
W_EXTEND = W_GIVEN | {
    "cache_indices": listed(3, -1, 5, dtype=I32),
    "cache_mask": listed(1, 0, 0, dtype=BOOL),
    "has_initial_state": listed(1, 1, 0, dtype=BOOL),
    "cu": listed(0, 2, 3, 6),
    "track_rows": TensorSpec((3, 3), I64, values=Listed(((0, 1, 0), (2, 2, 2), (3, 4, 5)))),
    "track_mask": listed(1, 1, 0, dtype=BOOL),
    "track_dst": listed(9, 10, 11),
}
MANY = {
    "qkvr": TensorSpec((24, 512), BF16, (1088, 1)),
    "loc": TensorSpec((24,), I64),
    "cache_indices": TensorSpec((8,), I32),
    "cache_mask": TensorSpec((8,), BOOL),
    "k_inter": TensorSpec((8, 3, 3, 256), BF16),
}
NONE = {
    "track_mask": TensorSpec((0,), BOOL),
    "track_rows": TensorSpec((0,), I64),
    "track_dst": TensorSpec((0,), I64),
}
NOTHING = {
    "qkvr": TensorSpec((0, 512), BF16, (1088, 1)),
    "loc": TensorSpec((0,), I64),
    "si": TensorSpec((0,), I32),
    "cu": listed(0, 0, 0, 0),
}
TAU = {"log_scaling_tau": TensorSpec((6,), F32)}
PAGE_64 = {"page_size": 64}
USED: dict[str, tuple[Operation, dict[str, Any], bool]] = {
    "W1": (DECODE, W_DECODE, False),
    "W2 page 128": (DECODE, W_DECODE, True),
    "W2 page 64": (DECODE, W_DECODE | PAGE_64, True),
    "W3 silu": (DECODE, W_DECODE | {"activation": "silu"}, False),
    "W3 swish": (
        DECODE,
        W_DECODE
        | {
            "activation": "swish",
            "use_residual": False,
            "k_cache": TensorSpec((12, 2, 256), BF16),
            "k_weight": TensorSpec((256, 3), BF16),
        },
        False,
    ),
    "W4": (DECODE, W_DECODE | TAU, False),
    "W4 MXFP8": (DECODE, W_DECODE | TAU, True),
    "W5": (
        DECODE,
        W_DECODE
        | {
            "qkvr": TensorSpec((6, 384), BF16, (704, 1)),
            "k_cache": TensorSpec((12, 3, 128), BF16),
            "k_buf": TensorSpec((384, 1, 128), BF16),
        },
        False,
    ),
    "W6": (VERIFY, W_VERIFY, False),
    "W7": (VERIFY, W_VERIFY, True),
    "W7 24 tokens": (VERIFY, W_VERIFY | MANY, True),
    "W8": (EXTEND, W_EXTEND, False),
    "W9 MXFP8": (EXTEND, W_EXTEND, True),
    "W9 no update": (EXTEND, W_EXTEND | {"do_cache_update": False}, False),
    "W9 no track": (EXTEND, W_EXTEND | NONE, False),
    "W9 no store": (EXTEND, W_EXTEND | {"do_store": False}, False),
    "W10": (EXTEND, W_EXTEND | NOTHING, False),
}


@pytest.mark.parametrize("row", USED)
def test_configurations_in_use_pass_and_run(row: str) -> None:
    operation, given, mxfp8 = USED[row]
    call = operation.fit(given)
    assert isinstance(call, PrologueCall)
    call = call.quantized() if mxfp8 else call
    warned = {"W1", "W2", "W3", "W4", "W5"} if operation is DECODE else set()
    expected = ["page_size_unusual"] if call.page_size != 128 else []
    expected += ["padding_not_masked"] if row.split()[0] in warned else []
    assert failed(operation, call) == expected
    assert not operation.examine(call).rejected

    runner = RUNNERS[operation.name]
    filled = seeded(operation.fill(call), 1)
    live = materialise(call, filled, "cpu")
    with stated_devices({id(live[name]): spec.device_index for name, spec in call.tensors()}):
        written = runner.outputs(live, runner.function(**live))
    expected_outputs = runner.reference(materialise(call, filled, "cpu"))
    for name, found in written.items():
        assert compare(name, found, expected_outputs[name], runner.tolerance(name, call)).within, name
