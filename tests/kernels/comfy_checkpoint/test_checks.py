"""Many layers at once, markers inferred from tensors, what only we say, descriptions of any content."""

from __future__ import annotations

import json
import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernels.call import arguments_json
from kernels.checking import Check, Origin, Status
from kernels.checkpoint import Checkpoint, Header, NameMapper
from kernels.checkpoint_file import elements
from kernels.comfy_checkpoint import reference
from kernels.comfy_checkpoint.build_checks import FULL_PRECISION
from kernels.comfy_checkpoint.checks import OPERATIONS
from kernels.comfy_checkpoint.markers import marker_header
from kernels.comfy_checkpoint.signature import VALID, ComfyCall, fit
from kernels.dtypes import DType
from kernels.examining import Examination
from kernels.live import torch_dtype
from kernels.rendering import reproduction
from kernels.spec import TensorSpec
from kernels.values import Full, Listed, Randn, Text
from tests.kernels.comfy_checkpoint.files import (
    ASYMMETRIC,
    FOUR,
    FP8,
    INT8,
    MX,
    NVFP4,
    ROTATED,
    TABLE,
    W4A4,
    W4A8,
    X64,
    P,
    Tensors,
    checkpoint,
    mx,
    nv,
    one,
    told,
    two,
)

[OPERATION] = OPERATIONS


def failed(examination: Examination) -> list[str]:
    return [outcome.check.id() for outcome in examination.failed()]


def violations(call: ComfyCall, check: str) -> list[Check[Any]]:
    [outcome] = [item for item in OPERATION.examine(call).outcomes if item.check.id() == check]
    return [occurrence.violation for occurrence in outcome.occurrences]


def test_each_layer_is_finished_before_the_next() -> None:
    """The second layer's first fault comes after the first layer's last."""
    call = two(
        ({"format": "nvfp4"}, {**NVFP4, "pre_quant_scale": Header("F64", (64,))}),
        ({"format": "nvfp4"}, {**NVFP4, "weight": Header("I8", (128, 32))}),
    )
    examination = OPERATION.examine(call)
    assert failed(examination) == ["nvfp4_types", "nvfp4_pre_quant_scale"]
    assert examination.raised is not None
    assert examination.raised.text.endswith("incompatible pre_quant_scale: F64(64,)")


def test_one_row_lists_every_layer_and_one_fix_repairs_all() -> None:
    flat = {**INT8, "weight_scale": Header("F32", (2,))}
    call = ComfyCall(checkpoint({f"l{index}": (ROTATED, flat) for index in range(4)}))
    assert len(violations(call, "int8_shapes")) == 4
    [outcome] = OPERATION.examine(call).failed()
    fixes = [fix for found in outcome.occurrences for fix in found.violation.fixes(found.subject)]
    assert [fix.title for fix in fixes] == [
        "Reshape 'l0.weight_scale' from [2] to [2, 1], and so in 3 more layers"
    ]
    assert fixes[0].safe
    assert not OPERATION.examine(fixes[0].call).failed()


def test_a_packed_weight_without_any_marker_is_recognised() -> None:
    """4096 columns in 2048 bytes, a block scale for 16 of them: a weight that multiplies half as wide."""
    tensors = {
        "weight": Header("U8", (4096, 2048)),
        "weight_scale": Header("F8_E4M3", (4096, 256)),
        "weight_scale_2": Header("F32", ()),
    }
    name = "blk.attn1.to_q"
    call = ComfyCall(
        Checkpoint({}, {f"{name}.{suffix}": header for suffix, header in tensors.items()}),
        x=TensorSpec((3520, 4096), DType.BF16),
    )
    [violation] = violations(call, "markers_missing")
    assert violation.text == f"Quantized weights are missing comfy_quant metadata: ['{name}']"
    assert "2048 bytes a row hold K = 4096 columns, 4096/16 = 256 block scales a row" in violation.explain()
    [fix] = violation.fixes(call)
    assert fix.safe
    assert not OPERATION.examine(fix.call).failed()
    [edit] = fix.edits(call)
    assert (edit.argument, edit.attribute, edit.before) == (
        "checkpoint",
        "/metadata/_quantization_metadata",
        None,
    )
    assert json.loads(edit.after) == {"layers": {name: {"format": "nvfp4"}}}


