"""Files for the tests: each with the text that the library refuses it with, or none."""

from __future__ import annotations

import json
import os
import zipfile
from io import BytesIO
from typing import Any

from safetensors import SafetensorError, safe_open

from kernels.safetensors_file.file_start import FileStart
from kernels.safetensors_file.op import MemoryFile
from kernels.safetensors_file.signature import HEADER, VALID, entry, written

LFS = (
    b"version https://git-lfs.github.com/spec/v1\n"
    b"oid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393\nsize 12345\n"
)


def library(data: bytes) -> str | None:
    """What the library itself says of a whole file; None where it opens it."""
    return library_of(FileStart(data, len(data)))


def library_of(start: FileStart) -> str | None:
    stored = MemoryFile(start)
    try:
        with safe_open(os.fspath(stored), framework="pt") as file:
            file.keys()
    except SafetensorError as error:
        return str(error)
    return None


def archive() -> bytes:
    stream = BytesIO()
    with zipfile.ZipFile(stream, "w") as file:
        file.writestr("archive/data.pkl", b"\x80\x02}q\x00.")
    return stream.getvalue()


def two(begin: int, end: int, **changes: Any) -> bytes:
    """VALID's tensor and another one at these offsets, as much data as the later one needs."""
    other = {**entry("I8", [end - begin], begin, end), **changes}
    return written({**HEADER, "b": other}, max(end, 12))


def one(**changes: Any) -> bytes:
    """VALID with another entry for its tensor; None leaves a member out."""
    changed = {**entry("BF16", [3, 2], 0, 12), **changes}
    return written({"w": {key: value for key, value in changed.items() if value is not None}}, 12)


