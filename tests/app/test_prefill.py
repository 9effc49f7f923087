"""The request that a match comes with raises the very message that was pasted."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from starlette.testclient import TestClient

from app.diagnose.questions import parse_question
from app.http.text import json_bytes
from app.lookup.file_moves import common_beginning
from app.lookup.moves import passing
from app.lookup.prefill import MOST_OF_TEXT, MOST_TRIED, Budget, prefilled
from app.lookup.service import match_text
from app.main import create_app
from app.settings import Settings
from catalog.faults import Case
from catalog.store import load_catalog
from kernels.call import Call
from kernels.checking import Check, Origin
from kernels.checkpoint import Checkpoint, Header
from kernels.dtypes import DType
from kernels.registry import operations
from kernels.spec import TensorSpec

TEXTS = 8
"""Messages made for one check."""
TRIED = 150
"""Variations of calls from which they are made."""


def tensors(spec: TensorSpec) -> Iterator[TensorSpec]:
    """The tensor with one attribute of another value."""
    for axis, size in enumerate(spec.shape):
        for other in (size + 1, size * 2, 3):
            yield replace(spec, shape=(*spec.shape[:axis], other, *spec.shape[axis + 1 :]), strides=())
    for device in ("cpu", "cuda:1"):
        yield replace(spec, device=device)
    for axis, step in enumerate(spec.strides):
        for other in (step * 2, step + 3):
            yield replace(spec, strides=(*spec.strides[:axis], other, *spec.strides[axis + 1 :]))
    for dtype in (DType.BF16, DType.F32, DType.I64, DType.U8, DType.F8_E4M3FN):
        yield replace(spec, dtype=dtype)
    yield replace(spec, shape=(*spec.shape, 2), strides=())
    yield replace(spec, shape=spec.shape[1:], strides=())


def files(file: Checkpoint) -> Iterator[Checkpoint]:
    """The file with one tensor's entry changed or gone, or every name of another model."""
    yield Checkpoint(
        {key: value.replace("blocks.0", "h.17") for key, value in file.metadata.items()},
        {name.replace("blocks.0", "h.17"): header for name, header in file.tensors.items()},
    )
    for name, header in file.tensors.items():
        for changed in headers(header):
            if changed.numel * DType.parse(changed.dtype).bits % 8 == 0:
                yield file.with_tensor(name, changed)
        yield file.without_tensors(name)


def headers(header: Header) -> Iterator[Header]:
    for dtype in ("BF16", "F32", "I8", "U8", "F16"):
        yield replace(header, dtype=dtype)
    for axis, size in enumerate(header.shape):
        yield replace(header, shape=(*header.shape[:axis], size + 2, *header.shape[axis + 1 :]))
    yield replace(header, shape=(*header.shape, 2))


def variations(call: Call, names: tuple[str, ...]) -> Iterator[Call]:
    """The call with one of these arguments changed."""
    for name in names:
        value = getattr(call, name)
        match value:
            case TensorSpec():
                others: list[Any] = list(tensors(value))
            case Checkpoint():
                others = list(files(value))
            case bool():
                others = [not value]
            case int():
                others = [value + 1, value * 2 + 1, 0, -1]
            case float():
                others = [value / 2, value + 1]
            case str():
                others = [value + "x"]
            case _:
                others = []
        for other in others:
            if other != value:
                yield call.replace(**{name: other})


