"""Every text of ours beside the library's own, on the same files; then on files that nobody chose."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open

from kernels.checking import Status
from kernels.checkpoint import FaultyMembers
from kernels.safetensors_file.checks import OPERATIONS
from kernels.safetensors_file.file_start import MAX_SIZE, FileStart, first_bytes
from kernels.safetensors_file.op import MemoryFile, safetensors_file
from kernels.safetensors_file.reader import DEPTH, EXACT, OMITTED
from kernels.safetensors_file.serde import VARIANTS
from kernels.safetensors_file.signature import HEADER, PREFIX, VALID, SafetensorsCall, entry, written
from kernels.values import Listed, Text
from tests.kernels.safetensors_file.files import ACCEPTED, REFUSED, archive, library, library_of

[OPERATION] = OPERATIONS


def predicted(start: FileStart) -> str | None:
    """What our checks say that the library says."""
    raised = OPERATION.examine(SafetensorsCall(start)).raised
    return None if raised is None else raised.text


def whole(data: bytes) -> FileStart:
    return FileStart(data, len(data))


@pytest.mark.parametrize("name", REFUSED)
def test_a_refused_file_gets_the_librarys_own_text(name: str) -> None:
    data, check, mention = REFUSED[name]
    text = library(data)
    assert text is not None
    assert text.startswith(PREFIX)
    examination = OPERATION.examine(SafetensorsCall(whole(data)))
    assert examination.raised is not None
    assert examination.raised.text == text
    assert type(examination.raised).id() == check
    assert mention in examination.raised.explain()


@pytest.mark.parametrize("name", ACCEPTED)
def test_an_accepted_file_is_opened_by_the_library_too(name: str) -> None:
    data = ACCEPTED[name]
    assert library(data) is None
    assert not OPERATION.examine(SafetensorsCall(whole(data))).rejected


@pytest.mark.parametrize("name", ACCEPTED)
def test_the_described_checkpoint_is_what_the_library_reads(name: str) -> None:
    start = whole(ACCEPTED[name])
    checkpoint = start.checkpoint()
    stored = MemoryFile(start)
    with safe_open(stored, framework="pt") as file:
        assert dict(checkpoint.metadata) == (file.metadata() or {})
        assert set(checkpoint.tensors) == set(file.keys())
        for tensor, header in checkpoint.tensors.items():
            part = file.get_slice(tensor)
            assert (header.dtype, list(header.shape)) == (part.get_dtype(), part.get_shape())


@pytest.mark.parametrize("name", REFUSED)
def test_the_operation_recognises_the_librarys_refusal(name: str) -> None:
    data, check, _ = REFUSED[name]
    with pytest.raises(Exception, match=r"^Error while deserializing header: ") as raised:
        safetensors_file(MemoryFile(whole(data)))
    assert type(raised.value.violation).id() == check  # type: ignore[attr-defined]


def test_element_types_are_the_librarys_in_its_order() -> None:
    text = library(REFUSED["unknown dtype"][0])
    assert re.findall("`([A-Z0-9_]+)`", str(text))[1:] == list(VARIANTS)


@pytest.mark.parametrize("dtype", VARIANTS)
def test_sizes_of_all_element_types_are_the_librarys(dtype: str) -> None:
    for size in range(1, 100):
        data = written({"w": entry(dtype, [8], 0, size)}, size)
        assert predicted(whole(data)) == library(data), size


TOKENS = [
    *("{", "}", "[", "]", ",", ":", " ", "\n", "\t", "\u00e9", "\\", '"'),
    *('"w"', '"dtype"', '"shape"', '"data_offsets"', '"__metadata__"', '"F32"', '"Q8"', '"\\u12"', '"\\q"'),
    *(
        '"\\ud800\\udc00"',
        '"\\ud800x"',
        '"\\udc00"',
        "1",
        "-1",
        "-0",
        "01",
        "-",
        "1.",
        "1.5",
        "1e",
        "1e-7",
        "1e999",
    ),
    *("null", "true", "fals", "[0,4]", "[1]", '{"F32":null}', "18446744073709551616", "0.00001234", "123e20"),
    *("1e18446744073709551616", "-9223372036854775809", "1011.50118446744073709551616"),
]
PIECES = re.compile(r'"(?:[^"\\]|\\.)*"|[-0-9.e+]+|\w+|\s+|.')
SOUND = (
    '{"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},\n "__metadata__" : {"k":"v"} , '
    '"b":{"dtype":"I8","shape":[],"data_offsets":[4,5]}} '
)


@st.composite
def headers(draw: st.DrawFn) -> bytes:
    """A sound header with some of its tokens exchanged, dropped, added or cut off; or tokens alone."""
    pieces = PIECES.findall(SOUND) if draw(st.integers(0, 3)) else []
    for _ in range(draw(st.integers(0, 3))):
        at = draw(st.integers(0, len(pieces)))
        kind = draw(st.sampled_from(("put", "drop", "change", "cut")))
        pieces[at : len(pieces) if kind == "cut" else at + (kind != "put")] = (
            [draw(st.sampled_from(TOKENS))] if kind in ("put", "change") else []
        )
    return "".join(pieces).encode()


@settings(max_examples=400, deadline=None)
@given(headers(), st.integers(0, 6))
def test_faulty_headers_get_the_librarys_text_with_its_place(header: bytes, data: int) -> None:
    content = written(header, data)
    assert predicted(whole(content)) == library(content)


SIZES = st.lists(st.one_of(st.integers(0, 5), st.sampled_from((2**32, 2**63, 2**64 - 1))), max_size=3)


@st.composite
def tables(draw: st.DrawFn) -> bytes:
    """Entries that mostly follow each other, with offsets, sizes and the file's end sometimes off."""
    entries, end = {}, 0
    for number in range(draw(st.integers(0, 4))):
        dtype, shape = draw(st.sampled_from(VARIANTS)), draw(SIZES)
        begin = end + draw(st.sampled_from((0, 0, 0, 0, 1)))
        end = begin + draw(st.integers(0, 9))
        entries[f"t{number}"] = entry(dtype, shape, begin, end)
    order = draw(st.permutations(list(entries)))
    return written(
        {name: entries[name] for name in order}, max(0, end + draw(st.sampled_from((0, 0, 0, 1, -1))))
    )


