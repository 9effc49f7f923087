"""The beginning of a file: its first bytes and, where it is known, how long it is as a whole."""

from __future__ import annotations

import base64
import binascii
import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

from kernels.checkpoint import Checkpoint, FaultyMembers, Header
from kernels.safetensors_file.reader import USIZE
from kernels.safetensors_file.serde import BITS, Entry, read
from kernels.safetensors_file.sniffing import sniff
from kernels.safetensors_file.wording import Part, Refused
from kernels.values import Listed, Text, Values

LENGTH = 8
"""Bytes of the little-endian number that says how long the header is."""
MAX_HEADER = 100_000_000
"""Bytes of the longest header that the library reads."""
MAX_SIZE = 2**63 - 1
MAX_TEXT = 4096
"""Bytes of the longest tensor that is taken for a text."""
LISTED = 1000
"""Faulty entries that are told apart; a header can have hundreds of thousands."""
LOOK = 4096
"""Bytes that are read of any file: enough to tell what else it is."""
SCRIPTED = 4096
"""Bytes up to which a script writes the file itself."""


@dataclass(frozen=True, slots=True)
class Placed:
    """An entry in the order of the data, and where its data must begin: behind the data before it."""

    entry: Entry
    start: int

    @property
    def misplaced(self) -> bool:
        """Whether its data begins elsewhere, or ends before it begins."""
        return self.entry.begin != self.start or self.entry.end < self.entry.begin

    @property
    def bits(self) -> int | None:
        """Size of its elements; None beyond 64 bits, multiplied in the library's order."""
        count = 1
        for size in (*self.entry.shape, BITS[self.entry.dtype]):
            count *= size
            if count > USIZE:
                return None
        return count

    @property
    def faulty(self) -> bool:
        """Whether the library refuses it."""
        return self.misplaced or self.bits != 8 * (self.entry.end - self.entry.begin)

    def describe(self) -> str:
        """The entry in words."""
        entry = self.entry
        return f"{entry.name!r} {entry.dtype} {list(entry.shape)} at bytes {entry.begin} to {entry.end}"