def messages(case: Case) -> list[str]:
    """What upstream prints for the check's example, and for other calls that break it first."""
    example = case.check.example()
    assert example is not None
    found: dict[str, None] = {}
    names = tuple(dict.fromkeys((*case.check.arguments(), *(name for name, _ in example.stated()))))
    bases = (example, *passing(case.operation))
    share = TRIED // len(bases) + 8
    calls = [example]
    for base in bases:
        every = list(variations(base, names))
        calls += every[:: max(1, len(every) // share)]
    for call in calls:
        violation = case.operation.examine(call).raised
        if type(violation) is case.check and violation.text:
            found[violation.text] = None
    texts = list(found)
    return texts[:: max(1, len(texts) // TEXTS)][:TEXTS]


def raised_again(error: type[Exception], text: str) -> Check[Any] | None:
    """What the call of the text's first match raises."""
    spec = match_text(f"{error.__name__}: {text}", limit=1)["matches"][0]["spec"]
    question = parse_question(json_bytes(spec))
    return question.operation.examine(question.call).raised


CASES = [
    Case(operation, check)
    for operation in operations().values()
    for check in operation.checks
    if check.origin() is Origin.UPSTREAM and not check.pythons_own and check.message and check.example()
]


@pytest.mark.parametrize("case", CASES, ids=[f"{case.operation.name}/{case.check.id()}" for case in CASES])
def test_the_request_of_a_match_raises_what_was_pasted(case: Case) -> None:
    texts = messages(case)
    assert texts, "the example raises the check's own message"
    again = [raised_again(case.check.raises, text) for text in texts]
    wrong = [
        (text, found.text if found else None)
        for text, found in zip(texts, again, strict=True)
        if found is None or found.text != text
    ]
    assert wrong == []
    assert all(found is not None and found.raises is case.check.raises for found in again)


FIRST = {case.operation.name: case for case in reversed(CASES)}


@pytest.mark.parametrize("case", FIRST.values(), ids=FIRST)
def test_over_http_too(case: Case) -> None:
    text = messages(case)[-1]
    with TestClient(create_app(Settings())) as client:
        answer = client.post("/api/match", json={"text": f"{case.check.raises.__name__}: {text}"})
        spec = answer.json()["matches"][0]["spec"]
        diagnosis = client.post("/api/diagnose", json={**spec, "level": "checks"})
    assert diagnosis.json()["raised"]["message"] == text


def test_the_line_tells_the_launchers_variant() -> None:
    """One expert's rows, or all tokens' rows: the same check at another line."""
    text = (
        "Tensor match failed for Tensor<2, 8, 512>[strides=<8192, 1024, 2>, dtype=bfloat16, device=cuda:0] "
        "at python/sglang/kernels/jit/csrc/gemm/per_token_group_quant.cuh:{line}\n"
        "- Root cause: Size mismatch for stride#{dim}: expected 1 but got 2"
    )
    masked = raised_again(RuntimeError, text.format(line=481, dim=2))
    assert masked is not None
    assert masked.text == text.format(line=481, dim=2)
    flat = text.replace("2, 8, 512", "8, 512").replace("8192, 1024, 2", "1024, 2")
    found = raised_again(RuntimeError, flat.format(line=487, dim=1))
    assert found is not None
    assert found.text == flat.format(line=487, dim=1)


def test_a_name_of_the_users_own_takes_the_place_of_the_examples() -> None:
    for layer in ("decoder.17.fc1", "m"):
        text = f"Quanto layer {layer!r} is missing tensors: ['{layer}.input_scale']"
        found = raised_again(ValueError, text)
        assert found is not None
        assert found.text == text


@pytest.mark.parametrize("name", ["bf16_t_1", "int32_t_4", "double_t_9", "nothing_4"])
def test_a_modules_name_of_any_kind_is_read_or_passed_over(name: str) -> None:
    module = f"sgl_kernel_jit_inkling_attn_prologue_fused_{name}_true_false_false_true"
    text = f"Failed to build JIT module {module} in …:\ninkling_attn_prologue_fused.cuh(145): error: "
    found = raised_again(RuntimeError, text + "static assertion failed")
    assert found is not None
    assert "static assertion failed" in found.text


def test_a_text_of_many_matches_is_searched_within_one_budget() -> None:
    fault = load_catalog().get("3018da578aab5d5a")
    assert fault is not None
    [match] = load_catalog().matcher.match("kv_scales must be fp32, got torch.nothing").matches[:1]
    budget = Budget()
    spent = []
    for _ in range(8):
        before = budget.left
        assert prefilled(fault.fault, match, budget) is not None
        spent.append(before - budget.left)
    assert max(spent) <= MOST_TRIED
    assert sum(spent) <= MOST_OF_TEXT
    assert prefilled(fault.fault, match, Budget(0)) is not None


@pytest.mark.parametrize(
    ("left", "right", "common"), [("", "", 0), ("ab", "abc", 2), ("abc", "abd", 2), ("a", "b", 0)]
)
def test_common_beginnings(left: str, right: str, common: int) -> None:
    assert common_beginning(left, right) == common
