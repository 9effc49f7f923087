"""What a file is that is no safetensors file, by its first bytes."""

from __future__ import annotations

import re

MAGIC: tuple[tuple[bytes, str], ...] = (
    (b"PK\x03\x04", "a zip archive, which is how torch.save writes its files (.pt, .bin, .ckpt)"),
    (b"PK\x05\x06", "an empty zip archive"),
    (b"GGUF", "a GGUF file, the format of llama.cpp"),
    (b"\x1f\x8b", "compressed with gzip"),
    (b"\x28\xb5\x2f\xfd", "compressed with Zstandard"),
    (b"BZh", "compressed with bzip2"),
    (b"\xfd7zXZ", "compressed with xz"),
    (b"7z\xbc\xaf", "a 7-Zip archive"),
    (b"\x89HDF", "an HDF5 file, as Keras writes"),
    (b"\x93NUMPY", "a NumPy array (.npy)"),
    (b"\xef\xbb\xbf", "text that begins with a byte order mark"),
)

LFS = b"version https://git-lfs"
_LFS_SIZE = re.compile(rb"\nsize ([0-9]{1,20})\n")
_LINE = re.compile(r"[\x20-\x7e]{8,}")
# How an error is told in the answers of model hubs and object stores; no model's file has these names.
_ANSWER = re.compile(
    r'"(?:error|errors|message|detail|error_description)"\s{0,8}:[\s\[{]{0,8}"([^"\\]{1,200}+)(?:"(?!\s{0,8}:)|[^"])'
)
LOOKED_AT = 4096
"""Bytes in which an answer's text is looked for."""
SHOWN = 60
"""Characters of a text that are repeated."""


def sniff(data: bytes) -> str:
    """What the file is, to follow "it is"; empty where the first bytes do not tell."""
    if data.startswith(LFS):
        stated = _LFS_SIZE.search(data[:400])
        size = f" of a file of {int(stated[1]):,} bytes" if stated else ""
        return f"a Git LFS pointer{size}: the repository was cloned without its large files (git lfs pull)"
    for magic, kind in MAGIC:
        if data.startswith(magic):
            return kind
    if data[:1] == b"\x80" and data[1:2] in (b"\x02", b"\x03", b"\x04", b"\x05"):
        return f"a Python pickle of protocol {data[1]}, as torch.save wrote before torch 1.6"
    if data and not data.strip(b"\0"):
        return "nothing but zero bytes, as a file has whose download reserved its place and never filled it"
    stripped = data.lstrip()
    if stripped[:1] == b"<":
        return "an HTML or XML page: the answer of a web server in place of the file"
    if stripped[:1] == b"{" or stripped[:2] in (b'["', b"[{"):
        return _json(data)
    return _text(data)


def _json(data: bytes) -> str:
    if b'"weight_map"' in data:
        return "the index of a model's shards: the tensors are in the files that it names"
    said = _ANSWER.search(data[:LOOKED_AT].decode("utf-8", "replace"))
    if said is not None:
        return f"a server's answer in place of the file, which says {_cut(said[1])}: download it again"
    return "JSON text, perhaps the configuration that lies beside a model's files"


def _cut(text: str) -> str:
    return repr(text[:SHOWN] + ("…" if len(text) > SHOWN else ""))


def _text(data: bytes) -> str:
    found = _LINE.match(data[:200].decode("latin-1"))
    if not found or len(data) < 8:
        return ""
    line = found[0]
    return f"text that begins with {_cut(line)}"