@dataclass(frozen=True)
class FileStart:
    """The first bytes of a file; `size` is the whole file's in bytes, None where nobody said."""

    data: bytes
    size: int | None = None

    def __reduce__(self) -> tuple[type[FileStart], tuple[bytes, int | None]]:
        """What travels to a worker is the bytes, not what was read from them here."""
        return FileStart, (self.data, self.size)

    @property
    def header_length(self) -> int | None:
        """What the first eight bytes say, None where there are fewer."""
        return int.from_bytes(self.data[:LENGTH], "little") if len(self.data) >= LENGTH else None

    @property
    def data_start(self) -> int:
        """Offset of the first tensor's data, in bytes."""
        return LENGTH + (self.header_length or 0)

    @property
    def header(self) -> bytes | None:
        """The header, None where the bytes given end before it does."""
        if self.header_length is None or len(self.data) < self.data_start:
            return None
        return self.data[LENGTH : self.data_start]

    @property
    def kind(self) -> str:
        """What else the file is, by its first bytes; empty where they do not tell."""
        return sniff(self.data)

    @property
    def readable(self) -> bool:
        """Whether the header was read."""
        return self.header is not None and self._is_utf8 and self._read[2] is None

    @cached_property
    def _is_utf8(self) -> bool:
        try:
            (self.header or b"").decode()
        except UnicodeDecodeError:
            return False
        return True

    @cached_property
    def _read(self) -> tuple[dict[str, str], list[Entry], Refused | None]:
        try:
            return (*read(self.header or b""), None)
        except Refused as refused:
            return {}, [], refused

    @property
    def metadata(self) -> Mapping[str, str]:
        """The header's texts; empty where it cannot be read."""
        return self._read[0]

    def refusal(self, part: Part) -> Refused | None:
        """Why the header cannot be read, where the reason lies in this part of it."""
        refused = self._read[2]
        return refused if refused is not None and refused.part is part else None

    @cached_property
    def entries(self) -> Mapping[str, Entry]:
        """Tensor name → its entry; of repeated names the last counts."""
        return {entry.name: entry for entry in self._read[1]}

    @cached_property
    def repeated(self) -> tuple[str, ...]:
        """Names that more than one entry has, the first LISTED of them."""
        seen: dict[str, int] = {}
        for entry in self._read[1]:
            seen[entry.name] = seen.get(entry.name, 0) + 1
        return tuple(islice((name for name, count in seen.items() if count > 1), LISTED))

    @cached_property
    def _placed(self) -> tuple[tuple[Placed, ...], int]:
        start = 0
        faulty: list[Placed] = []
        for entry in sorted(self.entries.values(), key=lambda entry: (entry.begin, entry.end)):
            placed = Placed(entry, start)
            if len(faulty) < LISTED and placed.faulty:
                faulty.append(placed)
            start = entry.end
        return tuple(faulty), start

    @property
    def faulty(self) -> tuple[Placed, ...]:
        """Entries that the library refuses, in the order of their data; of equal offsets in the file's."""
        return self._placed[0]

    @property
    def end(self) -> int:
        """Size in bytes that the whole file must have by its header."""
        return self.data_start + self._placed[1]

    @property
    def storage_bytes(self) -> int:
        """Bytes of the file."""
        return len(self.data) if self.size is None else self.size

    @property
    def likely_size(self) -> int:
        """Bytes of the file where they are known; else what its header promises, where that is sound."""
        if self.size is None and self.readable and not self.faulty:
            return max(self.end, len(self.data))
        return self.storage_bytes

    def describe(self) -> str:
        """Its beginning in words."""
        shown = " ".join(f"{byte:02x}" for byte in self.data[:LENGTH])
        whole = "" if self.size is None else f" of {self.size:,}"
        return f"{len(self.data):,} bytes{whole}, {f'beginning {shown}' if shown else 'no beginning'}"

    def checkpoint(self) -> Checkpoint:
        """What the header says of the file, which must be readable."""
        tensors = {
            name: Header(entry.dtype, entry.shape, self._held(entry)) for name, entry in self.entries.items()
        }
        return Checkpoint(self.metadata, tensors)

    def _held(self, entry: Entry) -> Values | None:
        """The bytes of a short row of them, where they were given: formats keep texts about a layer so."""
        begin, end = self.data_start + entry.begin, self.data_start + entry.end
        short = entry.dtype == "U8" and len(entry.shape) == 1 and 0 < entry.end - entry.begin <= MAX_TEXT
        if not short or len(self.data) < end:
            return None
        held = self.data[begin:end]
        try:
            return Text(held.decode())
        except UnicodeDecodeError:
            return Listed(tuple(held))

    def to_json(self) -> dict[str, Any]:
        """As the API takes it."""
        encoded = {"base64": base64.b64encode(self.data).decode("ascii")}
        return encoded if self.size is None else {**encoded, "size": self.size}

    @classmethod
    def from_json(cls, value: Any) -> FileStart:
        """Read `{"base64": "…", "size": n}` or the base64 text alone; raises FaultyMembers."""
        if isinstance(value, str):
            value = {"base64": value}
        if not isinstance(value, Mapping):
            raise FaultyMembers(
                [("", "expected the file's first bytes as base64, or an object with base64 and size")]
            )
        faults = [
            (f"/{key}", "unknown member; known: base64, size")
            for key in value
            if key not in ("base64", "size")
        ]
        data, size = b"", value.get("size")
        try:
            data = base64.b64decode(value["base64"], validate=True)
        except KeyError:
            faults.append(("/base64", "missing"))
        except (TypeError, ValueError, binascii.Error) as error:
            faults.append(("/base64", f"not base64: {error}"))
        if size is not None and (type(size) is not int or not 0 <= size <= MAX_SIZE):
            faults.append(("/size", f"expected a whole number from 0 to {MAX_SIZE}"))
        elif size is not None and size < len(data):
            faults.append(("/size", f"the file has {size} bytes, and {len(data)} of them were given"))
        if faults:
            raise FaultyMembers(faults)
        return cls(data, size)

    @staticmethod
    def json_schema() -> dict[str, Any]:
        """JSON Schema of what `from_json` takes."""
        encoded = {"type": "string", "contentEncoding": "base64"}
        return {
            "anyOf": [
                encoded,
                {
                    "type": "object",
                    "required": ["base64"],
                    "additionalProperties": False,
                    "properties": {
                        "base64": encoded,
                        "size": {"type": ["integer", "null"], "minimum": 0, "maximum": MAX_SIZE},
                    },
                },
            ]
        }

    def to_python(self, name: str) -> str:
        """Lines that write such a file, zeros where its bytes are not known; `name` holds its path then."""
        path = f'{name} = "checkpoint.safetensors"'
        if len(self.data) > SCRIPTED:
            return f"{path}  # the file itself: its first {len(self.data):,} bytes are too long for a script"
        lines = [path, f'with open({name}, "wb") as file:']
        if self.header is None:
            lines.append(f"    file.write({self.data!r})")
        else:
            lines += [
                f"    header = {self.header!r}",
                '    file.write(len(header).to_bytes(8, "little") + header)',
            ]
            rest = self.data[self.data_start :]
            lines += [f"    file.write({rest!r})"] if rest else []
        if self.size is not None and self.size > len(self.data):
            lines.append(f"    file.truncate({self.size})")
        return "\n".join(lines)


def first_bytes(path: Path) -> FileStart:
    """A file up to the end of its header, at least LOOK bytes, and its size; raises OSError."""
    with path.open("rb") as file:
        start = file.read(LOOK)
        length = int.from_bytes(start[:LENGTH], "little")
        if LENGTH + length > len(start) == LOOK and length <= MAX_HEADER:
            start += file.read(LENGTH + length - LOOK)
        return FileStart(start, os.fstat(file.fileno()).st_size)
