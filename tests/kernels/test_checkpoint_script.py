"""Scripts that turn one checkpoint file into another: run on real files, and read as a person reads them."""

from __future__ import annotations

import base64
import json
import os
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import load_file

from kernels.checkpoint import Checkpoint, Header
from kernels.checkpoint_file import read_header, write
from kernels.checkpoint_script import statements
from kernels.values import Full, Listed, Ones, Zeros

F32 = Header("F32", (3,))


def lines(before: dict[str, Header], after: dict[str, Header]) -> list[str]:
    return list(statements(Checkpoint({}, before), Checkpoint({}, after)))


def notes(before: Any, after: Any) -> list[str]:
    """Statements on one metadata entry; objects are JSON in base64."""

    def encoded(value: Any) -> str:
        return value if isinstance(value, str) else base64.b64encode(json.dumps(value).encode()).decode()

    files = [Checkpoint({"m": encoded(value)}, {}) for value in (before, after)]
    return "\n".join(statements(*files)).splitlines()


# --- tensors


@pytest.mark.parametrize(
    ("before", "after", "line"),
    [
        (Header("F32", (1,)), Header("F32", ()), 'tensors["a"] = tensors["a"].reshape(())'),
        (F32, Header("F32", (3, 1)), 'tensors["a"] = tensors["a"].reshape(3, 1)'),
        (F32, Header("BF16", (3,)), 'tensors["a"] = tensors["a"].to(torch.bfloat16)'),
        (F32, Header("F16", (1, 3)), 'tensors["a"] = tensors["a"].to(torch.float16).reshape(1, 3)'),
        (Header("F32", ()), Header("F32", (2, 1)), 'tensors["a"] = tensors["a"].expand(2, 1).contiguous()'),
        (
            Header("F32", (1, 1)),
            Header("F32", (2,)),
            'tensors["a"] = tensors["a"].reshape(()).expand(2).contiguous()',
        ),
        (
            Header("U8", (2,)),
            Header("I8", (2,)),
            (
                'tensors["a"] = tensors["a"].view(torch.int8)'
                "  # the same bytes: right only if they are I8 codes already"
            ),
        ),
        (
            Header("F8_E8M0", (2,)),
            Header("U8", (2, 1)),
            (
                'tensors["a"] = tensors["a"].view(torch.uint8).reshape(2, 1)'
                "  # the same bytes: right only if they are U8 codes already"
            ),
        ),
        (
            Header("I32", (2,)),
            Header("F32", (2,)),
            (
                'tensors["a"] = tensors["a"].to(torch.float32)'
                "  # right only if I32 numbers mean what F32 ones do"
            ),
        ),
        (F32, Header("F32", (3,), Ones()), 'tensors["a"] = torch.ones(3, dtype=torch.float32)'),
        (
            Header("F16", (2,), Full(0.5)),
            Header("F32", (2,), Full(0.5)),
            'tensors["a"] = torch.full((2,), 0.5, dtype=torch.float32)',
        ),
        (
            Header("F32", (2,), Listed((1, 2))),
            Header("F32", (2, 1), Listed((1, 2))),
            'tensors["a"] = tensors["a"].reshape(2, 1)',
        ),
        (
            Header("F32", (2,), Full(0.5)),
            Header("F32", (2,)),
            (
                'tensors["a"] = torch.full((2,), float("nan"), dtype=torch.float32)'
                "  # a placeholder: the numbers must come from the export"
            ),
        ),
        (
            Header("I8", (2,)),
            Header("I8", (3,)),
            (
                'tensors["a"] = torch.zeros(3, dtype=torch.int8)'
                "  # a placeholder: the numbers must come from the export"
            ),
        ),
    ],
)
def test_a_tensor_is_turned_by_its_own_numbers_where_it_can(before: Header, after: Header, line: str) -> None:
    assert lines({"a": before}, {"a": after}) == [line]


