"""What the safetensors library refuses when it opens a file, in its order: length, JSON, entries, data."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, ClassVar, Self

from kernels.checking import Category, Check, Each, Given, Severity, aside
from kernels.registry import Operation
from kernels.safetensors_file.entries import ENTRY_CHECKS
from kernels.safetensors_file.file_start import LENGTH, MAX_HEADER, FileStart
from kernels.safetensors_file.reader import EXACT, OMITTED
from kernels.safetensors_file.serde import VARIANTS
from kernels.safetensors_file.signature import (
    HEADER,
    PREFIX,
    READ,
    SOURCE,
    VALID,
    SafetensorError,
    SafetensorsCall,
    at,
    entry,
    fill,
    fit,
    whole,
)
from kernels.safetensors_file.wording import Part, Refused

INVALID_JSON = f"{PREFIX}invalid JSON in header: {{error}}"
AROUND = 12
"""Bytes shown on each side of a fault."""


class FileCheck(Check[SafetensorsCall]):
    """A check of the file as a whole."""

    raises = SafetensorError
    looks_at: ClassVar[tuple[str, ...]] = ("filename",)
    category: ClassVar[Category] = "format"

    def describe_actual(self, call: SafetensorsCall, /) -> str:
        return call.filename.describe()


@dataclass(frozen=True)
class HeaderTooSmall(FileCheck):
    """Eight bytes say how long the header is; a file without them says nothing at all."""

    message = f"{PREFIX}header too small"
    formerly = (f"{PREFIX}HeaderTooSmall",)
    sites = at(READ, 393)
    reason = "the file has {size} bytes, and the first eight hold the header's length{kind}"
    requires = f"at least {LENGTH} bytes"
    size: int = aside()
    kind: str = aside()

    @classmethod
    def find(cls, call: SafetensorsCall, /) -> Iterator[Self]:
        file = call.filename
        if file.header_length is None and (file.size is None or file.size < LENGTH):
            yield cls(file.storage_bytes, _told(file))

    @classmethod
    def example(cls) -> SafetensorsCall:
        return VALID.with_file(b"", 0)


@dataclass(frozen=True)
class HeaderTooLarge(FileCheck):
    """The length is capped, so that a file of another format cannot make its reader allocate without end."""

    message = f"{PREFIX}header too large"
    formerly = (f"{PREFIX}HeaderTooLarge",)
    sites = at(READ, 403)
    reason = "the first eight bytes, read as a length, say {length:,}; at most 100,000,000 are taken{kind}"
    requires = f"a header of at most {MAX_HEADER:,} bytes"
    length: int = aside()
    kind: str = aside()

    @classmethod
    def find(cls, call: SafetensorsCall, /) -> Iterator[Self]:
        length = call.filename.header_length
        if length is not None and length > MAX_HEADER:
            yield cls(length, _told(call.filename) or "; no safetensors file begins like that")

    @classmethod
    def example(cls) -> SafetensorsCall:
        page = b"<!DOCTYPE html>\n<title>Not Found</title>\n"
        return VALID.with_file(page, len(page))


@dataclass(frozen=True)
class InvalidHeaderLength(FileCheck):
    """A header that ends behind the file's own end was cut off, or never was one."""

    message = f"{PREFIX}invalid header length"
    formerly = (f"{PREFIX}InvalidHeaderLength",)
    sites = at(READ, 408, 413)
    reason = "the header would end at byte {end:,} and the file has {size:,}: {missing:,} are missing{kind}"
    requires = "a file at least as long as eight bytes and its header"
    end: int = aside()
    size: int = aside()
    missing: int = aside()
    kind: str = aside()

    @classmethod
    def evaluable(cls, call: SafetensorsCall, /) -> bool:
        return call.filename.size is not None or call.filename.header is not None

    @classmethod
    def find(cls, call: SafetensorsCall, /) -> Iterator[Self]:
        file = call.filename
        if file.size is not None and file.data_start > file.size:
            told = _told(file) or "; a download that was cut short leaves such a file"
            yield cls(file.data_start, file.size, file.data_start - file.size, told)

    @classmethod
    def example(cls) -> SafetensorsCall:
        cut = VALID.filename.data[:40]
        return VALID.with_file(cut, len(cut))


