"""Scanning must find the very records that are curated: the ids come out the same."""

from __future__ import annotations

from catalog.identity import record_id
from catalog.scan import python
from catalog.scan.extracted import records

PATH = "python/sglang/kernels/ops/attention/dsv4/unified_kv_kernels/paged_decode.py"
CODE = b"""
def sparse(q, kv_scales):
    if kv_scales is not None:
        if kv_scales.dtype != torch.float32:
            raise RuntimeError(f"kv_scales must be fp32, got {kv_scales.dtype}")
    if q:
        raise RuntimeError("twice")
    raise RuntimeError("twice")
"""


def test_the_public_data_sets_id_comes_out() -> None:
    first, second = records("sgl-project/sglang", [python.scan(PATH, CODE)])
    assert (first.id, first.slug) == ("3018da578aab5d5a", "kv-scales-must-be-fp32-got-kv-scales-dtype")
    assert first.sites[0].condition == "kv_scales is not None and kv_scales.dtype != torch.float32"
    assert second.id == record_id("sgl-project/sglang", None, "twice", PATH)
    assert [site.line for site in second.sites] == [7, 8]


def test_slugs_are_numbered_in_path_order() -> None:
    scans = [python.scan(path, b"raise ValueError('same words')") for path in ("b.py", "a.py")]
    assert [(item.path, item.slug) for item in records("o/r", scans)] == [
        ("a.py", "same-words"),
        ("b.py", "same-words-2"),
    ]