@settings(max_examples=300, deadline=None)
@given(tables())
def test_offsets_sizes_and_the_end_are_judged_as_the_library_does(data: bytes) -> None:
    ours, theirs = predicted(whole(data)), library(data)
    placed = [(entry.begin, entry.end) for entry in whole(data).entries.values()]
    if len(set(placed)) == len(placed):
        assert ours == theirs
    else:  # of tensors with equal offsets the library takes any first, another one the next time
        assert (ours is None) == (theirs is None)


@settings(max_examples=200, deadline=None)
@given(st.one_of(st.binary(max_size=64), st.binary(max_size=40).map(written), st.sampled_from([archive()])))
def test_any_bytes_are_judged_as_the_library_does(data: bytes) -> None:
    assert predicted(whole(data)) == library(data)


def test_a_file_given_up_to_its_header_is_judged_by_its_size() -> None:
    data = VALID.filename.data
    for size in (len(data) - 1, len(data), len(data) + 1):
        start = FileStart(data[:-12], size)
        assert predicted(start) == library_of(start)


def status(start: FileStart, check: str) -> Status:
    return next(
        outcome.status
        for outcome in OPERATION.examine(SafetensorsCall(start)).outcomes
        if outcome.check.id() == check
    )


def test_without_the_size_nothing_is_said_of_the_data() -> None:
    start = FileStart(VALID.filename.data[:-12])
    assert status(start, "metadata_incomplete_buffer") is Status.NOT_REACHED
    more = replace(start, data=start.data + bytes(start.end))
    assert status(more, "metadata_incomplete_buffer") is Status.FAILED
    assert not OPERATION.examine(SafetensorsCall(start)).rejected
    assert start.end == len(VALID.filename.data)


@pytest.mark.parametrize("size", [None, 10_000])
def test_a_part_of_a_header_asks_for_the_rest(size: int | None) -> None:
    data = written(json.dumps(HEADER) + " " * 900)[:100]
    examination = OPERATION.examine(SafetensorsCall(FileStart(data, size)))
    assert examination.raised is None
    assert [outcome.check.id() for outcome in examination.failed()] == ["header_not_sent"]
    [occurrence] = examination.failed()[0].occurrences
    end = int.from_bytes(data[:8], "little") + 8
    assert occurrence.violation.text.endswith(f"send {end - 100} bytes more")


def test_what_is_no_safetensors_file_is_told_from_eight_bytes() -> None:
    for name in ("zip", "gguf", "html", "old pickle"):
        data, check, mention = REFUSED[name]
        start = FileStart(data[:16], 5_000_000_000)
        [outcome] = OPERATION.examine(SafetensorsCall(start)).failed()
        assert outcome.check.id() == check
        assert mention.split()[0] in outcome.occurrences[0].violation.explain()


