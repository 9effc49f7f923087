"""What must not be found: prose, other frameworks, Python's own messages; and what is only similar."""

from __future__ import annotations

import pytest

from catalog.match import MATCH, POSSIBLE, Entry, Matcher, Site
from catalog.store import entries, load_catalog
from tests.catalog.match.conftest import entry

SCALES = "3018da578aab5d5a"

PROSE = (
    "Should I raise or lower mem-fraction-static when memory runs out? The docs and the error disagree.",
    "My kv_scales are fp16 while unified_kv is fp8. Must the scales be fp32, is D divisible by the group?",
    "Quanto quantization of checkpoints: which tensors, and which metadata, does a layer need?",
)
OTHERS = (
    "ValueError: [dequantize] Shape of scales and biases does not match the matrix given the quantization.",
    "AssertionError: the last dimension of `x` 3420 must be divisible by `group_size` 128",
    "ValueError: Weight output_partition_size = 320 is not divisible by weight quantization block_n = 128.",
    "RuntimeError: CUDA error: an illegal memory access was encountered",
    "RuntimeError: CUDA error: CUBLAS_STATUS_NOT_SUPPORTED when calling cublasLtMatmul with m 2048 n 2048",
    "triton.runtime.errors.OutOfResources: out of resource: shared memory, Required: 108672, limit: 101376.",
    "AssertionError: Attempted to load weight (torch.Size([1])) into parameter (torch.Size([]))",
    "ValueError(\"type fp8e4nv not supported in this architecture. Supported are ('fp8e5',)\")",
    "safetensors_rust.SafetensorError: Error while deserializing header: HeaderTooLarge",
    "RuntimeError: mat1 and mat2 shapes cannot be multiplied (3520x4096 and 2048x4096)",
    "ValueError: The quantization method fp8 is not supported for the current GPU. Minimum capability: 90.",
    "RuntimeError: Failed: Assertion error csrc/utils/layout.hpp:57 'Unknown recipe'",
    "ERROR 02-22 00:01:41 engine.py:400] The input size is not aligned with the quantized weight shape.",
    "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}",
    "We added a check that int32-packed scale buffers need scale_ue8m0, see the release notes.",
)
PYTHONS = (
    "KeyError: 'model.layers.28.mlp.experts.w2_weight_scale_inv'",
    "KeyError: 'Quanto checkpoint is missing quantization_map_base64'",
    "KeyError: ('layer', 3)",
    "AttributeError: 'NoneType' object has no attribute 'Quanto checkpoint is missing'",
    "ZeroDivisionError: integer division or modulo by zero",
    "IndexError: tuple index out of range",
    "TypeError: unsupported operand type(s) for //: 'NoneType' and 'int'",
    "ModuleNotFoundError: No module named 'comfy_kitchen'",
)


@pytest.mark.parametrize("text", [*PROSE, *OTHERS, *PYTHONS, "", "\x00", "???", "...", "\n\n\n", "🙂" * 100])
def test_no_match(matcher: Matcher, text: str) -> None:
    report = matcher.match(text)
    assert not report.has_match
    assert report.root_cause is None


@pytest.mark.parametrize("text", PROSE)
def test_prose_is_not_even_possible(matcher: Matcher, text: str) -> None:
    assert all(match.score < POSSIBLE for match in matcher.match(text).matches)


@pytest.mark.parametrize("text", PYTHONS)
def test_python_s_own_messages_resemble_nothing(matcher: Matcher, text: str) -> None:
    report = matcher.match(f"Traceback (most recent call last):\n{text}")
    assert report.matches == ()
    assert [missed.exception for missed in report.unmatched] == [text.partition(":")[0]]