@dataclass(frozen=True)
class HeaderNotSent(FileCheck):
    """Nothing can be said of a header of which only a part is at hand."""

    message = "the header ends at byte {end} and {given} bytes were given: send {missing} bytes more"
    reason = (
        "{given:,} bytes were given of a header that ends at byte {end:,}; "
        "if they are the whole file, it was cut off, and the library says: invalid header length{kind}"
    )
    requires = "the first bytes of the file, to the end of the header"
    end: int
    given: int
    missing: int
    kind: str = aside()

    @classmethod
    def find(cls, call: SafetensorsCall, /) -> Iterator[Self]:
        file = call.filename
        end = LENGTH if file.header_length is None else file.data_start
        if file.header is None and (file.size is None or file.size >= end):
            yield cls(end, len(file.data), end - len(file.data), _told(file))

    @classmethod
    def example(cls) -> SafetensorsCall:
        return VALID.with_file(VALID.filename.data[:40])


@dataclass(frozen=True)
class HeaderNotUtf8(FileCheck):
    """JSON is text, and its encoding is fixed so that no reader has to guess."""

    message = f"{PREFIX}invalid UTF-8 in header: {{error}}"
    formerly = (f"{PREFIX}InvalidHeader",)
    sites = at(READ, 415)
    reason = "byte {index} of the header is no UTF-8: … {shown} …{kind}"
    requires = "a header in UTF-8"
    error: str
    index: int = aside()
    shown: str = aside()
    kind: str = aside()

    @classmethod
    def find(cls, call: SafetensorsCall, /) -> Iterator[Self]:
        header = call.filename.header or b""
        try:
            header.decode()
        except UnicodeDecodeError as error:
            if error.reason == "unexpected end of data":
                text = f"incomplete utf-8 byte sequence from index {error.start}"
            else:
                text = f"invalid utf-8 sequence of {error.end - error.start} bytes from index {error.start}"
            yield cls(text, error.start, _around(header, error.start), _told(call.filename))

    @classmethod
    def example(cls) -> SafetensorsCall:
        return whole(b'{"__metadata__":{"author":"Andr\xe9 and many others"}}')


class JsonCheck(FileCheck):
    """A fault that the library's JSON reader reports, with the place where it noticed."""

    message = INVALID_JSON
    formerly = (f"{PREFIX}InvalidHeaderDeserialization",)
    sites = at(READ, 417)
    part: ClassVar[Part]

    @classmethod
    def find(cls, call: SafetensorsCall, /) -> Iterator[Self]:
        refused = call.filename.refusal(cls.part)
        if refused is not None:
            yield cls._of(refused, call.filename)

    @classmethod
    def _of(cls, refused: Refused, file: FileStart) -> Self:
        raise NotImplementedError(cls.__name__)


@dataclass(frozen=True)
class HeaderNotJson(JsonCheck):
    """Names, types and places of all tensors stand in one JSON object; half an object locates nothing."""

    part = Part.SYNTAX
    reason = "the header is no JSON object: {fault}"
    requires = "a header that is one JSON object"
    error: str
    fault: str = aside()

    @classmethod
    def _of(cls, refused: Refused, file: FileStart) -> Self:
        header = file.header or b""
        if refused.text == OMITTED:
            fault = f"the fault lies beyond {EXACT:,} bytes; the library's text is not computed here"
        elif not header:
            fault = f"its length is zero{_told(file)}"
        else:
            fault = f"{refused.text}, near … {_around(header, refused.at or 0)} …{_told(file)}"
        return cls(refused.text, fault)

    @classmethod
    def example(cls) -> SafetensorsCall:
        return whole('{"__metadata__":{"format":"pt","saved_by":"a script of one\'s own",}}')


@dataclass(frozen=True)
class MetadataNotText(JsonCheck):
    """Metadata goes from text to text, so that every reader in every language holds it in the same map."""

    part = Part.METADATA
    reason = "__metadata__ must be one object of texts{owner}: {error}"
    requires = "texts as the values of __metadata__"
    error: str
    owner: str = aside()

    @classmethod
    def _of(cls, refused: Refused, file: FileStart) -> Self:
        return cls(refused.text, "" if refused.owner is None else f", also the value of {refused.owner!r}")

    @classmethod
    def example(cls) -> SafetensorsCall:
        return whole({**HEADER, "__metadata__": {"epoch": 3}}, 12)


@dataclass(frozen=True)
class TensorEntryMalformed(JsonCheck):
    """An entry has three members: type, shape, and where its data begins and ends."""

    part = Part.ENTRY
    reason = "{owner}: {error}"
    requires = "for each tensor dtype, shape and data_offsets, of whole numbers from 0 to 2^64 - 1"
    error: str
    owner: str = aside()

    @classmethod
    def _of(cls, refused: Refused, file: FileStart) -> Self:
        whose = "the header is no object" if refused.owner is None else f"the entry of {refused.owner!r}"
        return cls(refused.text, whose)

    @classmethod
    def example(cls) -> SafetensorsCall:
        return whole({"up_proj.weight": {"dtype": "BF16", "shape": [3, 2]}}, 12)