def test_deep_nesting_is_refused_where_the_library_refuses_it() -> None:
    for depth in (DEPTH - 2, DEPTH - 1):
        data = written(
            '{"w":{"dtype":"I8","shape":[],"data_offsets":[0,1],"note":' + "[" * depth + "]" * depth + "}}", 1
        )
        assert predicted(whole(data)) == library(data)


def test_short_texts_beside_the_weights_are_read_where_they_were_sent() -> None:
    header = {"a": entry("U8", [4], 0, 4), "b": entry("U8", [2], 4, 6), "c": entry("U8", [2, 2], 6, 10)}
    data = written(header) + b'{"f"' + b"\xff\x00" + b"abcd"
    described = whole(data).checkpoint().tensors
    assert described["a"].values == Text('{"f"')
    assert described["b"].values == Listed((255, 0))
    assert described["c"].values is None
    assert FileStart(data[:-7], len(data)).checkpoint().tensors["b"].values is None


def test_a_fault_far_into_a_long_header_keeps_the_prefix_and_says_so() -> None:
    many = {f"t{number}": entry("I8", [0], 0, 0) for number in range(EXACT // 50)}
    data = written(json.dumps(many)[:-1] + ",}")
    raised = OPERATION.examine(SafetensorsCall(whole(data))).raised
    assert raised is not None
    assert raised.text == f"{PREFIX}invalid JSON in header: {OMITTED}"
    assert "not computed here" in raised.explain()
    assert str(library(data)).startswith(raised.text.removesuffix(OMITTED))


def test_a_long_sound_header_is_accepted() -> None:
    many = {f"t{number}": entry("I8", [1], number, number + 1) for number in range(EXACT // 40)}
    data = written(json.dumps(many) + " " * 7, len(many))
    assert len(data) > EXACT + len(many)
    assert library(data) is None
    assert predicted(whole(data)) is None


def test_a_type_fault_in_a_long_header_has_the_librarys_text() -> None:
    many = {f"t{number}": entry("I8", [0], 0, 0) for number in range(EXACT // 50)}
    data = written(json.dumps({**many, "last": entry("Q4", [0], 0, 0)}))
    assert predicted(whole(data)) == library(data)


def test_hundreds_of_thousands_of_faulty_entries_are_not_all_listed() -> None:
    data = written({f"t{number}": entry("I8", [2], number, number + 1) for number in range(2000)}, 2000)
    [outcome] = OPERATION.examine(SafetensorsCall(whole(data))).failed()
    assert len(outcome.occurrences) == 1000


def test_only_the_header_of_a_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    data = written({"w": entry("I8", [2**33], 0, 2**33)})
    with path.open("wb") as file:
        file.write(data)
        file.truncate(len(data) + 2**33)
    start = first_bytes(path)
    assert len(start.data) == 4096
    assert start.size == len(data) + 2**33
    assert not OPERATION.examine(SafetensorsCall(start)).rejected


@pytest.mark.parametrize(
    ("value", "pointers"),
    [
        ({"base64": "AAAA", "size": 3}, []),
        ("AAAA", []),
        ({"base64": "AAAA", "size": None}, []),
        ({"base64": "AAAA", "size": 2}, ["/size"]),
        ({"base64": "AAAA", "size": True}, ["/size"]),
        ({"base64": "AAAA", "size": MAX_SIZE + 1}, ["/size"]),
        ({"base64": "A A", "path": 1}, ["/path", "/base64"]),
        ({"base64": 5}, ["/base64"]),
        ({}, ["/base64"]),
        ([], [""]),
    ],
)
def test_a_described_file_is_read_strictly(value: object, pointers: list[str]) -> None:
    if not pointers:
        assert FileStart.from_json(value).data == bytes(3)
        return
    with pytest.raises(FaultyMembers) as raised:
        FileStart.from_json(value)
    assert [pointer for pointer, _ in raised.value.faults] == pointers


def test_a_described_file_survives_json() -> None:
    for start in (VALID.filename, replace(VALID.filename, size=None)):
        assert FileStart.from_json(start.to_json()) == start


@pytest.mark.parametrize("name", ["zip", "gap", "data cut", "cut in the header"])
def test_the_script_writes_the_very_file(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    data = REFUSED[name][0]
    names: dict[str, object] = {}
    exec(whole(data).to_python("filename"), names)  # noqa: S102 (our own script)
    assert Path(str(names["filename"])).read_bytes() == data
