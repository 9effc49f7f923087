"""A described safetensors file: JSON form, faults, differences as JSON pointers, a script that writes it."""

from __future__ import annotations

import base64
import copy
import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open

from kernels.checkpoint import Checkpoint, FaultyMembers, Frozen, Header, NameMapper, escaped
from kernels.values import Full, Listed, Text, read_values

FORM = {
    "metadata": {"quantization_format": "quanto"},
    "tensors": {
        "l.weight._data": {"dtype": "I8", "shape": [3, 2]},
        "l.input_scale": {"dtype": "BF16", "shape": []},
    },
}

# What JSON pointers, Python's repr and UTF-8 treat in their own ways; lone surrogates cannot be in a file.
NAMES = st.text(
    st.one_of(st.sampled_from("~/'\"\\\n\0 .é☃\U0001f600{}%"), st.characters(exclude_categories=["Cs"])),
    max_size=12,
).filter(lambda name: name != "__metadata__")
HEADERS = st.builds(
    Header,
    st.sampled_from(["I8", "U8", "BF16", "F32", "F8_E4M3", "F64", "I64"]),
    st.lists(st.integers(0, 2**63 - 1), max_size=4).map(tuple),
)
CHECKPOINTS = st.builds(
    Checkpoint, st.dictionaries(NAMES, NAMES, max_size=4), st.dictionaries(NAMES, HEADERS, max_size=5)
)


def apply(document: Any, pointer: str, after: Any) -> None:
    """Replace, add or (None) remove a member by its pointer, as RFC 6901 reads it."""
    assert pointer.startswith("/")
    *parents, last = [token.replace("~1", "/").replace("~0", "~") for token in pointer[1:].split("/")]
    target = document
    for token in parents:
        target = target[token]
    if after is None:
        del target[last]
    else:
        target[last] = after


# --- JSON form


def test_it_reads_and_writes_the_documented_form() -> None:
    checkpoint = Checkpoint.from_json(FORM)
    assert checkpoint.tensors["l.weight._data"] == Header("I8", (3, 2))
    assert checkpoint.tensors["l.input_scale"] == Header("BF16", ())
    assert checkpoint.to_json() == FORM


def test_metadata_may_be_left_out() -> None:
    assert Checkpoint.from_json({"tensors": {}}) == Checkpoint({}, {})


def test_types_may_have_torchs_names() -> None:
    names = {
        "torch.int8": "I8",
        "bfloat16": "BF16",
        "fp32": "F32",
        "float8_e4m3fn": "F8_E4M3",
        "F8_E8M0": "F8_E8M0",
    }
    for given_name, kept in names.items():
        form = {"tensors": {"t": {"dtype": given_name, "shape": [2]}}}
        assert Checkpoint.from_json(form).tensors["t"].dtype == kept


def test_described_values_survive() -> None:
    form = {"tensors": {"s": {"dtype": "F32", "shape": [], "values": {"kind": "full", "value": 0.5}}}}
    checkpoint = Checkpoint.from_json(form)
    assert checkpoint.tensors["s"].values == Full(0.5)
    assert Checkpoint.from_json(checkpoint.to_json()) == checkpoint


def test_nested_values_are_read_and_bounded() -> None:
    assert read_values({"kind": "list", "data": [[1, -2], [3, 4]]}) == Listed(((1, -2), (3, 4)))
    assert read_values({"kind": "text", "text": "{}"}) == Text("{}")
    with pytest.raises(ValueError, match="text is a text"):
        read_values({"kind": "text", "text": 3})
    deep: Any = [1]
    for _ in range(64):
        deep = [deep]
    with pytest.raises(ValueError, match="nested deeper than 64"):
        read_values({"kind": "list", "data": deep})