INFERRED = {
    "nvfp4": (NVFP4, {"format": "nvfp4"}, True),
    "fp8": (FP8, {"format": "float8_e4m3fn"}, True),
    "rotated int8": (INT8, ROTATED, False),
    "one scale": ({**INT8, "weight_scale": Header("F32", ())}, TABLE, True),
    "w4a8": (W4A8, {**ASYMMETRIC, "convrot_groupsize": 256, "group_size": 16}, False),
    "w4a4": (W4A4, {**FOUR, "convrot": True, "convrot_groupsize": 256}, False),
}


@pytest.mark.parametrize("name", INFERRED)
def test_markers_are_inferred_from_tensors(name: str) -> None:
    tensors, marker, certain = INFERRED[name]
    call = ComfyCall(Checkpoint({}, {f"{P}.{suffix}": header for suffix, header in tensors.items()}))
    [violation] = violations(call, "markers_missing")
    [fix] = violation.fixes(call)
    assert json.loads(fix.call.checkpoint.metadata["_quantization_metadata"]) == {"layers": {P: marker}}
    assert fix.safe == certain
    assert not OPERATION.examine(fix.call).failed()


def test_the_global_declaration_is_the_fix_for_unmarked_mxfp8() -> None:
    call = ComfyCall(Checkpoint({}, dict(mx().checkpoint.tensors)))
    [violation] = violations(call, "markers_missing")
    [fix] = violation.fixes(call)
    assert fix.call.checkpoint.metadata == {"quant_format": "mxfp8"}
    assert not OPERATION.examine(fix.call).failed()


# --- what only we say

BEYOND: dict[str, tuple[ComfyCall, str]] = {
    "no marker, nothing quantized": (
        ComfyCall(Checkpoint({}, {"norm.weight": Header("BF16", (7,))})),
        "not_comfy",
    ),
    "a quanto file": (
        ComfyCall(Checkpoint({"quantization_format": "quanto"}, {"a.weight._data": Header("BF16", (3, 2))})),
        "not_comfy",
    ),
    "E5M2 beside a scale": (
        nv().with_checkpoint(
            nv()
            .checkpoint.with_tensor("b.weight", Header("F8_E5M2", (8, 8)))
            .with_tensor("b.weight_scale", Header("F32", ()))
        ),
        "packed_tensors_overlooked",
    ),
    "fp8 of bfloat16": (
        one({"format": "float8_e4m3fn"}, FP8, weight=Header("BF16", (8, 64))),
        "fp8_incompatible",
    ),
    "fp8 with a matrix of scales": (
        one({"format": "float8_e4m3fn"}, FP8, weight_scale=Header("F32", (9, 9))),
        "fp8_incompatible",
    ),
    "nvfp4 of 100 rows": (
        nv(weight=Header("U8", (100, 32)), weight_scale=Header("F8_E4M3", (100, 4))),
        "nvfp4_scales_not_whole_tiles",
    ),
    "nvfp4 of 96 columns": (
        nv(weight=Header("U8", (128, 48)), weight_scale=Header("F8_E4M3", (128, 6))),
        "nvfp4_scales_not_whole_tiles",
    ),
    "mxfp8 layer by layer": (one({"format": "mxfp8"}, MX), "mxfp8_not_global"),
    "rotated with one scale": (one(ROTATED, INT8, weight_scale=Header("F32", ())), "rotated_with_one_scale"),
    "declared as a whole, and nothing in it": (
        ComfyCall(Checkpoint({"quant_format": "mxfp8"}, {"a.weight": Header("BF16", (32, 64))})),
        "not_comfy",
    ),
    "metadata of no layers": (
        ComfyCall(
            Checkpoint({"_quantization_metadata": '{"layers": {}}'}, {"a.weight": Header("BF16", (32, 64))})
        ),
        "not_comfy",
    ),
    "a row scale of NaN": (
        one(ROTATED, INT8, weight_scale=Header("F32", (2, 1), Listed((1.0, float("nan"))))),
        "scale_not_finite",
    ),
    "an infinite activation scale": (
        nv(pre_quant_scale=Header("BF16", (64,), Full(float("inf")))),
        "scale_not_finite",
    ),
    "a scale that makes infinite weights": (
        one(
            {"format": "float8_e4m3fn", FULL_PRECISION: True}, FP8, weight_scale=Header("F32", (), Full(1e36))
        ),
        "scale_overflows_weights",
    ),
    "a scale of zero": (nv(weight_scale_2=Header("F32", (), Listed((0.0,)))), "tensor_scale_is_zero"),
    "x of another width": (nv().replace(x=TensorSpec((1, 32), DType.BF16)), "activation_does_not_fit"),
    "x for an unknown layer": (nv().replace(x=X64, layer="nowhere"), "activation_does_not_fit"),
    "row numbers for a rotated layer": (
        one(ROTATED, INT8).replace(x=TensorSpec((3,), DType.I64), layer=P),
        "activation_does_not_fit",
    ),
}


