"""A diagnosis in a terminal: what was assumed, what no edit mends, long lists folded."""

from __future__ import annotations

import asyncio
import io
import json
from typing import Any

from rich.console import Console

from app.diagnose.offline import diagnose_body
from app.printing import show_diagnosis


def shown(operation: str, arguments: dict[str, Any], target: str | None = None, **more: Any) -> str:
    body = {"operation": operation, "arguments": arguments, "level": "checks", "target": target}
    answer = asyncio.run(diagnose_body(json.dumps(body).encode())) | more
    out = io.StringIO()
    show_diagnosis(Console(file=out, highlight=False, soft_wrap=True), answer)
    return out.getvalue()


def test_what_was_fitted_is_told_and_defaults_are_folded() -> None:
    text = shown("flash_attn_fwd", {"q": "fp8[1,256,1,128]"}, "H100")
    assert "v = float8_e4m3fn[1,256,1,128] (fitted to the shapes given)" in text
    assert "v.dtype = float8_e4m3fn, target = sm90 (v not given: fitted to the shapes given)" in text
    assert "left at their defaults: cu_seqlens_q, cu_seqlens_k, seqused_q, seqused_k and 12 more" in text


def test_a_check_of_many_tensors_names_those_that_break_it() -> None:
    lengths = {"seqused_k": "int64[1]", "q": "bf16[1,256,1,128]"}
    body = {"operation": "flash_attn_fwd", "arguments": lengths, "level": "checks"}
    answer = asyncio.run(diagnose_body(json.dumps(body).encode()))
    [row] = [check for check in answer["checks"] if check["status"] == "failed"]
    assert (row["arguments"], row["actual"]) == (["seqused_k"], "seqused_k.dtype = int64")


def test_many_checks_that_were_not_reached_are_folded() -> None:
    text = shown("per_token_group_quant", {"input": "bf16[256]"})
    [line] = [line for line in text.splitlines() if line.startswith("not reached")]
    assert line.endswith(" more")
    assert len(line) < 200


def test_advice_is_shown_even_where_a_fix_is() -> None:
    text = shown("per_token_group_quant", {"input": "bf16[16,3420]"})
    assert "note group_size_does_not_divide: no value of group_size helps" in text
    assert "fix 1 Pad the rows from 3420 to 3456 columns" in text


def test_compilations_are_told_in_a_sentence_each() -> None:
    made = {
        "kernel": "k",
        "target": "sm75",
        "kind": "cubin",
        "refusal": None,
        "sharedBytes": 70_000,
        "sharedLimit": 65_536,
        "fits": False,
    }
    refused = {**made, "refusal": 'at 1:0:\n^\nValueError("type fp8e4nv not supported")', "fits": None}
    text = shown("per_token_group_quant", {}, compilations=[made, refused])
    assert "k for sm75 compiles and does not fit: 70,000 of 65,536 bytes of shared memory" in text
    assert 'k for sm75 does not compile: ValueError("type fp8e4nv not supported")' in text
