"""What people ran into, as calls of our operations: the right checks fail, the right fix is offered early.

Public reports, retold in sizes and types alone. Where the report was about another library, the call is the
nearest that an operation here can be asked.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from starlette.testclient import TestClient

from app.main import create_app
from app.settings import Settings

OFFERED = 3
"""Fixes that a reader looks at."""


@dataclass(frozen=True)
class Report:
    """One report.

    fails    ids of the checks that fail, in order
    says     what the failing rows' reasons hold: the arithmetic of the report
    edits    (argument, attribute, value) of fixes that are among the first; empty where none is due
    """

    operation: str
    arguments: dict[str, Any]
    fails: list[str]
    says: tuple[str, ...]
    edits: tuple[tuple[tuple[str, str, Any], ...], ...] = ()
    target: str | None = None
    verdict: str = "rejected"


def encoded(value: Any) -> str:
    return base64.b64encode(json.dumps(value).encode()).decode()


def stored(dtype: str, *shape: int) -> dict[str, Any]:
    return {"dtype": dtype, "shape": list(shape)}


PACKED = {
    "blk.attn1.to_q.weight": stored("U8", 4096, 2048),
    "blk.attn1.to_q.weight_scale": stored("F8_E4M3", 4096, 256),
    "blk.attn1.to_q.weight_scale_2": stored("F32"),
}
AUXILIARY = {
    "metadata": {
        "quantization_format": "quanto",
        "quantization_map_base64": encoded({"l": {"weights": "qint8", "activations": "none"}}),
    },
    "tensors": {
        "l.weight._data": stored("I8", 3072, 3072),
        "l.weight._scale": stored("BF16", 3072, 1),
        "l.input_scale": stored("BF16", 1),
        "l.output_scale": stored("BF16", 1),
    },
}
SIDECAR = {"l.weight._data": stored("U8", 64, 32), "l.weight._scale": stored("F32", 64, 1)}

REPORTS = {
    "a slice at a column, of rows with a pad of four elements": Report(
        "per_token_group_quant",
        {
            "input": {"shape": [16, 4096], "dtype": "bf16", "strides": [4100, 1], "offset": 4},
            "group_size": 128,
        },
        ["input_address_unaligned", "input_row_stride_unaligned"],
        ("8 bytes", "8200 bytes", "multiple of 32"),
        ((("input", "strides", [4096, 1]), ("input", "offset", 0)),),
    ),
    "packed exponents for a GEMM on Hopper": Report(
        "per_token_group_quant",
        {"input": "bf16[16,4096]", "scale_ue8m0": True, "column_major_scales": True},
        ["packed_scales_before_blackwell"],
        ("sm90", "float32"),
        ((("scale_ue8m0", "value", False),),),
        target="sm90",
        verdict="passed",
    ),
    "the same on Blackwell": Report(
        "per_token_group_quant",
        {"input": "bf16[16,4096]", "scale_ue8m0": True, "column_major_scales": True},
        [],
        (),
        target="sm100",
        verdict="passed",
    ),
    "a partition of 18432 / 32 columns under blocks of 128": Report(
        "per_token_group_quant",
        {"input": "bf16[16,576]", "group_size": 128},
        ["group_size_does_not_divide"],
        ("576 % 128 = 64",),
        ((("group_size", "value", 64),),),
    ),
    "1152 columns, as 16 partitions have": Report(
        "per_token_group_quant", {"input": "bf16[16,1152]"}, [], (), verdict="passed"
    ),
    "90 groups padded to 92, each taken for a column": Report(
        "per_token_group_quant",
        {
            "input": "bf16[16,2880]",
            "output_q": "fp8[16,2880]",
            "output_s": "int32[16,92]",
            "group_size": 32,
            "scale_ue8m0": True,
        },
        ["scale_columns_differ"],
        ("90 groups need 23",),
        ((("output_s", "shape", [16, 23]),),),
    ),
    "packed FP4 without metadata": Report(
        "comfy_checkpoint",
        {"checkpoint": {"metadata": {}, "tensors": PACKED}, "x": "bf16[3520,4096]"},
        ["markers_missing"],
        ("K = 4096", "4096/16 = 256", "4096x2048"),
        (
            (
                (
                    "checkpoint",
                    "/metadata/_quantization_metadata",
                    json.dumps({"layers": {"blk.attn1.to_q": {"format": "nvfp4"}}}),
                ),
            ),
        ),
    ),
    "the same file, taken for Quanto's": Report(
        "quanto_int8_checkpoint",
        {"checkpoint": {"metadata": {}, "tensors": PACKED}},
        ["not_quanto"],
        ("no quantization_format", "comfy_checkpoint"),
    ),
    "auxiliary scales of shape [1]": Report(
        "quanto_int8_checkpoint",
        {"checkpoint": AUXILIARY},
        ["aux_scale_not_scalar"],
        ("l.input_scale", "l.output_scale", "shape []"),
        (
            (
                ("checkpoint", "/tensors/l.input_scale/shape", []),
                ("checkpoint", "/tensors/l.output_scale/shape", []),
            ),
        ),
    ),
    "an FP8 cache without its scales": Report(
        "sparse_attn_v4_paged_decode",
        {"q": "bf16[8,64,512]", "unified_kv": "float8_e4m3fn[4096,512]", "kv_scales": None},
        ["kv_dtype"],
        ("no kv_scales",),
        ((("kv_scales", "presence", {"shape": [4096, 8], "dtype": "float32"}),),),
        target="sm100",
    ),
    "the quantization map in a file of its own": Report(
        "quanto_int8_checkpoint",
        {"checkpoint": {"metadata": {}, "tensors": SIDECAR}},
        ["not_quanto"],
        ("quantization_map.json", "Only qint8"),
        (
            (
                ("checkpoint", "/metadata/quantization_format", "quanto"),
                (
                    "checkpoint",
                    "/metadata/quantization_map_base64",
                    encoded({"l": {"weights": "qint8", "activations": "none"}}),
                ),
                ("checkpoint", "/tensors/l.weight._data/dtype", "I8"),
            ),
        ),
    ),
    "heads of 96 columns": Report(
        "inkling_attn_prologue_decode",
        {"dq": 192, "dkv": 96},
        ["pool_size_does_not_divide", "widths_split_heads"],
        ("multiples of a head's 128",),
        ((("dq", "value", 256), ("dkv", "value", 128)),),
    ),
    "MXFP8 pools whose scales stayed behind": Report(
        "inkling_attn_prologue_decode",
        {"mxfp8_quant": True, "page_size": 128},
        ["decode_scale_buffers_missing"],
        ("sfk and sfv",),
        (
            (
                (
                    "sfk",
                    "presence",
                    {"shape": [2, 1, 32, 4, 4], "dtype": "uint8", "values": {"kind": "zeros"}},
                ),
            ),
        ),
    ),
}


@pytest.fixture(scope="module")
def client() -> Iterator[TestClient]:
    with TestClient(create_app(Settings(workers=0))) as made:
        yield made


def asked(client: TestClient, report: Report) -> dict[str, Any]:
    body = {
        "operation": report.operation,
        "arguments": report.arguments,
        "level": "checks",
        "target": report.target,
    }
    response = client.post("/api/diagnose", json=body)
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


@pytest.mark.parametrize("name", REPORTS)
def test_the_checks_that_fail_are_those_of_the_report(client: TestClient, name: str) -> None:
    report = REPORTS[name]
    answer = asked(client, report)
    failed = [row for row in answer["checks"] if row["status"] == "failed"]
    assert [row["id"] for row in failed] == report.fails
    assert answer["verdict"] == report.verdict
    said = " ".join(item["reason"] for row in failed for item in row["occurrences"])
    assert [part for part in report.says if part not in said] == []


@pytest.mark.parametrize("name", [name for name, report in REPORTS.items() if report.edits])
def test_the_reports_own_fix_is_among_the_first(
    client: TestClient, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.diagnose.fixes.MAX_SECONDS", 60.0)  # a busy machine must not end the search
    report = REPORTS[name]
    offered = [
        {(edit["argument"], edit["attribute"]): edit["to"] for edit in fix["edits"]}
        for fix in asked(client, report)["fixes"][:OFFERED]
    ]
    for edits in report.edits:
        wanted = [((argument, attribute), value) for argument, attribute, value in edits]
        assert any(all(made.get(at) == value for at, value in wanted) for made in offered), offered