@pytest.mark.parametrize("name", BEYOND)
def test_beyond_upstream(name: str) -> None:
    call, check = BEYOND[name]
    examination = OPERATION.examine(call)
    assert examination.raised is None
    assert failed(examination) == [check]


@pytest.mark.parametrize(
    ("format_", "full", "scale", "x", "code"),
    [
        ("float8_e4m3fn", True, 146.0, DType.F16, None),  # 448 · 146 = 65408
        ("float8_e4m3fn", True, 147.0, DType.F16, 448),
        ("float8_e4m3fn", True, 147.0, DType.BF16, None),
        ("float8_e4m3fn", True, 1e36, None, 448),
        ("float8_e4m3fn", True, 1e36, DType.F32, 448),
        ("float8_e4m3fn", False, 1e36, DType.F16, None),
        ("nvfp4", True, 24.0, DType.F16, None),
        ("nvfp4", True, 25.0, DType.F16, 2688),
        ("nvfp4", True, 25.0, DType.F32, None),
        ("nvfp4", True, 1.3e35, None, 2688),
        ("nvfp4", False, 1.3e35, DType.F16, None),
        ("int8_tensorwise", False, 2.0**121, None, None),
        ("int8_tensorwise", False, 2.68e36, None, 127),
    ],
)
def test_products_of_scales_and_codes_stay_finite(
    format_: str, full: bool, scale: float, x: DType | None, code: int | None
) -> None:
    """As the layer's own arithmetic says of the largest codes."""
    tensors = {"float8_e4m3fn": FP8, "nvfp4": NVFP4, "int8_tensorwise": INT8}[format_]
    suffix = "weight_scale_2" if format_ == "nvfp4" else "weight_scale"
    marker = {"format": format_, **({FULL_PRECISION: True} if full else {})}
    call = one(marker, tensors, **{suffix: Header("F32", tensors[suffix].shape, Full(scale))})
    if x is not None:
        call = call.replace(x=TensorSpec((1, 64), x))
    found = violations(call, "scale_overflows_weights")
    assert [getattr(each, "code", None) for each in found] == ([] if code is None else [code])
    if full or format_ == "int8_tensorwise":
        largest = {"weight": Full(119 if format_ == "nvfp4" else code or 127), "weight_scale": Full(448.0)}
        layer = call.layers[0]
        held = {
            name: elements(header, header.values or largest[name]).reshape(header.shape)
            for name, header in ((name, layer.held(name)) for name in tensors)
        }
        weight = reference.weight_of(layer, held).to(torch_dtype(x or DType.BF16))
        assert bool(weight.isfinite().all()) == (code is None)


def test_described_codes_say_how_large_weights_are() -> None:
    marker = {"format": "float8_e4m3fn", FULL_PRECISION: True}
    large = Header("F32", (), Full(256.0))
    for values, overflows in ((Full(255.0), False), (Listed((1.0, -300.0)), True), (Randn(), False)):
        call = one(marker, FP8, weight=Header("F8_E4M3", (8, 64), values), weight_scale=large)
        found = violations(call.replace(x=TensorSpec((1, 64), DType.F16)), "scale_overflows_weights")
        assert bool(found) == overflows


def test_what_needs_a_sound_marker_is_not_reached() -> None:
    outcomes = {outcome.check.id(): outcome.status for outcome in OPERATION.examine(told("{")).outcomes}
    assert outcomes["metadata_invalid"] is Status.FAILED
    assert outcomes["markers_missing"] is Status.NOT_REACHED
    assert outcomes["nvfp4_shapes"] is Status.NOT_REACHED
    assert outcomes["formats_unsupported"] is Status.PASSED