def test_a_package_s_own_key_error_is_found() -> None:
    raised = entry("missing-layer", "no layer {name!r} among {known}", Site("a/b.py", "f", (3,), "KeyError"))
    assert (
        Matcher([raised]).match("KeyError: \"no layer 'x' among ['y']\"").matches[0].record_id
        == "missing-layer"
    )


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("kv_scales must be fp16, got torch.bfloat16", SCALES),
        ("ValueError: int32-packed scale buffer requires scale_ue8m0=True", "402df144293dfbb6"),
        ("kv_scales shape (128, 4) does not ma", "139f0942c1249fe9"),
        ("kv_scales shape (128, 4) does not match...", "139f0942c1249fe9"),
        ("Quanto layer 'a.b' contains both packed and de", "ebae301945ad84f0"),
        ("Quanto activation quantisation is not suported for 'x'", "375d3149e5aad364"),
        ("ixed precision is not supported by the current SGLang diffusion runtime.", None),
    ],
)
def test_a_changed_or_cut_message_is_similar_and_no_match(
    matcher: Matcher, text: str, meant: str | None
) -> None:
    report = matcher.match(text)
    assert not report.has_match
    best = report.matches[0]
    assert best.match_type == "fuzzy"
    assert 0.45 <= best.score < MATCH
    assert meant in (None, best.record_id)
    assert best.captures == ()


def test_a_cut_text_is_likest_to_what_it_begins() -> None:
    """Words count in order: a shorter message of the same words is not it, nor is one that is all there."""
    texts = {
        "cut": "the weight cache daemon {pid} has exited with code {code}; the other daemons are terminated",
        "short": "{command} has exited with code {code}",
        "same words": "code {code} has exited: the weight cache daemon",
    }
    matcher = Matcher(
        entry(name, text, Site("a.py", "f", (1,), "ValueError"), curated=False)
        for name, text in texts.items()
    )
    found = matcher.match("the weight cache daemon 31 has exited with code 3; the oth").matches
    assert (found[0].record_id, found[0].match_type) == ("cut", "fuzzy")
    assert POSSIBLE < found[0].score < MATCH
    assert "short" in {match.record_id for match in found}
    assert matcher.search("the weight cache daemon 31 has ex")[0].record_id == "cut"


def test_a_longer_message_that_was_cut_is_named_behind_a_short_one_that_is_all_there() -> None:
    short = "pixel values have no matching position ids."
    texts = {"short": short, "long": f"{short} The processor has renamed this output; update the names"}
    matcher = Matcher(
        entry(name, text, Site("a.py", "f", (1,), "ValueError"), curated=False)
        for name, text in texts.items()
    )
    assert [match.record_id for match in matcher.match(f"{short} The processor has re").matches] == [
        "short",
        "long",
    ]
    assert [match.record_id for match in matcher.match(short).matches] == ["short"]


def test_what_is_complete_inside_the_words_of_a_longer_message_is_only_possible() -> None:
    texts = {
        "short": "capacity must be positive",
        "long": "host {name} capacity must be positive and aligned, got {size}",
    }
    matcher = Matcher(
        entry(name, text, Site("a.py", "f", (1,), "ValueError"), curated=False)
        for name, text in texts.items()
    )
    found = matcher.match("host kv capacity must be positive and alig").matches
    assert [match.record_id for match in found] == ["long", "short"]
    assert all(POSSIBLE <= match.score < MATCH for match in found)
    alone = matcher.match("ValueError: capacity must be positive").matches
    assert [match.record_id for match in alone] == ["short"]
    assert alone[0].score >= MATCH


def test_digits_count_in_likeness() -> None:
    texts = {
        "four": "Comfy W4A4 layers need packed weights",
        "eight": "Comfy W4A8 layers need packed weights",
    }
    matcher = Matcher(
        entry(name, text, Site("a.py", "f", (1,), "ValueError")) for name, text in texts.items()
    )
    for name, text in texts.items():
        assert matcher.search(text.replace("packed", "pakced"))[0].record_id == name


def _short(record_id: str, message: str, *, curated: bool) -> Entry:
    return entry(record_id, message, Site("pkg/a/b.py", "load", (7,), "ValueError"), curated=curated)