# name → (file, the check that refuses it, what its reason must mention)
REFUSED: dict[str, tuple[bytes, str, str]] = {
    "empty": (b"", "header_too_small", "0 bytes"),
    "five bytes": (b"hello", "header_too_small", "5 bytes"),
    "zip": (archive(), "header_too_large", "zip archive"),
    "old pickle": (b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.", "header_too_large", "pickle of protocol 2"),
    "html": (b"\n<!DOCTYPE html><html></html>", "header_too_large", "HTML"),
    "answer": (
        b'{"error": "Repository not found", "status": 404}',
        "header_too_large",
        "a server's answer in place of the file, which says 'Repository not found': download it again",
    ),
    "answer, nested": (
        b'{"errors": [{"message": "Access denied"}], "padding": 1}',
        "header_too_large",
        "a server's answer in place of the file, which says 'Access denied'",
    ),
    "configuration": (
        b'{"architectures": ["LlamaForCausalLM"]}',
        "header_too_large",
        "JSON text, perhaps the configuration",
    ),
    "lfs pointer": (LFS, "header_too_large", "Git LFS pointer of a file of 12,345 bytes"),
    "gguf": (b"GGUF\x03\0\0\0" + bytes(24), "header_too_large", "GGUF"),
    "gzip": (b"\x1f\x8b\x08\0\0\0\0\0\0\x03", "invalid_header_length", "gzip"),
    "index": (json.dumps({"weight_map": {}}, indent=2).encode(), "header_too_large", "index"),
    "message of a server": (b"Access to model x/y is restricted.", "header_too_large", "Access to model x/y"),
    "one beyond the limit": ((100_000_001).to_bytes(8, "little") + b"{}", "header_too_large", "100,000,001"),
    "at the limit": ((100_000_000).to_bytes(8, "little") + b"{}", "invalid_header_length", "99,999,998"),
    "cut in the header": (VALID.filename.data[:40], "invalid_header_length", "70 are missing"),
    "zeros": (bytes(4096), "header_not_json", "zero bytes"),
    "length zero": (bytes(8) + b"{}", "header_not_json", "its length is zero"),
    "latin-1": (written(b'{"\xe4":1}'), "header_not_utf8", "byte 2"),
    "cut within a character": (written(b'{"\xe2\x82'), "header_not_utf8", "byte 2"),
    "surrogate": (written(b'{"\xed\xa0\x80":1}'), "header_not_utf8", "byte 2"),
    "no json": (written("weights"), "header_not_json", "weights"),
    "byte order mark": (written("\ufeff{}"), "header_not_json", "expected value"),
    "single quotes": (written("{'w': 1}"), "header_not_json", "key must be a string"),
    "trailing comma": (written('{"w":{},}'), "header_not_json", "trailing comma"),
    "NaN": (written('{"w":NaN}'), "header_not_json", "expected value"),
    "nul padding": (written(b"{}\0\0\0\0\0\0"), "header_not_json", "trailing characters"),
    "a list": (written("[1]"), "tensor_entry_malformed", "no object"),
    "integer in the metadata": (written({"__metadata__": {"a": 1}}), "metadata_not_text", "'a'"),
    "nested metadata": (written({"__metadata__": {"a": {}}}), "metadata_not_text", "'a'"),
    "metadata is a text": (written({"__metadata__": "pt"}), "metadata_not_text", "expected a map"),
    "metadata twice": (written('{"__metadata__":{}, "__metadata__" : {}}'), "metadata_not_text", "duplicate"),
    "unknown dtype": (one(dtype="Q8"), "unknown_element_type", "'w'"),
    "torch's dtype": (one(dtype="torch.bfloat16"), "unknown_element_type", "'w'"),
    "dtype is a number": (one(dtype=1), "unknown_element_type", "'w'"),
    "no dtype": (one(dtype=None), "tensor_entry_malformed", "missing field `dtype`"),
    "no shape": (one(shape=None), "tensor_entry_malformed", "missing field `shape`"),
    "negative size": (one(shape=[-1]), "tensor_entry_malformed", "`-1`"),
    "size is a float": (one(shape=[3.0, 2]), "tensor_entry_malformed", "`3.0`"),
    "size beyond 64 bits": (one(shape=[2**64]), "tensor_entry_malformed", "1.8446744073709552e+19"),
    "one offset": (one(data_offsets=[0]), "tensor_entry_malformed", "tuple of size 2"),
    "three offsets": (one(data_offsets=[0, 6, 12]), "tensor_entry_malformed", "2 elements"),
    "entry is null": (written({"w": None}), "tensor_entry_malformed", "null"),
    "gap": (two(13, 14), "invalid_offset", "begin at 12"),
    "overlap": (two(11, 14), "invalid_offset", "begin at 12"),
    "first not at zero": (written({"w": entry("I8", [1], 1, 2)}, 2), "invalid_offset", "begin at 0"),
    "backwards": (written({"w": entry("I8", [0], 4, 0)}, 4), "invalid_offset", "from byte 4 to 0"),
    "product beyond 64 bits": (one(shape=[2**40, 2**40]), "validation_overflow", "2^64"),
    "bits beyond 64 bits": (one(shape=[2**61]), "validation_overflow", "2^64"),
    "overflow before a zero": (one(shape=[2**40, 2**40, 0]), "validation_overflow", "2^64"),
    "odd number of F4": (written({"w": entry("F4", [3], 0, 2)}, 2), "misaligned_slice", "12 bits"),
    "three of F6": (written({"w": entry("F6_E2M3", [3], 0, 3)}, 3), "misaligned_slice", "18 bits"),
    "shape too large": (one(shape=[3, 3]), "tensor_invalid_info", "18 bytes"),
    "type too narrow": (one(dtype="I8"), "tensor_invalid_info", "6 bytes"),
    "data cut": (VALID.filename.data[:-5], "metadata_incomplete_buffer", "5 are missing"),
    "header only": (VALID.filename.data[:-12], "metadata_incomplete_buffer", "12 are missing"),
    "bytes behind the data": (VALID.filename.data + b"marker", "metadata_incomplete_buffer", "6 follow"),
    "second tensor at fault": (two(12, 14, shape=[5]), "tensor_invalid_info", "'b'"),
}

ACCEPTED: dict[str, bytes] = {
    "valid": VALID.filename.data,
    "no tensors": written("{}"),
    "metadata is null": written('{"__metadata__":null}'),
    "spaces around": written("  \n" + json.dumps(HEADER) + "   ", 12),
    "unknown members": one(note={"deep": [[1.5, "é"]]}),
    "entry as a list": written({"w": ["BF16", [3, 2], [0, 12]]}, 12),
    "type as a map": one(dtype={"BF16": None}),
    "repeated name": written(
        '{"w":{"dtype":"I8","shape":[9],"data_offsets":[0,9]},"w":'
        + json.dumps(entry("I8", [2], 0, 2))
        + "}",
        2,
    ),
    "any order": written({"b": entry("I8", [2], 12, 14), **HEADER}, 14),
    "no elements": written({"a": entry("F32", [0, 5], 0, 0), "b": entry("I8", [1], 0, 1)}, 1),
    "two F4": written({"w": entry("F4", [2], 0, 1)}, 1),
    "escapes": written('{"\\u00e4\\ud83d\\ude00\\n":{"dtype":"I8","shape":[],"data_offsets":[0,1]}}', 1),
}