@dataclass(frozen=True)
class UnknownElementType(JsonCheck):
    """A reader that does not know a type cannot tell how many bytes an element takes."""

    part = Part.DTYPE
    reason = "the dtype of {owner!r} is none that safetensors 0.8.0 knows; newer types need a newer library"
    requires = f"one of {', '.join(VARIANTS)}"
    category = "dtype"
    error: str
    owner: str | None = aside()

    @classmethod
    def _of(cls, refused: Refused, file: FileStart) -> Self:
        return cls(refused.text, refused.owner)

    @classmethod
    def example(cls) -> SafetensorsCall:
        return whole({"up_proj.weight": entry("bfloat16", [3, 2], 0, 12)}, 12)


@dataclass(frozen=True)
class MetadataIncompleteBuffer(FileCheck):
    """The last tensor ends with the file, so that a cut file is noticed before any weight is used."""

    message = f"{PREFIX}incomplete metadata, file not fully covered"
    formerly = (f"{PREFIX}MetadataIncompleteBuffer",)
    sites = at(READ, 421)
    reason = "by its header the file has {end:,} bytes, and it has {held}: {difference}"
    requires = "a file that ends with its last tensor"
    end: int = aside()
    held: str = aside()
    difference: str = aside()

    @classmethod
    def evaluable(cls, call: SafetensorsCall, /) -> bool:
        file = call.filename
        return not file.faulty and (file.size is not None or file.storage_bytes > file.end)

    @classmethod
    def find(cls, call: SafetensorsCall, /) -> Iterator[Self]:
        end, size = call.filename.end, call.filename.storage_bytes
        least = "at least " if call.filename.size is None else ""
        if end > size:
            missing = f"{end - size:,} are missing, as after a download or a copy that was cut short"
            yield cls(end, f"{size:,}", missing)
        elif end < size:
            left = f"{least}{size - end:,} follow the last tensor that no entry speaks of"
            yield cls(end, f"{least}{size:,}", left)

    @classmethod
    def example(cls) -> SafetensorsCall:
        return whole(HEADER, 7)


@dataclass(frozen=True)
class TensorRepeated(FileCheck):
    """JSON allows a key twice and the library keeps the last; another reader may keep the first."""

    message = "tensor {tensor_name!r} has more than one entry in the header"
    reason = "{tensor_name!r} stands in the header more than once; the last entry counts, without a word"
    requires = "one entry for each tensor name"
    severity = Severity.WARNING
    tensor_name: str

    @classmethod
    def find(cls, call: SafetensorsCall, /) -> Iterator[Self]:
        for name in call.filename.repeated:
            yield cls(name)

    @classmethod
    def example(cls) -> SafetensorsCall:
        one = '"up_proj.weight":{"dtype":"BF16","shape":[3,2],"data_offsets":[0,12]}'
        return whole(f"{{{one},{one}}}", 12)


def _told(file: FileStart) -> str:
    """What the file is, as the end of a sentence."""
    return f"; it is {file.kind}" if file.kind else ""


def _around(header: bytes, index: int) -> str:
    """The bytes on both sides of a place, as Python writes them."""
    return repr(header[max(0, index - AROUND) : index + AROUND])[2:-1]


LENGTHS = (HeaderTooSmall, HeaderTooLarge, InvalidHeaderLength)
JSON_CHECKS: tuple[type[Check[Any]], ...] = (
    HeaderNotJson,
    MetadataNotText,
    TensorEntryMalformed,
    UnknownElementType,
)
UNREAD = (*LENGTHS, HeaderNotSent, HeaderNotUtf8, *JSON_CHECKS)
"""Checks without which there are no entries to look at."""

STAGES = (
    HeaderTooSmall,
    Given((HeaderTooSmall,), (HeaderTooLarge,)),
    Given((HeaderTooSmall, HeaderTooLarge), (InvalidHeaderLength, HeaderNotSent)),
    Given((*LENGTHS, HeaderNotSent), (HeaderNotUtf8,)),
    Given((*LENGTHS, HeaderNotSent, HeaderNotUtf8), JSON_CHECKS),
    Each(
        attrgetter("filename.faulty"),
        ENTRY_CHECKS,
        premises=UNREAD,
    ),
    Given(UNREAD, (MetadataIncompleteBuffer, TensorRepeated)),
)

OPERATIONS = (
    Operation(
        name="safetensors_file",
        title="safetensors file",
        summary="Open a safetensors file by its first bytes: its header, and whether its data is all there",
        call=SafetensorsCall,
        stages=STAGES,
        valid=VALID,
        fit=fit,
        fill=fill,
        outputs=(),
        source=SOURCE,
        module="safetensors",
        function="safe_open",
    ),
)