@pytest.mark.parametrize(
    ("message", "text", "curated", "sure"),
    [
        # 20 literal characters and more
        ("this value is not allowed: {x}", "foo, this value is not allowed: 3", False, True),
        # 12 to 19: the class and the whole message, or a frame of the site, lift it
        ("bad head dim: {x}", "x bad head dim: 3", False, False),
        ("bad head dim: {x}", "ValueError: bad head dim: 3", False, False),
        ("bad value of dim: {x}", "TypeError: bad value of dim: 3", False, False),
        ("bad value of dim: {x}", "ValueError: bad value of dim: 3", False, True),
        ("bad value of dim: {x}", "TypeError: bad value of dim: 3", True, True),
        ("bad value of dim: {x}", "in the bad value of dim: 3 we trust", True, False),
        ("bad dim {x}", 'File "/l/pkg/a/b.py", line 7, in load\nTypeError: bad dim 3', False, True),
        ("bad dim {x}", 'File "/l/other/c.py", line 7, in load\nValueError: bad dim 3', False, False),
        # too little of its own to say anything
        ("{a}: {b}", "ValueError: x: y", True, False),
    ],
)
def test_how_much_text_a_match_needs(message: str, text: str, curated: bool, sure: bool) -> None:
    assert Matcher([_short("it", message, curated=curated)]).match(text).has_match is sure


@pytest.mark.parametrize(
    ("text", "found"), [("bad one x!", True), ("a bad one x!", False), ("bad one x! now", False)]
)
def test_a_text_without_a_long_literal_is_found_only_whole(text: str, found: bool) -> None:
    matcher = Matcher([_short("it", "bad one {x}!", curated=True), _short("other", "worse", curated=True)])
    assert bool(matcher.match(f"ValueError: {text}").matches) is found
    assert bool(matcher.match(f"RuntimeError: Failed at csrc/a.cuh:404: {text}").matches) is found


def test_only_records_of_the_asked_repository(matcher: Matcher) -> None:
    text = "RuntimeError: kv_scales must be fp32, got torch.bfloat16"
    assert matcher.match(text, repo="sgl-project/sglang").has_match
    assert matcher.match(text, repo="other/package").matches == ()
    assert matcher.search(text, repo="other/package") == []


def test_a_limit_cuts_the_list_and_says_so(matcher: Matcher) -> None:
    text = (
        "ValueError: Unsupported output_s dtype torch.uint8\n"
        "RuntimeError: kv_scales must be fp32, got torch.bfloat16"
    )
    assert len(matcher.match(text, limit=1).matches) == 1
    assert matcher.match(text, limit=1).truncated
    assert not matcher.match(text, limit=2).truncated


def test_another_library_s_words_are_a_hint_and_behind_its_own_record() -> None:
    """Triton refuses FP8 for any kernel: that it is the one of a curated record is not said by the text."""
    text = (
        'ValueError("type fp8e4nv not supported in this architecture. The supported fp8 dtypes are '
        "('fp8e4b15', 'fp8e5')\")"
    )
    curated = [found for record in load_catalog().records for found in entries(record.fault)]
    alone = Matcher(curated).match(text)
    assert not alone.has_match
    best = alone.matches[0]
    assert best.record_id == next(
        record.record.id for record in load_catalog().records if record.fault.check.id() == "fp8_not_compiled"
    )
    assert POSSIBLE <= best.score < MATCH
    assert [capture.value for capture in best.captures] == ["fp8e4nv", "('fp8e4b15', 'fp8e5')"]
    words = next(found for found in curated if found.hint).message
    own = entry("triton's", words, Site("triton/language/core.py", "f", (3,), "ValueError"), curated=False)
    both = Matcher([*curated, own]).match(text)
    assert [match.record_id for match in both.matches[:2]] == ["triton's", best.record_id]
    assert both.root_cause == 0