def test_alike_changes_are_one_loop() -> None:
    names = ["a", "b", "c"]
    before = dict.fromkeys(names, Header("F32", (1,)))
    assert lines(before, dict.fromkeys(names, Header("F32", ()))) == [
        'for key in ("a", "b", "c"):\n    tensors[key] = tensors[key].reshape(())'
    ]
    long = [f"language_model.layers.{index}.mlp" for index in range(4)]
    [loop] = lines(dict.fromkeys(long, F32), {})
    assert loop.splitlines() == [
        "for key in (",
        *(f'    "{name}",' for name in long),
        "):",
        "    del tensors[key]",
    ]


def test_a_leading_part_that_all_lost_or_got_is_a_renaming() -> None:
    tails = {"w": F32, "s": Header("F32", ())}
    bare = {f"l.{tail}": header for tail, header in tails.items()}
    named = {f"model.l.{tail}": header for tail, header in tails.items()}
    loop = (
        'for old, new in {{\n    "{}": "{}",\n    "{}": "{}",\n}}.items():\n'
        "    tensors[new] = tensors.pop(old)"
    )
    assert lines(bare, named) == [loop.format("l.w", "model.l.w", "l.s", "model.l.s")]
    assert lines(named, bare) == [loop.format("model.l.w", "l.w", "model.l.s", "l.s")]
    assert lines({"w": F32}, {"m.w": F32}) == ['tensors["m.w"] = tensors.pop("w")']


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"a.s": F32}, {"b.s": F32}),
        ({"s": F32}, {"m.s": Header("F32", (3, 1))}),
        ({"s": F32, "w": F32}, {"m.s": F32, "n.w": F32}),
        ({"s": F32}, {"m.s": F32, "m.w": F32}),
    ],
)
def test_numbers_do_not_move_to_where_they_were_not(
    before: dict[str, Header], after: dict[str, Header]
) -> None:
    text = "\n".join(lines(before, after))
    assert "pop" not in text
    assert "del " in text
    assert "placeholder" in text


# --- metadata


def test_json_is_changed_by_its_members() -> None:
    decode = 'held = json.loads(base64.b64decode(metadata["m"]))'
    encode = 'metadata["m"] = base64.b64encode(json.dumps(held).encode()).decode()'
    entry = {"weights": "qint8", "activations": "none"}
    other = {"weights": "qint4", "activations": "none"}
    assert notes({"a": entry, "b": other}, {"a": entry, "b": entry}) == [
        decode,
        'held["b"]["weights"] = "qint8"',
        encode,
    ]
    assert notes({"a": entry, "b": entry, "c": entry}, {"a": entry}) == [
        decode,
        'for key in ("b", "c"):',
        "    del held[key]",
        encode,
    ]
    assert notes({"x": entry, "y": entry}, {"m.x": entry, "m.y": entry}) == [
        decode,
        "for old, new in {",
        '    "x": "m.x",',
        '    "y": "m.y",',
        "}.items():",
        "    held[new] = held.pop(old)",
        encode,
    ]


def test_bare_json_stays_bare() -> None:
    before = json.dumps({"layers": {"a": {"format": "x"}, "b": {"format": "y"}}, "version": None, "ok": True})
    after = json.dumps({"layers": {"a": {"format": "z"}, "b": {"format": "y"}}, "version": None, "ok": True})
    assert notes(before, after) == [
        'held = json.loads(metadata["m"])',
        'held["layers"]["a"]["format"] = "z"',
        'metadata["m"] = json.dumps(held)',
    ]


def test_other_texts_are_stated() -> None:
    assert notes("a\nb \n", "ab") == ['metadata["m"] = "".join(metadata["m"].split())']
    assert notes("a", "ä'\"\n") == ['metadata["m"] = "ä\'\\"\\n"']
    assert notes("a", '{"x": [1, null, NaN]}') == [
        'metadata["m"] = json.dumps({"x": [1, None, float("nan")]})'
    ]
    deep: Any = "x"
    for _ in range(6):
        deep = {"a": deep}
    assert notes("a", json.dumps(deep)) == ['metadata["m"] = ' + json.dumps(json.dumps(deep))]