@pytest.mark.parametrize(
    ("value", "faults"),
    [
        ([], {"": "expected an object with metadata and tensors"}),
        ({}, {"/tensors": "missing"}),
        ({"tensors": {}, "a/b": 1}, {"/a~1b": "unknown member; known: metadata, tensors"}),
        (
            {"tensors": [], "metadata": 1},
            {
                "/tensors": "expected an object of tensor name → dtype and shape",
                "/metadata": "expected an object of text → text",
            },
        ),
        ({"tensors": {}, "metadata": {"a~b": {}}}, {"/metadata/a~0b": "expected text"}),
        (
            {"tensors": {"__metadata__": {"dtype": "I8", "shape": []}}},
            {"/tensors/__metadata__": "__metadata__ is the metadata's own key in a header"},
        ),
        (
            {"tensors": {"a\ud800": {"dtype": "I8", "shape": []}}},
            {"/tensors/a\ud800": "holds half of a surrogate pair, which UTF-8 cannot store"},
        ),
    ],
)
def test_every_fault_of_a_file_has_its_pointer(value: Any, faults: dict[str, str]) -> None:
    with pytest.raises(FaultyMembers) as raised:
        Checkpoint.from_json(value)
    assert dict(raised.value.faults) == faults
    assert len(raised.value.faults) == len(faults)


@pytest.mark.parametrize(
    ("header", "faults"),
    [
        (["I8", [3]], {"": 'expected an object such as {"dtype": "I8", "shape": [3, 2]}'}),
        ({}, {"/dtype": "missing", "/shape": "missing"}),
        ({"dtype": "I8", "shape": 3}, {"/shape": "expected a list of sizes"}),
        (
            {"dtype": "I8", "shape": [1, -1, True, 1.0]},
            {f"/shape/{index}": f"expected a whole number from 0 to {2**63 - 1}" for index in (1, 2, 3)},
        ),
        ({"dtype": "I8", "shape": [1] * 65}, {"/shape": "a tensor has at most 64 dimensions"}),
        ({"dtype": 8, "shape": []}, {"/dtype": "a dtype is a name such as BF16"}),
        (
            {"dtype": "I8", "shape": [], "strides": []},
            {"/strides": "unknown member; known: dtype, shape, values"},
        ),
        ({"dtype": "F4", "shape": [3]}, {"/shape": "3 elements of F4 do not fill whole bytes"}),
        ({"dtype": "F32", "shape": [], "values": {"kind": "full"}}, {"/values": "kind full needs value"}),
    ],
)
def test_every_fault_of_a_tensor_has_its_pointer(header: Any, faults: dict[str, str]) -> None:
    with pytest.raises(FaultyMembers) as raised:
        Checkpoint.from_json({"tensors": {"t": header}})
    assert dict(raised.value.faults) == {f"/tensors/t{pointer}": text for pointer, text in faults.items()}


@pytest.mark.parametrize("name", ["Q8", "complex128", ""])
def test_a_type_that_no_file_has_is_told_those_that_one_has(name: str) -> None:
    match = f"/tensors/t/dtype: safetensors has no type '{name}'; known: BOOL, U8, I8, .*, C64$"
    with pytest.raises(FaultyMembers, match=match):
        Checkpoint.from_json({"tensors": {"t": {"dtype": name, "shape": []}}})


def test_a_name_mapper_is_text_to_text() -> None:
    mapper = NameMapper.from_json({"a.q": "model.a.q"})
    assert (mapper("a.q"), mapper("a.k")) == ("model.a.q", "a.k")
    with pytest.raises(FaultyMembers) as raised:
        NameMapper.from_json({"a": 1, "b": None})
    assert raised.value.faults == [("/a", "expected text"), ("/b", "expected text")]


# --- frozen, hashable


def test_equal_files_are_one_key_whatever_their_order() -> None:
    one = Checkpoint({"a": "1", "b": "2"}, {"x": Header("I8", (1,)), "y": Header("I8", (2,))})
    other = Checkpoint({"b": "2", "a": "1"}, {"y": Header("I8", (2,)), "x": Header("I8", (1,))})
    assert one == other
    assert len({one, other}) == 1
    assert one != other.with_tensor("x", Header("I8", (3,)))


def test_later_changes_of_the_source_change_nothing() -> None:
    tensors = {"x": Header("I8", (1,))}
    checkpoint = Checkpoint({}, tensors)
    tensors["y"] = Header("I8", (2,))
    assert list(checkpoint.tensors) == ["x"]
    with pytest.raises(TypeError):
        checkpoint.tensors["z"] = Header("I8", (3,))  # type: ignore[index]


