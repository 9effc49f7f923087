"""The kernels compile for architectures that this host lacks; the compiler's refusals arrive as its own text.

The work runs in another process: this one may interpret kernels.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

PROGRAM = """
import json, sys, torch
from kernels import offline
from kernels.per_token_group_quant import kernel

fp8, int8 = torch.float8_e4m3fn, torch.int8
bf16, fp16, fp32 = torch.bfloat16, torch.float16, torch.float32
shape = dict(rows=4096, groups=56)
variants = {
    "fp32 scales": kernel.variant(bf16, fp8, **shape),
    "ue8m0": kernel.variant(fp16, fp8, scale_ue8m0=True, **shape),
    "float32 input, group 16": kernel.variant(fp32, fp8, rows=64, groups=5, group_size=16, scale_ue8m0=True),
    "masked silu": kernel.variant(
        bf16, fp8, scale_ue8m0=True, fuse_silu_and_mul=True, masked=True, **shape
    ),
    "dense silu": kernel.variant(bf16, fp8, fuse_silu_and_mul=True, silu_and_mul_mode="dense", **shape),
    "int8, group 256": kernel.variant(bf16, int8, rows=3, groups=4, group_size=256),
}
everywhere = {"ue8m0", "int8, group 256"}
found = []
for target in offline.TARGETS:
    for name, variant in variants.items():
        if target not in ("sm90", "gfx950") and name not in everywhere:
            continue
        try:
            compiled = offline.compile_for(target, variant)
        except offline.NotCompilable as error:
            found.append([target, name, str(error), 0, 0])
        else:
            found.append([target, name, compiled.kind, len(compiled.binary), compiled.shared_bytes])
json.dump(found, sys.stdout)
"""

NO_FP8 = {"sm80", "sm86"}


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> list[list[Any]]:
    """[target, variant, kind or the compiler's refusal, bytes of code, bytes of shared memory]"""
    environment = os.environ | {
        "TRITON_INTERPRET": "0",
        "TRITON_CACHE_DIR": str(tmp_path_factory.mktemp("triton")),
    }
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        capture_output=True,
        text=True,
        check=False,
        timeout=110,
        env=environment,
    )
    assert done.returncode == 0, done.stderr
    found: list[list[Any]] = json.loads(done.stdout)
    return found


def test_every_variant_compiles_where_float8_exists(results: list[list[Any]]) -> None:
    expected = [row for row in results if row[0] not in NO_FP8 or "int8" in row[1]]
    assert len(expected) == 2 * 6 + 7 * 2 - 2
    for target, name, kind, size, shared in expected:
        assert size > 1000, (target, name, kind)
        assert kind == ("hsaco" if target.startswith("gfx") else "cubin")
        # Far below what any of these devices gives a program; more would mean data left the registers.
        assert shared <= 4096, (target, name)


def test_architectures_without_float8_are_refused_in_the_compilers_words(results: list[list[Any]]) -> None:
    refusals = [text for target, name, text, size, _ in results if target in NO_FP8 and not size]
    assert len(refusals) == 2
    for text in refusals:
        assert "type fp8e4nv not supported in this architecture" in text