def test_half_a_surrogate_pair_is_written_in_ascii() -> None:
    [_, line, _] = notes('{"\\ud800": 1, "a": 1}', '{"a": 1}')
    assert line == "del held['\\ud800']"


# --- whole files

NAMES = st.text(
    st.one_of(st.sampled_from("~/'\"\\\n\0 .é☃\U0001f600{}%"), st.characters(exclude_categories=["Cs"])),
    max_size=6,
).filter(lambda name: name != "__metadata__")
HEADERS = st.builds(
    Header,
    st.sampled_from(["I8", "U8", "BF16", "F16", "F32", "F8_E4M3", "F8_E8M0", "F64", "I64", "BOOL"]),
    st.lists(st.integers(0, 3), max_size=3).map(tuple),
    st.sampled_from([None, Zeros(), Ones(), Full(0.5), Listed((1, 2))]),
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=6,
)
TEXTS = st.one_of(
    NAMES,
    JSON.map(json.dumps),
    JSON.map(lambda value: base64.b64encode(json.dumps(value).encode()).decode()),
)
FILES = st.builds(
    Checkpoint,
    st.dictionaries(st.sampled_from(["m", "n", "quote'\""]), TEXTS, max_size=2),
    st.dictionaries(st.one_of(NAMES, st.sampled_from(["a", "m.a", "a.b"])), HEADERS, min_size=1, max_size=4),
)


@settings(max_examples=40, deadline=None)
@given(FILES, FILES)
def test_the_script_makes_the_other_file(before: Checkpoint, after: Checkpoint) -> None:
    with tempfile.TemporaryDirectory() as folder:
        here = Path.cwd()
        os.chdir(folder)
        try:
            held = {name: (header, header.values or Ones()) for name, header in before.tensors.items()}
            write(Path("checkpoint.safetensors"), before.metadata, held)
            names: dict[str, Any] = {}
            exec(before.to_revision("checkpoint", after), names)  # noqa: S102 (our own script)
            with safe_open(names["checkpoint"], framework="pt") as file:
                found = read_header(file)
        finally:
            os.chdir(here)
    assert {name: str(header) for name, header in found.tensors.items()} == {
        name: str(header) for name, header in after.tensors.items()
    }
    assert {key: meaning(text) for key, text in found.metadata.items()} == {
        key: meaning(text) for key, text in after.metadata.items()
    }


def meaning(text: str) -> Any:
    """The object that metadata holds, else the text itself."""
    for read in (lambda: base64.b64decode(text, validate=True).decode(), lambda: text):
        try:
            value = json.loads(read())
        except ValueError:
            continue
        if isinstance(value, dict):
            return value
    return text


def test_equal_files_leave_the_callers_alone() -> None:
    file = Checkpoint({"a": "b"}, {"t": F32})
    assert file.to_revision("checkpoint", file) == 'checkpoint = "checkpoint.safetensors"  # your file'
    assert file.to_contrast("checkpoint", file, afresh=True) == ""


def test_untouched_tensors_and_metadata_are_carried_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    before = Checkpoint(
        {"keep": "me"}, {"a": Header("F32", (1,), Full(7)), "b": Header("I8", (2,), Listed((3, 4)))}
    )
    held = {name: (header, header.values) for name, header in before.tensors.items() if header.values}
    write(Path("checkpoint.safetensors"), before.metadata, held)
    script = before.to_revision("checkpoint", before.with_tensor("a", Header("F32", (), Full(7))))
    names: dict[str, Any] = {}
    exec(script, names)  # noqa: S102 (our own script)
    with safe_open(names["checkpoint"], framework="pt") as file:
        assert file.metadata() == {"keep": "me"}
    tensors = load_file(names["checkpoint"])
    assert torch.equal(tensors["a"], torch.tensor(7.0))
    assert tensors["b"].tolist() == [3, 4]
