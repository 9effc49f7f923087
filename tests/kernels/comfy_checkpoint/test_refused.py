"""What a Comfy file passes with, and every refusal to the letter, in the order of upstream's release."""

from __future__ import annotations

import struct

import pytest

from kernels.checking import Status
from kernels.checkpoint import Checkpoint, Header, NameMapper
from kernels.comfy_checkpoint.checks import OPERATIONS, STAGES
from kernels.comfy_checkpoint.signature import ComfyCall
from kernels.dtypes import DType
from kernels.examining import guard
from kernels.spec import TensorSpec
from kernels.values import Listed
from tests.kernels.comfy_checkpoint.files import (
    ASYMMETRIC,
    FOUR,
    FP8,
    INT8,
    NVFP4,
    ROTATED,
    TABLE,
    W4A4,
    W4A8,
    X64,
    P,
    checkpoint,
    mx,
    nv,
    one,
    raw,
    told,
    two,
)

[OPERATION] = OPERATIONS

# --- what passes

ACCEPTED: dict[str, tuple[ComfyCall, str]] = {
    "nvfp4, a marker tensor": (nv(), "comfy_nvfp4"),
    "nvfp4, markers in the metadata, scaled activations": (
        told(
            {"format_version": "1.0", "layers": {P: {"format": "nvfp4"}}},
            {**NVFP4, "weight_scale_2": Header("F32", (1,)), "pre_quant_scale": Header("BF16", (64,))},
        ),
        "comfy_nvfp4",
    ),
    "fp8": (one({"format": "float8_e4m3fn"}, FP8), "comfy_fp8"),
    "fp8, static": (one({"format": "float8_e4m3fn"}, FP8, input_scale=Header("F32", ())), "comfy_fp8"),
    "rotated int8": (one(ROTATED, INT8), "convrot_int8"),
    "a table of one scale": (one(TABLE, INT8, weight_scale=Header("F32", ())), "convrot_int8"),
    "a table of one scale a row": (one(TABLE, INT8), "convrot_int8"),
    "w4a8": (
        one(
            ASYMMETRIC,
            W4A8,
            weight_codebook=Header("F32", (16,)),
            weight_correction=Header("F32", (16, 2)),
        ),
        "kitchen_w4a8",
    ),
    "w4a4": (one(FOUR, W4A4), "kitchen_w4a4"),
    "mxfp8": (
        mx().with_checkpoint(mx().checkpoint.with_metadata("quant_format", "MXFP8")),
        "mxfp8",
    ),
    "header and tensor agree": (
        nv().with_metadata({"layers": {P: {"format": "nvfp4", "x": 1}}}),
        "comfy_nvfp4",
    ),
    "nvfp4 beside a table": (two(({"format": "nvfp4"}, NVFP4), (TABLE, INT8)), "comfy_nvfp4"),
    "w4a8 beside a table": (two((ASYMMETRIC, W4A8), (TABLE, INT8)), "kitchen_w4a8"),
    "w4a4 beside int8": (two((FOUR, W4A4), (ROTATED, INT8)), "kitchen_w4a4"),
    "a group size as text": (one({**ASYMMETRIC, "group_size": "16"}, W4A8), "kitchen_w4a8"),
    "a marker that the description leaves open": (
        nv().with_checkpoint(nv().checkpoint.with_tensor(f"{P}.comfy_quant", Header("U8", (60,)))),
        "comfy_nvfp4",
    ),
    "two columns of markers in UTF-16": (raw('{"format": "nvfp4"}'.encode("utf-16")), "comfy_nvfp4"),
    "blackwell": (nv().replace(capability=12.0), "comfy_nvfp4"),
    "full precision anywhere": (
        one({"format": "nvfp4", "full_precision_matrix_mult": True}, NVFP4).replace(capability=8.0, x=X64),
        "comfy_nvfp4",
    ),
    "rows of a table": (
        one(TABLE, INT8).replace(x=TensorSpec((3,), DType.I64)),
        "convrot_int8",
    ),
}


@pytest.mark.parametrize("name", ACCEPTED)
def test_accepted(name: str) -> None:
    call, method = ACCEPTED[name]
    examination = OPERATION.examine(call)
    assert {outcome.status for outcome in examination.outcomes} == {Status.PASSED}
    assert call.handler == method
    guard(STAGES, call)


