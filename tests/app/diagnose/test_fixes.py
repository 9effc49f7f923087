"""The fix search: what it offers first, what it says where nothing helps, and what it spends."""

from __future__ import annotations

import json
from statistics import median
from typing import Any

import pytest

from app.diagnose.advice import advice
from app.diagnose.fixes import MAX_CHAINED, MAX_EVALUATIONS, Search, search
from app.diagnose.questions import parse_question
from app.diagnose.service import Question
from benchmarks.faults import several
from kernels.registry import operations

PACKED = {
    "input": "bf16[16,7168]",
    "output_q": "fp8[16,7168]",
    "output_s": "int32[16,14]:stride(1,16)",
    "scale_ue8m0": False,
}
FP4 = {
    "metadata": {"_quantization_metadata": json.dumps({"layers": {"l": {"format": "nvfp4"}}})},
    "tensors": {
        "l.weight": {"dtype": "U8", "shape": [128, 32]},
        "l.weight_scale": {"dtype": "F8_E4M3", "shape": [128, 4]},
        "l.weight_scale_2": {"dtype": "F32", "shape": []},
    },
}
EVALUATIONS = 50
"""Examinations that a search over three faults may take in the median case."""


def asked(operation: str, arguments: dict[str, Any], target: str | None = None) -> Question:
    body = {"operation": operation, "arguments": arguments, "target": target, "level": "checks"}
    return parse_question(json.dumps(body).encode())


def searched(question: Question) -> Search:
    return search(question.call, question.operation.examine(question.call), question.operation.examine)


def told(question: Question) -> list[str]:
    examination = question.operation.examine(question.call)
    repairs = search(question.call, examination, question.operation.examine).repairs
    return advice(question.call, examination, repairs, question.operation.examine)


@pytest.mark.parametrize("name", [name for name in operations() if name != "safetensors_file"])
def test_three_faults_take_few_examinations_and_every_repair_passes(name: str) -> None:
    operation = operations()[name]
    spent = []
    for call in several(operation, 3, 12, seed=20):
        examination = operation.examine(call)
        found = search(call, examination, operation.examine)
        spent.append(found.evaluations)
        hopeless = any(
            not list(outcome.occurrences[0].violation.fixes(outcome.occurrences[0].subject))
            for outcome in examination.failed()
        )
        assert found.repairs or hopeless
        for repair in found.repairs:
            assert not operation.examine(repair.call).rejected
            assert call.edits_to(repair.call) == repair.edits
        assert [repair.rank for repair in found.repairs] == sorted(repair.rank for repair in found.repairs)
    if not spent:
        pytest.skip("no three examples of this operation fit into one call")
    assert median(spent) <= EVALUATIONS
    assert max(spent) <= MAX_EVALUATIONS + MAX_CHAINED


def test_three_faults_are_mended_together_and_one_edit_that_mends_two_comes_first() -> None:
    """The width is stated wrong, which breaks the group size too; the last stride is a fault of its own."""
    question = asked(
        "per_token_group_quant",
        {"input": "bf16[4,256]:stride(264,1):offset(8)", "output_q": "fp8[4,256]", "output_s": "f16[4,2]"},
    )
    failed = [outcome.check.id() for outcome in question.operation.examine(question.call).failed()]
    assert failed == ["unsupported_scale_dtype", "input_address_unaligned", "input_row_stride_unaligned"]
    first = searched(question).repairs[0]
    assert {(edit.argument, edit.attribute) for edit in first.edits} == {
        ("output_s", "dtype"),
        ("input", "strides"),
        ("input", "offset"),
    }


def test_fewest_edits_come_first_and_say_which_warning_they_leave() -> None:
    """Packed scales before Blackwell: one safe edit with a warning, then two that change the numbers."""
    first, second, *_ = searched(asked("per_token_group_quant", PACKED, "sm90")).repairs
    assert [(edit.argument, edit.after) for edit in first.edits] == [("scale_ue8m0", True)]
    assert (first.warnings, second.warnings) == (("packed_scales_before_blackwell",), ())
    assert [edit.argument for edit in searched(asked("per_token_group_quant", PACKED)).repairs[0].edits] == [
        "scale_ue8m0"
    ]


