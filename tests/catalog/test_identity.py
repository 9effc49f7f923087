"""Ids and slugs equal those of the public dataset."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from catalog.identity import distinct, record_id, slug

REPO = "sgl-project/sglang"
KERNELS = "python/sglang/kernels/ops"
QUANTO = "python/sglang/multimodal_gen/runtime/layers/quantization/configs/quanto_int8_config.py"


@pytest.mark.parametrize(
    ("expected", "message", "path"),
    [
        (
            "402df144293dfbb6",
            "int32-packed scale buffers require scale_ue8m0=True",
            f"{KERNELS}/quantization/per_token_group_quant.py",
        ),
        (
            "423125772347fb99",
            (
                "MXFP8 fused decode prologue requires interleaved K/V scale buffers with shape {sf_shape}, "
                "got {tuple(sfk.shape)} and {tuple(sfv.shape)}."
            ),
            f"{KERNELS}/attention/inkling_attn_prologue.py",
        ),
        (
            "3018da578aab5d5a",
            "kv_scales must be fp32, got {kv_scales.dtype}",
            f"{KERNELS}/attention/dsv4/unified_kv_kernels/paged_decode.py",
        ),
        ("0416e3d22055e05b", "Quanto auxiliary scale {scale_name!r} must be a float scalar", QUANTO),
    ],
)
def test_ids_of_the_public_dataset(expected: str, message: str, path: str) -> None:
    assert record_id(REPO, None, message, path) == expected


def test_a_code_takes_the_place_of_the_message() -> None:
    assert record_id("a/b", "E1", "one", "f.py") == record_id("a/b", "E1", "another", "f.py")
    assert record_id("a/b", "E1", "one", "f.py") == record_id("a/b", None, "E1", "f.py")
    assert record_id("a/b", "", "one", "f.py") != record_id("a/b", None, "one", "f.py")


def test_parts_cannot_run_into_each_other() -> None:
    assert record_id("a/b", None, "cd", "e") != record_id("a/bc", None, "d", "e")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("kv_scales must be fp32, got {kv_scales.dtype}", "kv-scales-must-be-fp32-got-kv-scales-dtype"),
        (
            "Quanto auxiliary scale {scale_name!r} must be a float scalar",
            "quanto-auxiliary-scale-scale-name-r-must-be-a-fl",
        ),
        ("Größe: 3", "gr-e-3"),
        ("--A  b__", "a-b"),
        ("{}", "ValueError"),
        ("", "ValueError"),
    ],
)
def test_slugs(text: str, expected: str) -> None:
    assert slug(text, "ValueError") == expected


def test_repeated_slugs_are_numbered_in_order() -> None:
    assert list(distinct(["a", "b", "a", "a", "b"])) == ["a", "b", "a-2", "a-3", "b-2"]


def test_a_number_that_is_taken_is_passed_over() -> None:
    assert list(distinct(["a", "a-2", "a", "a"])) == ["a", "a-2", "a-3", "a-4"]


@given(st.lists(st.sampled_from(["a", "a-2", "a-2-2", "a-3", "b"]), max_size=12))
def test_slugs_of_a_repository_are_distinct(slugs: list[str]) -> None:
    names = list(distinct(slugs))
    assert len(set(names)) == len(names) == len(slugs)