def test_it_goes_to_another_process_and_back() -> None:
    checkpoint = Checkpoint.from_json(FORM)
    assert hash(checkpoint) == hash(pickle.loads(pickle.dumps(checkpoint)))  # noqa: S301 (our own bytes)
    assert pickle.loads(pickle.dumps(NameMapper({"a": "b"})))("a") == "b"  # noqa: S301


def test_a_mapping_is_no_other_type_of_mapping() -> None:
    assert Frozen({"a": 1}) == {"a": 1}
    assert repr(NameMapper({"a": "b"})) == "NameMapper({'a': 'b'})"


# --- edits


def test_edits_name_the_smallest_member_that_changed() -> None:
    before = Checkpoint.from_json(FORM)
    after = (
        before.with_tensor("l.input_scale", Header("F32", (1,)))
        .with_tensor("l.bias", Header("BF16", (3,)))
        .without_tensors("l.weight._data")
        .with_metadata("a/b~c", "x")
        .without_metadata("quantization_format")
    )
    assert sorted(before.edits_to(after), key=lambda edit: edit[0]) == [
        ("/metadata/a~1b~0c", None, "x"),
        ("/metadata/quantization_format", "quanto", None),
        ("/tensors/l.bias", None, {"dtype": "BF16", "shape": [3]}),
        ("/tensors/l.input_scale/dtype", "BF16", "F32"),
        ("/tensors/l.input_scale/shape", [], [1]),
        ("/tensors/l.weight._data", {"dtype": "I8", "shape": [3, 2]}, None),
    ]
    assert list(before.edits_to(before)) == []


@given(CHECKPOINTS, CHECKPOINTS)
def test_applied_edits_give_the_other_file(before: Checkpoint, after: Checkpoint) -> None:
    document = copy.deepcopy(before.to_json())
    for pointer, old, new in before.edits_to(after):
        assert old != new
        apply(document, pointer, new)
    assert Checkpoint.from_json(document) == after


@given(NAMES)
def test_escaped_names_are_single_tokens(name: str) -> None:
    token = escaped(name)
    assert "/" not in token
    assert token.replace("~1", "/").replace("~0", "~") == name


@given(CHECKPOINTS)
def test_json_form_is_read_back(checkpoint: Checkpoint) -> None:
    assert Checkpoint.from_json(checkpoint.to_json()) == checkpoint


# --- the script


def test_the_script_writes_the_described_file(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    described = Checkpoint(
        {"quantization_format": "quanto", 'quote " and \n line': "é\\"},
        {
            "l.weight._data": Header("I8", (3, 2), Listed(((1, -2), (3, 4), (-5, 6)))),
            "l.weight._scale": Header("BF16", (3, 1)),
            'it\'s "odd"/~\\': Header("F8_E4M3", (2, 0)),
            "scalar": Header("F64", ()),
        },
    )
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec(described.to_python("checkpoint"), names)  # noqa: S102 (our own script)
    with safe_open(names["checkpoint"], framework="pt") as file:
        assert file.metadata() == dict(described.metadata)
        slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118 (no mapping)
        read = {name: (part.get_dtype(), tuple(part.get_shape())) for name, part in slices.items()}
        assert file.get_tensor("l.weight._data").tolist() == [[1, -2], [3, 4], [-5, 6]]
    assert read == {name: (header.dtype, header.shape) for name, header in described.tensors.items()}


def test_the_script_says_what_base64_holds() -> None:
    held = '{"l": {"weights": "qint8"}}'
    metadata = {
        "map": base64.b64encode(held.encode()).decode(),
        "lines": base64.b64encode(b'{\n"a": 1}').decode(),
        "long": base64.b64encode(b"{" + b" " * 3000 + b"}").decode(),
        "format": "pt",
        "bytes": base64.b64encode(b"\xff{}").decode(),
    }
    script = Checkpoint(metadata, {}).to_python("checkpoint")
    assert [line.partition("  # ")[2] for line in script.splitlines() if "  # " in line] == [held]
    compile(script, "script", "exec")


def test_sizes_count_sub_byte_elements() -> None:
    checkpoint = Checkpoint(
        {}, {"a": Header("F4", (6,)), "b": Header("F6_E2M3", (4,)), "c": Header("BF16", (2, 3))}
    )
    assert checkpoint.storage_bytes == 3 + 3 + 12