def test_no_fix_has_a_step_that_a_later_one_undoes() -> None:
    """FP8 without scales on a GPU without FP8: scales would only be passed to be dropped again."""
    question = asked(
        "sparse_attn_v4_paged_decode", {"unified_kv": "fp8[4096,512]", "q": "bf16[8,64,512]"}, "sm80"
    )
    [repair] = searched(question).repairs
    assert repair.title == "Dequantize the pool to bfloat16 and drop kv_scales"
    assert [edit.argument for edit in repair.edits] == ["unified_kv"]


@pytest.mark.parametrize("group_size", [128, 96])
def test_a_width_that_no_group_size_divides_says_so_and_is_padded(group_size: int) -> None:
    question = asked("per_token_group_quant", {"input": "bf16[16,3420]", "group_size": group_size})
    sentence = " ".join(text for text in told(question) if "group_size" in text)
    assert "no value of group_size helps (tried: 16, 32, 64, 128, 256)" in sentence
    assert sentence.count("pad them to 3456") == 1
    assert "leave this layer unquantized" in sentence
    repair = searched(question).repairs[0]
    shape = next(edit for edit in repair.edits if edit.attribute == "shape")
    assert (shape.argument, shape.after) == ("input", [16, 3456])
    assert not repair.safe


def test_a_width_that_another_group_size_divides_is_not_given_up() -> None:
    question = asked("per_token_group_quant", {"input": "bf16[16,576]"})
    assert told(question) == []
    offered = [(edit.attribute, edit.after) for repair in searched(question).repairs for edit in repair.edits]
    assert ("value", 64) in offered
    assert ("shape", [16, 640]) in offered


def test_the_library_is_said_to_be_at_fault_where_it_is() -> None:
    empty = asked(
        "sparse_attn_v4_paged_decode",
        {"q": "bf16[0,16,128]", "kv_indices": "int32[0]", "kv_indptr": "int32[1]"},
    )
    [sentence] = told(empty)
    assert sentence.startswith("The library is at fault, not the call (nothing_to_reduce): ")
    assert searched(empty).repairs
    assert told(asked("sparse_attn_v4_paged_decode", {"q": "f32[2,16,128]"})) == []


def test_scales_as_the_exporter_writes_them_are_the_librarys_fault() -> None:
    def layer(scale: list[int]) -> Question:
        tensors = {
            "l.weight": {"dtype": "U8", "shape": [100, 32]},
            "l.weight_scale": {"dtype": "F8_E4M3", "shape": scale},
            "l.weight_scale_2": {"dtype": "F32", "shape": []},
        }
        text = json.dumps({"layers": {"l": {"format": "nvfp4", "full_precision_matrix_mult": True}}})
        metadata = {"_quantization_metadata": text}
        return asked("comfy_checkpoint", {"checkpoint": {"metadata": metadata, "tensors": tensors}})

    assert any("library is at fault" in text for text in told(layer([128, 4])))
    assert not any("library is at fault" in text for text in told(layer([100, 8])))


@pytest.mark.parametrize(
    ("operation", "arguments", "target"),
    [
        ("flash_attn_fwd", {}, "sm75"),
        ("flash_attn_fwd", {"v": "fp8[1,256,1,128]", "q": "fp8[1,256,1,128]"}, "sm90"),
        ("comfy_checkpoint", {"checkpoint": FP4}, "sm90"),
    ],
)
def test_another_gpu_is_advice_and_no_edit(operation: str, arguments: dict[str, Any], target: str) -> None:
    question = asked(operation, arguments, target)
    assert any("another GPU" in sentence for sentence in told(question))
    edited = {edit.argument for repair in searched(question).repairs for edit in repair.edits}
    assert not edited & {"_arch", "capability"}
