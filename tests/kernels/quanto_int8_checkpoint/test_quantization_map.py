"""Decoding of the map: what base64 it takes, why a text is refused, what can be recovered, its bounds."""

from __future__ import annotations

import base64
import itertools
import json
import re
import string
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernels.quanto_int8_checkpoint import quantization_map
from kernels.quanto_int8_checkpoint.quantization_map import (
    MAX_NESTING,
    MapFault,
    decode,
    encode,
    entry,
    recovered,
    unwrapped,
)

SOUND = {"blk.0.proj": entry()}
ENCODED = encode(SOUND)

PLAIN = re.compile("(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?")
"""Standard base64 of whole bytes on one line, RFC 4648 section 4, with any value in the unused last bits."""

EXCESS = re.compile("(?:[A-Za-z0-9+/]{4})+=+")
"""Padding after complete groups: taken by some versions of Python and refused by others."""


def accepted(encoded: str) -> bool:
    try:
        unwrapped(encoded)
    except MapFault:
        return False
    return True


@pytest.mark.parametrize("length", range(1, 7))
def test_exactly_plain_base64_is_accepted(length: int) -> None:
    """Exhaustively, over one member of each kind of character that base64 decoders treat apart."""
    for characters in itertools.product("A/=-\n", repeat=length):
        encoded = "".join(characters)
        if EXCESS.fullmatch(encoded):
            continue
        assert accepted(encoded) == bool(PLAIN.fullmatch(encoded)), encoded


def test_every_other_character_is_refused() -> None:
    alphabet = set(string.ascii_letters + string.digits + "+/")
    for character in map(chr, range(0x250)):
        encoded = f"QUJD{character}UJD"
        assert accepted(encoded) == (character in alphabet), hex(ord(character))


def test_bytes_are_those_of_a_general_decoder() -> None:
    assert unwrapped("QUI=") == b"AB"
    assert unwrapped("QUJ=") == b"AB", "unused bits are not looked at"
    assert unwrapped("+/+/") == b"\xfb\xff\xbf"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(JSON)
def test_what_is_encoded_is_decoded(value: Any) -> None:
    assert decode(encode(json.dumps(value))) == value
    assert decode(encode({"key": value})) == {"key": value}


def test_repeated_keys_count_last() -> None:
    assert decode(encode('{"a": {"weights": "qint4"}, "b": 1, "a": {"weights": "qint8"}}')) == {
        "a": {"weights": "qint8"},
        "b": 1,
    }


# --- why it is refused


NO_NAME = "Expecting property name enclosed in double quotes"
PYTHON = "; single quotes are Python's, JSON has double ones"


def bytes64(data: bytes) -> str:
    return base64.b64encode(data).decode()


@pytest.mark.parametrize(
    ("encoded", "why"),
    [
        ("", "is empty"),
        (ENCODED[:8] + "\n" + ENCODED[8:], "has a line break at offset 8; strict base64 is one line"),
        (ENCODED[:8] + "\r\n" + ENCODED[8:], "has a line break at offset 8; strict base64 is one line"),
        (ENCODED + "\n", f"has a line break at offset {len(ENCODED)}; strict base64 is one line"),
        ("QUJD QUJD", "has white space at offset 4; strict base64 has none"),
        ("QUJD\tQUJD", "has white space at offset 4; strict base64 has none"),
        ("QU-D", "has '-' at offset 2, of the URL-safe alphabet; the standard one has + and /"),
        ("QUJ_", "has '_' at offset 3, of the URL-safe alphabet; the standard one has + and /"),
        ("!!!!", "has '!' at offset 0, which is no base64 character"),
        ("QUé=", "has 'é' at offset 2, which is no base64 character"),
        ("QUI", "has misplaced or missing = padding, or is cut short"),
        ("QU=I", "has misplaced or missing = padding, or is cut short"),
        ("QUJDQ", "has misplaced or missing = padding, or is cut short"),
        (json.dumps(SOUND), "is the JSON itself; it has to be wrapped in base64"),
        (bytes64(b'{"\xff": 1}'), "decodes to bytes that are not UTF-8: 0xff at offset 2"),
        (
            bytes64("{}".encode("utf-16-le")),
            f"decodes to text that is not JSON: {NO_NAME} at line 1 column 2",
        ),
        (
            bytes64(b"\xef\xbb\xbf{}"),
            "decodes to text that begins with a byte order mark (EF BB BF), which JSON does not take",
        ),
        (bytes64(b"hello"), "decodes to text that is not JSON: Expecting value at line 1 column 1"),
        (
            bytes64(b"{'a': 1}"),
            f"decodes to text that is not JSON: {NO_NAME} at line 1 column 2{PYTHON}",
        ),
        (bytes64(b'{"a": 1'), "decodes to text that is not JSON: Expecting ',' delimiter at line 1 column 8"),
        (bytes64(b'{"a": ' + b"1" * 5000 + b"}"), "holds a number with too many digits"),
    ],
)
def test_the_fault_is_named(encoded: str, why: str) -> None:
    with pytest.raises(MapFault) as raised:
        decode(encoded)
    assert str(raised.value) == why