# --- descriptions


def test_a_marker_travels_as_text() -> None:
    call = nv()
    body = json.loads(json.dumps(arguments_json(call)))
    marker = body["checkpoint"]["tensors"][f"{P}.comfy_quant"]
    assert marker == {"dtype": "U8", "shape": [18], "values": {"kind": "text", "text": '{"format":"nvfp4"}'}}
    assert ComfyCall(Checkpoint.from_json(body["checkpoint"])) == call


@pytest.mark.parametrize("size", [2**40, 2**63 - 1])
def test_a_marker_too_large_to_be_read_is_answered(size: int) -> None:
    call = nv()
    huge = call.checkpoint.with_tensor(f"{P}.comfy_quant", Header("U8", (size,)))
    assert OPERATION.examine(call.replace(checkpoint=huge)).outcomes


def test_a_call_travels_to_another_process() -> None:
    call = nv().replace(x=X64)
    assert OPERATION.examine(call).raised is None  # fills what is cached
    assert pickle.loads(pickle.dumps(call)) == call  # noqa: S301


def test_what_is_missing_is_fitted() -> None:
    call = fit({"x": TensorSpec((5, 192), DType.BF16), "name_mapper": NameMapper({"a": "b"})})
    assert not OPERATION.examine(call).failed()
    assert [(layer.prefix, layer.mapped, layer.columns) for layer in call.layers] == [("a", "b", 192)]
    assert not OPERATION.examine(fit({})).failed()


def test_the_reproduction_writes_the_markers_bytes() -> None:
    script = reproduction(OPERATION, VALID)
    compile(script, "reproduction", "exec")
    assert 'torch.tensor(list("{\\"format\\":' in script
    assert "inspect_comfy_quant_markers([checkpoint], lambda prefix:" in script


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-300, 300)
    | st.floats()
    | st.sampled_from(["nvfp4", "16", "", "x"]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["a", "format"]), inner),
    max_leaves=4,
)
MARKERS = st.dictionaries(
    st.sampled_from(["format", "convrot", "convrot_groupsize", "group_size", "linear_dtype"]), VALUES
)
FORMATS = st.sampled_from([NVFP4, INT8, W4A8, W4A4, FP8, MX])
NAMES = st.sampled_from(
    ["nvfp4", "int8_tensorwise", "asym_w4a8_int8", "convrot_w4a4", "float8_e4m3fn", "mxfp8"]
)
HEADERS = st.builds(
    Header,
    st.sampled_from(["U8", "I8", "F8_E4M3", "F32", "BF16"]),
    st.lists(st.sampled_from([0, 1, 2, 16, 64, 128, 2**62]), max_size=3).map(tuple),
)


@given(
    MARKERS, st.none() | NAMES, FORMATS, st.dictionaries(st.sampled_from(sorted({*NVFP4, *W4A8})), HEADERS)
)
def test_whatever_a_header_says_every_check_has_an_answer(
    marker: dict[str, Any], named: str | None, tensors: Tensors, changed: Tensors
) -> None:
    call = one({**marker, **({"format": named} if named else {})}, {**tensors, **changed})
    for given_call in (call, call.replace(capability=9.0, tp_size=2, x=X64)):
        examination = OPERATION.examine(given_call)
        for outcome in examination.failed():
            for occurrence in outcome.occurrences:
                assert occurrence.violation.explain()
                assert occurrence.violation.describe_actual(occurrence.subject)
                for fix in occurrence.violation.fixes(occurrence.subject):
                    OPERATION.examine(fix.call)
        assert (examination.raised is None) == all(
            outcome.check.origin() is Origin.BEYOND for outcome in examination.failed()
        )


@given(st.text(max_size=30))
def test_any_text_as_marker_or_metadata_is_answered(text: str) -> None:
    marker = Header("U8", (len(Text(text).encoded()),), Text(text))
    file = nv().checkpoint.with_tensor(f"{P}.comfy_quant", marker)
    for call in (nv().with_checkpoint(file), told(text)):
        assert OPERATION.examine(call).outcomes


def test_a_marker_header_holds_its_text() -> None:
    assert marker_header({"format": "nvfp4"}) == Header("U8", (18,), Text('{"format":"nvfp4"}'))
