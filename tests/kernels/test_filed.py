"""A described file as bytes is what the library reads."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors import safe_open

from kernels.checkpoint import Checkpoint, Header
from kernels.filed import Filed, NotAllKnown, element_bytes, filed
from kernels.registry import operations
from kernels.values import Full, Listed, Ones, Randint, Text, Zeros


def written(file: Filed, folder: Path) -> Path:
    path = folder / file.name
    with path.open("wb") as stream:
        for place, data in file.pieces:
            stream.seek(place)
            stream.write(data)
        stream.truncate(file.size)
    return path


def test_header_and_described_bytes_are_read_back(tmp_path: Path) -> None:
    checkpoint = Checkpoint(
        {"format": "pt"},
        {
            "b.weight": Header("BF16", (3, 2)),
            "a.marker": Header("U8", (5,), Text("{}")),
            "a.ids": Header("I32", (2, 2), Listed((7, -1))),
            "a.flags": Header("BOOL", (3,), Listed((0, 1, 5))),
        },
    )
    with safe_open(written(filed("x.safetensors", checkpoint), tmp_path), framework="pt") as file:
        assert file.metadata() == {"format": "pt"}
        assert bytes(file.get_tensor("a.marker").tolist()) == b"{}\0\0\0"
        assert file.get_tensor("a.ids").tolist() == [[7, -1], [7, -1]]
        assert file.get_tensor("a.flags").tolist() == [False, True, True]
        assert torch.equal(file.get_tensor("b.weight"), torch.zeros(3, 2, dtype=torch.bfloat16))


@pytest.mark.parametrize(
    ("header", "held"),
    [
        (Header("U8", (3,), Text("{}")), b"{}\0"),
        (Header("I8", (3,), Full(-1)), b"\xff\xff\xff"),
        (Header("BOOL", (2,), Listed((7, 0))), b"\1\0"),
        (Header("I16", (3,), Listed((0x7D7B, 1))), b"{}\1\0{}"),
        (Header("F16", (1,), Full(10**400)), b"\x00\x7c"),
        (Header("F32", (2,), Ones()), b"\0\0\x80\x3f" * 2),
        (Header("F64", (1,), Zeros()), bytes(8)),
        (Header("C64", (1,), Ones()), b"\0\0\x80\x3f" + bytes(4)),
        (Header("F32", (0,), Text("x")), b""),
        (Header("BF16", (2,), Ones()), None),
        (Header("U8", (2,), Randint(0, 256)), None),
        (Header("U8", (2,)), None),
        (Header("U8", (10**9,), Ones()), None),
    ],
)
def test_described_elements_are_their_types_bytes(header: Header, held: bytes | None) -> None:
    assert element_bytes(header) == held


@pytest.mark.parametrize("name", ["quanto_int8_checkpoint", "comfy_checkpoint", "safetensors_file"])
def test_valid_files_open(name: str, tmp_path: Path) -> None:
    positional, _ = operations()[name].valid.upstream_arguments()
    first = positional[0][0] if isinstance(positional[0], list) else positional[0]
    with safe_open(written(first, tmp_path), framework="pt") as file:
        assert list(file.keys())


def test_a_file_of_which_too_little_is_known_is_none() -> None:
    check = operations()["safetensors_file"].check("header_not_sent")
    assert check is not None
    example = check.example()
    assert example is not None
    with pytest.raises(NotAllKnown):
        example.upstream_arguments()