def test_a_marker_of_another_type_is_read_by_the_bytes_behind_its_elements() -> None:
    words = Header("I32", (5,), Listed(struct.unpack("<5i", b'{"format": "nvfp4"} ')))
    call = nv().with_checkpoint(nv().checkpoint.with_tensor(f"{P}.comfy_quant", words))
    assert not OPERATION.examine(call).rejected
    assert call.handler == "comfy_nvfp4"


# --- what upstream refuses, to the letter

METADATA = "_quantization_metadata in checkpoint.safetensors must contain"
INVALID = "Invalid Comfy quantization marker 'blk.fc.comfy_quant' in checkpoint.safetensors"
MX_TEXT = "MXFP8 layer 'a' has incompatible weight/scale metadata: "

REFUSED: dict[str, tuple[ComfyCall, type[Exception], str]] = {
    "metadata is no JSON": (
        told("{"),
        ValueError,
        "Invalid _quantization_metadata in checkpoint.safetensors",
    ),
    "metadata is a list": (told([]), ValueError, f"{METADATA} an object"),
    "metadata without layers": (told({"format": "nvfp4"}), ValueError, f"{METADATA} a layers object"),
    "layers is a list": (told({"layers": [P]}), ValueError, f"{METADATA} a layers object"),
    "a layer's entry is a text": (
        told({"layers": {P: "nvfp4"}}),
        ValueError,
        "Comfy quantization metadata for 'blk.fc' must be an object",
    ),
    "marker bytes are no JSON": (raw(b"{bad"), ValueError, INVALID),
    "marker ends in NUL": (raw(b'{"format": "nvfp4"}\0'), ValueError, INVALID),
    "marker is no UTF-8": (raw(b'{"format": "\xff"}'), ValueError, INVALID),
    "marker is empty": (raw(b""), ValueError, INVALID),
    "marker is a text": (
        raw(b'"nvfp4"'),
        ValueError,
        "Comfy quantization marker 'blk.fc.comfy_quant' must contain a JSON object",
    ),
    "marker is BF16": (
        nv().with_checkpoint(nv().checkpoint.with_tensor(f"{P}.comfy_quant", Header("BF16", (18,)))),
        TypeError,
        "Got unsupported ScalarType BFloat16",
    ),
    "header and tensor differ": (
        nv().with_metadata({"layers": {P: {"format": "int8_tensorwise"}}}),
        ValueError,
        "Conflicting Comfy quantization markers for 'blk.fc'",
    ),
    "mxfp8 scale too wide": (
        mx(weight_scale=Header("U8", (32, 4))),
        ValueError,
        MX_TEXT + "('F8_E4M3', (32, 64)) and ('U8', (32, 4))",
    ),
    "mxfp8 without scale": (mx(weight_scale=None), ValueError, MX_TEXT + "('F8_E4M3', (32, 64)) and None"),
    "mxfp8 of an odd width": (
        mx(weight=Header("F8_E4M3", (32, 48))),
        ValueError,
        MX_TEXT + "('F8_E4M3', (32, 48)) and ('U8', (32, 2))",
    ),
    "mxfp8 of codes": (
        mx(weight=Header("I8", (32, 64))),
        ValueError,
        MX_TEXT + "('I8', (32, 64)) and ('U8', (32, 2))",
    ),
    "no marker": (
        told({"layers": {}}),
        ValueError,
        "Quantized weights are missing comfy_quant metadata: ['blk.fc']",
    ),
    "five are shown": (
        ComfyCall(Checkpoint({}, {f"l{index}.weight": Header("I8", (2, 2)) for index in (6, 5, 4, 3, 2, 1)})),
        ValueError,
        "Quantized weights are missing comfy_quant metadata: ['l1', 'l2', 'l3', 'l4', 'l5']",
    ),
    "no tensor scale": (
        nv(weight_scale_2=None),
        ValueError,
        "Comfy layer 'blk.fc' is missing checkpoint tensors: ['blk.fc.weight_scale_2']",
    ),
    "no tensors at all": (
        one({"format": "asym_w4a8_int8"}, {}),
        ValueError,
        (
            "Comfy layer 'blk.fc' is missing checkpoint tensors: "
            "['blk.fc.weight', 'blk.fc.weight_s_channel', 'blk.fc.weight_s_rel']"
        ),
    ),
    "w4a8 group of 2": (
        one({**ASYMMETRIC, "group_size": 2}, W4A8),
        ValueError,
        "Comfy W4A8 layer 'blk.fc' has invalid group_size=2",
    ),
    "w4a8 group is a word": (
        one({**ASYMMETRIC, "group_size": "abc"}, W4A8),
        ValueError,
        "invalid literal for int() with base 10: 'abc'",
    ),
    "w4a8 group is null": (
        one({**ASYMMETRIC, "group_size": None}, W4A8),
        TypeError,
        "int() argument must be a string, a bytes-like object or a real number, not 'NoneType'",
    ),
    "w4a8 unsigned": (
        one(ASYMMETRIC, W4A8, weight=Header("U8", (2, 128))),
        ValueError,
        "Comfy W4A8 layer 'blk.fc' needs I8 weights and FP8 group scales, got U8 and F8_E4M3",
    ),
    "w4a8 half channels": (
        one(ASYMMETRIC, W4A8, weight_s_channel=Header("F16", (2,))),
        ValueError,
        "Comfy W4A8 layer 'blk.fc' needs F32 channel scales, got F16",
    ),
    "w4a8 of three dimensions": (
        one(ASYMMETRIC, W4A8, weight=Header("I8", (1, 2, 128))),
        ValueError,
        "Comfy W4A8 layer 'blk.fc' needs a 2D packed weight, got (1, 2, 128)",
    ),
    "w4a8 channels as a column": (
        one(ASYMMETRIC, W4A8, weight_s_channel=Header("F32", (2, 1))),
        ValueError,
        "Comfy W4A8 layer 'blk.fc' has incompatible weight/scale shapes: (2, 128), (2, 16), and (2, 1)",
    ),
    "w4a8 codebook of 15": (
        one(ASYMMETRIC, W4A8, weight_codebook=Header("F32", (15,))),
        ValueError,
        "Comfy W4A8 layer 'blk.fc' needs an F32[16] codebook",
    ),
    "w4a8 correction by row": (
        one(ASYMMETRIC, W4A8, weight_correction=Header("F32", (2, 16))),
        ValueError,
        "Comfy W4A8 layer 'blk.fc' has an incompatible correction tensor",
    ),
    "w4a4 half scales": (
        one(FOUR, W4A4, weight_scale=Header("F16", (2,))),
        ValueError,
        "Comfy W4A4 layer 'blk.fc' needs I8 packed weights and F32 scales, got I8 and F16",
    ),
    "w4a4 scales as a column": (
        one(FOUR, W4A4, weight_scale=Header("F32", (2, 1))),
        ValueError,
        "Comfy W4A4 layer 'blk.fc' has incompatible weight/scale shapes: (2, 128) and (2, 1)",
    ),
    "w4a4 rotation of 128": (
        one({**FOUR, "convrot_groupsize": 128}, W4A4),
        ValueError,
        "Comfy W4A4 layer 'blk.fc' has unsupported convrot_groupsize=128",
    ),
    "w4a4 of 96 columns": (
        one({**FOUR, "convrot_groupsize": 16}, W4A4, weight=Header("I8", (2, 48))),
        ValueError,
        (
            "Comfy W4A4 layer 'blk.fc' has input size 96, incompatible with quant_group_size=64 and "
            "convrot_groupsize=16"
        ),
    ),
    "nvfp4 signed": (
        nv(weight=Header("I8", (128, 32))),
        ValueError,
        "Comfy NVFP4 layer 'blk.fc' needs U8 packed weights and FP8 block scales, got I8 and F8_E4M3",
    ),
    "nvfp4 wide scales": (
        nv(weight_scale=Header("F32", (128, 4))),
        ValueError,
        "Comfy NVFP4 layer 'blk.fc' needs U8 packed weights and FP8 block scales, got U8 and F32",
    ),
    "nvfp4 half tensor scale": (
        nv(weight_scale_2=Header("BF16", ())),
        ValueError,
        "Comfy NVFP4 layer 'blk.fc' needs a scalar F32 weight_scale_2, got BF16()",
    ),
    "nvfp4 two tensor scales": (
        nv(weight_scale_2=Header("F32", (2,))),
        ValueError,
        "Comfy NVFP4 layer 'blk.fc' needs a scalar F32 weight_scale_2, got F32(2,)",
    ),
    "nvfp4 of three dimensions": (
        nv(weight=Header("U8", (1, 128, 32))),
        ValueError,
        "Comfy NVFP4 layer 'blk.fc' needs a 2D packed weight, got (1, 128, 32)",
    ),
    "nvfp4 padded scales": (
        nv(weight=Header("U8", (100, 32))),
        ValueError,
        "Comfy NVFP4 layer 'blk.fc' has incompatible weight/scale shapes: (100, 32) and (128, 4)",
    ),
    "nvfp4 half as many activation scales": (
        nv(pre_quant_scale=Header("F32", (32,))),
        ValueError,
        "Comfy NVFP4 layer 'blk.fc' has an incompatible pre_quant_scale: F32(32,)",
    ),
    "one int8 scale for three dimensions": (
        one(TABLE, {"weight": Header("I8", (2, 3, 4)), "weight_scale": Header("F32", ())}),
        ValueError,
        "Comfy tensorwise INT8 layer 'blk.fc' needs a 2D weight, got (2, 3, 4)",
    ),
    "int8 half scale": (
        one(ROTATED, INT8, weight_scale=Header("BF16", (2, 1))),
        ValueError,
        "Comfy INT8 layer 'blk.fc' needs I8 weights and F32 scales, got I8 and BF16",
    ),
    "int8 flat scale": (
        one(ROTATED, INT8, weight_scale=Header("F32", (2,))),
        ValueError,
        "Comfy INT8 layer 'blk.fc' has incompatible weight/scale shapes: (2, 256) and (2,)",
    ),
    "two layers of one name": (
        ComfyCall(
            checkpoint({"a.q": (ROTATED, INT8), "a.k": (ROTATED, INT8)}),
            NameMapper({"a.q": "a.qkv", "a.k": "a.qkv"}),
        ),
        ValueError,
        "Comfy markers collide after parameter mapping at 'a.qkv'",
    ),
    "format nf4": (
        one({"format": "nf4"}, NVFP4),
        NotImplementedError,
        "Unsupported Comfy quantization format(s): nf4",
    ),
    "no format": (
        one({"x": 1}, NVFP4),
        NotImplementedError,
        "Unsupported Comfy quantization format(s): None",
    ),
    "two formats": (
        two(({"format": "nvfp4"}, NVFP4), ({"format": "float8_e4m3fn"}, FP8)),
        NotImplementedError,
        "Unsupported Comfy quantization format(s): float8_e4m3fn, nvfp4",
    ),
    "w4a8 on volta": (
        one(ASYMMETRIC, W4A8).replace(capability=7.0),
        ValueError,
        "Serialized W4A8 checkpoints require CUDA compute capability >= 8.0; got 7.0",
    ),
    "w4a4 on volta": (
        one(FOUR, W4A4).replace(capability=7.0),
        ValueError,
        "Serialized W4A4 checkpoints require CUDA compute capability >= 7.5; got 7.0",
    ),
    "another backend": (
        one(ROTATED, INT8).replace(backend="triton"),
        ValueError,
        "convrot_int8 backend must be one of ('auto', 'comfy_kitchen', 'jit'), got 'triton'",
    ),
    "rotated by 1": (
        one({**ROTATED, "convrot": 1}, INT8),
        ValueError,
        "Serialized convrot_int8 layer 'blk.fc' must set convrot=true",
    ),
    "int8 rotation of 128": (
        one({**ROTATED, "convrot_groupsize": 128}, INT8),
        ValueError,
        "Serialized convrot_int8 layer 'blk.fc' must declare convrot_groupsize in (16, 64, 256), got 128",
    ),
    "int8 rotation as text": (
        one({**ROTATED, "convrot_groupsize": "256"}, INT8),
        ValueError,
        "Serialized convrot_int8 layer 'blk.fc' must declare convrot_groupsize in (16, 64, 256), got '256'",
    ),
    "w4a8 beside a rotated int8": (
        two((ASYMMETRIC, W4A8), (ROTATED, INT8)),
        ValueError,
        "Unsupported Comfy W4A8 format for 'blk.other': 'int8_tensorwise'",
    ),
    "w4a8 not rotated": (
        one({"format": "asym_w4a8_int8"}, W4A8),
        ValueError,
        "Serialized W4A8 layer 'blk.fc' must set convrot=true",
    ),
    "w4a4 in fp4": (
        one({**FOUR, "linear_dtype": "fp4"}, W4A4),
        ValueError,
        "Serialized W4A4 layer 'blk.fc' has unsupported linear_dtype='fp4'; expected one of ('int4', 'int8')",
    ),
    "nvfp4 beside a rotated int8": (
        two(({"format": "nvfp4"}, NVFP4), (ROTATED, INT8)),
        ValueError,
        "Unsupported Comfy NVFP4 companion for 'blk.other': 'int8_tensorwise'",
    ),
    "nvfp4 rotated": (
        one({"format": "nvfp4", "convrot": True}, NVFP4),
        ValueError,
        "Rotated NVFP4 weights are not supported: 'blk.fc'",
    ),
    "a table in nvfp4": (
        nv().replace(x=TensorSpec((3,), DType.I64), layer=P),
        ValueError,
        (
            "Unsupported quantized embedding marker for 'blk.fc': "
            "{'format': 'nvfp4', '_has_pre_quant_scale': False}"
        ),
    ),
    "a linear in int8 beside nvfp4": (
        two(({"format": "nvfp4"}, NVFP4), (TABLE, INT8)).replace(
            x=TensorSpec((1, 256), DType.BF16), layer="blk.other"
        ),
        ValueError,
        "Unsupported quantized linear marker for 'blk.other'",
    ),
    "nvfp4 on hopper": (
        nv().replace(capability=9.0),
        ValueError,
        "Comfy NVFP4 matmul requires NVIDIA compute capability 10.0+",
    ),
    "full precision, fused": (
        one({"format": "float8_e4m3fn", "full_precision_matrix_mult": True}, FP8).replace(partitions=3),
        ValueError,
        "Comfy full_precision_matrix_mult does not support fused linears",
    ),
    "int8 of 192 columns": (
        one(ROTATED, INT8, weight=Header("I8", (2, 192))),
        ValueError,
        (
            "Serialized convrot_int8 layer 'blk.fc' has input size 192, which is not divisible by its "
            "ConvRot "
            "group size 256"
        ),
    ),
    "w4a8 of 192 columns": (
        one(ASYMMETRIC, W4A8, weight=Header("I8", (2, 96)), weight_s_rel=Header("F8_E4M3", (2, 12))),
        ValueError,
        (
            "Serialized W4A8 layer 'blk.fc' has input size 192, incompatible with group_size=16 and "
            "convrot_groupsize=256"
        ),
    ),
    "int8 shared out": (
        one(ROTATED, INT8).replace(tp_size=2),
        ValueError,
        (
            "convrot_int8 needs input_size_per_partition (128) divisible by group_size 256; leave the "
            "layer in "
            "BF16 with --quantization-ignored-layers"
        ),
    ),
    "w4a8 shared out": (
        one(ASYMMETRIC, W4A8).replace(tp_size=2),
        ValueError,
        "W4A8 needs input_size_per_partition (128) divisible by ConvRot group size 256",
    ),
    "w4a4 shared out": (
        one(FOUR, W4A4).replace(tp_size=4),
        ValueError,
        "W4A4 needs input_size_per_partition (64) divisible by ConvRot group size 256",
    ),
    "an activation of 64 bits": (
        one(ROTATED, INT8).replace(x=TensorSpec((1, 256), DType.F64)),
        ValueError,
        "convrot_int8 does not support activation dtype torch.float64",
    ),
    "a table as a linear": (
        one(TABLE, INT8).replace(x=TensorSpec((1, 256), DType.BF16)),
        NotImplementedError,
        "Comfy INT8 embeddings support lookup only",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    call, error, text = REFUSED[name]
    examination = OPERATION.examine(call)
    assert examination.raised is not None
    assert (examination.raised.raises, examination.raised.text) == (error, text)
    with pytest.raises(error) as raised:
        guard(STAGES, call)
    assert str(raised.value) == text


@pytest.mark.parametrize("name", REFUSED)
def test_no_fix_leaves_its_check_broken_and_safe_ones_keep_every_byte_count(name: str) -> None:
    call, _, _ = REFUSED[name]
    for outcome in OPERATION.examine(call).failed():
        for occurrence in outcome.occurrences:
            for fix in occurrence.violation.fixes(occurrence.subject):
                [own] = [item for item in OPERATION.examine(fix.call).outcomes if item.check is outcome.check]
                assert own.status is not Status.FAILED, fix.title
                assert fix.edits(call), fix.title