# --- bounds


def nested(levels: int, container: str = "[]") -> str:
    return encode(container[0] * levels + container[1] * levels)


def test_nesting_is_bounded_whatever_the_stack() -> None:
    assert decode(nested(MAX_NESTING)) is not None
    for levels in (MAX_NESTING + 1, 900, 100_000):
        with pytest.raises(MapFault, match=f"^is nested deeper than {MAX_NESTING} levels$"):
            decode(nested(levels))


def test_nested_objects_are_bounded_too() -> None:
    text = '{"a":' * (MAX_NESTING + 1) + "0" + "}" * (MAX_NESTING + 1)
    with pytest.raises(MapFault, match="nested deeper"):
        decode(encode(text))


def test_an_exhausted_stack_is_a_map_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    def exhausted(_: str) -> Any:
        raise RecursionError

    monkeypatch.setattr(json, "loads", exhausted)
    with pytest.raises(MapFault, match="nested deeper"):
        decode(ENCODED)


def test_length_is_bounded_before_anything_is_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quantization_map, "MAX_ENCODED", 8)
    assert decode("MTIzNDU2") == 123456
    with pytest.raises(MapFault, match=r"^is 12 characters long, more than a safetensors header can be$"):
        decode("MTIzNDU2Nzg5")
    assert recovered("MTIz NDU2Nzg5") is None


# --- what can be recovered


@pytest.mark.parametrize(
    "encoded",
    [
        base64.encodebytes(json.dumps({f"layer.{index}": entry() for index in range(9)}).encode()).decode(),
        ENCODED.rstrip("="),
        f"  {ENCODED}\n",
        f"data:application/json;base64,{ENCODED}",
        base64.urlsafe_b64encode(json.dumps({"?>?>~~": entry()}).encode()).decode(),
        bytes64(b"\xef\xbb\xbf" + json.dumps(SOUND).encode()),
        bytes64(json.dumps(SOUND).encode("utf-16")),
        json.dumps(SOUND),
        json.dumps(SOUND, indent=2),
    ],
)
def test_near_misses_are_recovered(encoded: str) -> None:
    with pytest.raises(MapFault):
        decode(encoded)
    text = recovered(encoded)
    assert text is not None
    assert all(item == entry() for item in decode(encode(text)).values())


@pytest.mark.parametrize(
    "encoded", ["", "!!!!", "hello", bytes64(b"hello"), bytes64(b"[1]"), nested(900), "{]", "QUJD\ud800"]
)
def test_nothing_is_made_up(encoded: str) -> None:
    assert recovered(encoded) is None


@given(st.text())
def test_any_text_is_answered(text: str) -> None:
    with suppress(MapFault):
        decode(text)
    found = recovered(text)
    assert found is None or isinstance(json.loads(found), dict)
