"""A matcher over upstream's templates, the launcher's messages and the sites that print none."""

from __future__ import annotations

import pytest

from catalog.match import Entry, Matcher, Site
from catalog.template import Template, infer_kind
from tests.catalog.match.upstream import RECORDS

REPO = "sgl-project/sglang"
LAUNCHER = "python/sglang/kernels/jit/csrc/gemm/per_token_group_quant.cuh"
QUANT = "python/sglang/kernels/ops/quantization/per_token_group_quant.py"


def entry(
    record_id: str,
    message: str,
    *sites: Site,
    repo: str = REPO,
    code: str | None = None,
    curated: bool = True,
    launcher: bool = False,
    textless: bool = False,
) -> Entry:
    holes = () if textless else Template.parse(message).holes
    kinds = tuple(infer_kind(hole.expr, hole.format_spec) for hole in holes)
    return Entry(record_id, repo, message, code, sites, curated, kinds, launcher=launcher, textless=textless)


def _upstream() -> list[Entry]:
    return [
        entry(
            known.record_id,
            known.message,
            *(Site(known.path, name, known.lines, known.exception) for name in known.functions),
            curated=known.ours,
        )
        for known in RECORDS
    ]


def _launched(record_id: str, message: str, *lines: int) -> Entry:
    return entry(record_id, message, Site(LAUNCHER, None, lines, "RuntimeError"), launcher=True)


def _mismatched(record_id: str, cause: str, *lines: int) -> Entry:
    tensor = "Tensor<{shape}>[strides=<{strides}>, dtype={dtype}, device={device}]"
    message = f"Tensor match failed for {tensor} at {{file}}:{{line}}\n- Root cause: {cause}"
    return entry(record_id, message, Site(LAUNCHER, "run", lines, "RuntimeError"))


def _asserted(record_id: str, source: str, function: str, *lines: int) -> Entry:
    return entry(record_id, source, Site(QUANT, function, lines, "AssertionError"), textless=True)


def _checked(record_id: str, source: str, *lines: int) -> Entry:
    return entry(record_id, source, Site(LAUNCHER, None, lines, "RuntimeError"), textless=True)


@pytest.fixture(scope="session")
def entries() -> list[Entry]:
    return [
        *_upstream(),
        _launched(
            "base-aligned", "input base pointer must be 32B-aligned for the vectorized loads", 496, 547
        ),
        _launched(
            "row-aligned", "input token stride must keep rows 32B-aligned for the vectorized loads", 498, 549
        ),
        _mismatched("dimensions", "Tensor dimension mismatch: expected {expected} but got {got}", 487, 538),
        _mismatched(
            "sizes", "Size mismatch for shape#{dim}({name!r}): expected {expected} but got {got}", 488, 539
        ),
        _mismatched("devices", "Device mismatch: expected {expected} but got {got}", 488, 539),
        _launched(
            "overflow",
            "Internal Error: ScaleStoreArgs overflow. Something wild must happened.\n"
            "More debug info:  expert_bytes={} token_bytes={} group_bytes={}",
            98,
        ),
        _launched("launch", "CUDA error: {text}", 584, 637),
        _checked("divisible", "CHECK_HOST(hidden_size % Trait::kGroupSize == 0)", 506, 557),
        _checked("width", "CHECK_HOST(input_width == hidden_size * kWidth)", 507, 558),
        _asserted("group-size", "assert group_size in _SUPPORTED_GROUP_SIZES", "_jit_module", 41),
        _asserted("in-dtype", "assert in_dtype in _SUPPORTED_INPUT_DTYPES", "_jit_module", 39),
    ]


@pytest.fixture(scope="session")
def matcher(entries: list[Entry]) -> Matcher:
    return Matcher(entries)
