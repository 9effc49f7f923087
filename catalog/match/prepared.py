"""Templates prepared for matching: anchors chosen, 5-grams posted, all in flat arrays.

Choosing is the slow step, so that it is done once, when a snapshot is written; the arrays are stored as they
are and read back without a loop. Everything is in the key domain, which has no NUL: a group's key is its
segments, each followed by one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from catalog.template import Template, key_of

ANCHOR: Final = 24
"""Longest anchor; longer ones find nothing more and cost memory."""
SHORTEST: Final = 8
"""A shorter literal is in every log; a template without a longer one is only tried on whole messages."""
RARE: Final = 6
"""Length of the windows whose rarity decides."""
GRAM: Final = 5
"""Length of the grams by which texts are compared."""
LONGEST: Final = 600
"""Characters of one literal, and of a message, that are compared by grams."""
COMMON: Final = 0.03
"""A gram in a larger share of the templates tells nothing apart."""
KEPT: Final = 24
"""A gram in no more templates than this is never too common."""
FORMAT: Final = 1
"""Changes whenever arrays of an older build would be read wrongly."""

Numbers = NDArray[Any]


@dataclass(frozen=True, eq=False)
class Prepared:
    """The groups of templates that are equal in the key domain.

    keys           the groups' keys, one after another; group g's from key_start[g] to key_start[g + 1]
    digest         64-bit digest per group, equal for equal keys
    member_start, member   the entries of each group
    rare_*, head_* anchors: where each stands in `keys`, how long it is, its group, segment, offset there
    gram           sorted 5-grams; posted[gram_start[i]:gram_start[i + 1]] are the groups that have gram i
    total, grams   per group: sum of its grams' weights, and their number
    """

    keys: bytes
    key_start: Numbers
    digest: Numbers
    member_start: Numbers
    member: Numbers
    rare_at: Numbers
    rare_size: Numbers
    rare_group: Numbers
    rare_segment: Numbers
    rare_offset: Numbers
    head_at: Numbers
    head_size: Numbers
    head_group: Numbers
    head_segment: Numbers
    gram: Numbers
    gram_start: Numbers
    posted: Numbers
    total: Numbers
    grams: Numbers

    def __len__(self) -> int:
        return len(self.digest)

    def key(self, group: int) -> bytes:
        """The segments of a group, each with a NUL behind it."""
        return self.keys[int(self.key_start[group]) : int(self.key_start[group + 1])]

    def entries(self, group: int) -> list[int]:
        """The numbers of the entries that have its text."""
        return list(map(int, self.member[self.member_start[group] : self.member_start[group + 1]]))

    def arrays(self) -> dict[str, bytes]:
        """Name → little-endian content."""
        return {
            field.name: value if isinstance(value := getattr(self, field.name), bytes) else value.tobytes()
            for field in fields(self)
        }

    @classmethod
    def read(cls, arrays: Mapping[str, bytes]) -> Prepared:
        """What `arrays` gave; KeyError for a missing one, ValueError where one points outside another."""
        known = cls(
            keys=bytes(arrays["keys"]),
            **{name: np.frombuffer(arrays[name], dtype) for name, dtype in _TYPES.items()},
        )
        wrong = next((name for name, right in known._laws() if not right), None)
        if wrong is not None:
            raise ValueError(f"`{wrong}` is inconsistent")
        return known

    def _laws(self) -> Iterator[tuple[str, bool]]:
        """What holds of arrays that `prepare` made: by name, whether it does."""
        groups = len(self)
        ends = np.flatnonzero(np.frombuffer(self.keys, np.uint8) == 0) + 1
        yield "key_start", _covers(self.key_start, groups, len(self.keys))
        # Every key ends with the NUL of its last segment.
        last = np.searchsorted(ends, self.key_start[1:])
        yield "keys", not groups or bool(np.array_equal(np.take(ends, last, mode="clip"), self.key_start[1:]))
        yield "member_start", _covers(self.member_start, groups, len(self.member))
        segments = np.diff(last, prepend=-1)
        for kind in ("rare", "head"):
            at, size, group, segment = (
                getattr(self, f"{kind}_{name}").astype(np.int64)
                for name in ("at", "size", "group", "segment")
            )
            yield kind, len({len(at), len(size), len(group), len(segment)}) == 1
            yield kind, bool((size > 0).all() and (at + size <= len(self.keys)).all())
            yield kind, bool((group < groups).all() and (segment < segments[group]).all())
        yield "rare_offset", len(self.rare_offset) == len(self.rare_at)
        yield "gram_start", _covers(self.gram_start, len(self.gram), len(self.posted))
        yield "posted", not len(self.posted) or int(self.posted.max()) < groups
        yield "total", len(self.total) == len(self.grams) == groups


def _covers(starts: Numbers, count: int, size: int) -> bool:
    """Whether `starts` cuts `size` things into `count` runs, one after another."""
    if len(starts) != count + 1 or starts[0] != 0 or starts[-1] != size:
        return False
    return bool((starts[1:] >= starts[:-1]).all())


_TYPES: Final = {
    "key_start": "<u4",
    "digest": "<u8",
    "member_start": "<u4",
    "member": "<u4",
    "rare_at": "<u4",
    "rare_size": "u1",
    "rare_group": "<u4",
    "rare_segment": "<u2",
    "rare_offset": "<u4",
    "head_at": "<u4",
    "head_size": "u1",
    "head_group": "<u4",
    "head_segment": "<u2",
    "gram": "<u8",
    "gram_start": "<u4",
    "posted": "<u4",
    "total": "<f4",
    "grams": "<u2",
}


def template_key(template: Template) -> bytes:
    """A template's segments in the key domain, each with a NUL behind it."""
    keys = [key_of(segment) for segment in template.segments]
    # A full stop at the end is often lost; nothing depends on it.
    keys[-1] = keys[-1].rstrip(b".")
    return b"\x00".join(keys) + b"\x00"


def prepare(templates: Iterable[tuple[int, Template]]) -> Prepared:
    """Prepare numbered templates; one without a literal character is in no group."""
    groups: dict[bytes, list[int]] = {}
    for number, template in templates:
        whole = template_key(template)
        if whole.strip(b"\x00"):
            groups.setdefault(whole, []).append(number)
    keys = b"".join(groups)
    starts = _ends(map(len, groups))
    text = np.frombuffer(keys, np.uint8)
    owner = np.repeat(np.arange(len(groups), dtype=np.uint32), np.diff(starts))
    arrays: dict[str, Numbers] = {
        "key_start": starts,
        "digest": np.fromiter(map(_digest, groups), np.uint64, len(groups)),
        "member_start": _ends(map(len, groups.values())),
        "member": np.fromiter((number for numbers in groups.values() for number in numbers), np.uint32),
        **_anchors(text, owner, starts),
        **_grams(text, owner, len(groups)),
    }
    return Prepared(keys, **{name: arrays[name].astype(dtype) for name, dtype in _TYPES.items()})


def _digest(key: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(key, digest_size=8).digest(), "little")


def _ends(sizes: Iterable[int]) -> Numbers:
    return np.concatenate([[0], np.cumsum(np.fromiter(sizes, np.int64))])


def codes(text: Numbers, size: int) -> Numbers:
    """Each window of `size` bytes as one number."""
    count = max(0, len(text) - size + 1)
    code = np.zeros(count, np.uint64)
    for at in range(size):
        code = (code << np.uint64(8)) | text[at : at + count].astype(np.uint64)
    return code


def _windows(text: Numbers, size: int) -> tuple[Numbers, Numbers]:
    """Code of each window, and whether it lies in one segment."""
    code = codes(text, size)
    ends = np.concatenate([[0], np.cumsum(text == 0)])
    return code, ends[size : size + len(code)] == ends[: len(code)]


def _anchors(text: Numbers, owner: Numbers, starts: Numbers) -> dict[str, Numbers]:
    """The rarest window of each group, and the beginning of its first long literal."""
    code, inside = _windows(text, RARE)
    ends = np.flatnonzero(text == 0)
    segment = np.concatenate([[0], np.cumsum(text == 0)])[: len(text)]
    begins = np.concatenate([[0], ends[:-1] + 1]) if len(ends) else ends
    sizes = ends - begins
    at = np.flatnonzero(inside & (sizes[segment[: len(code)]] >= SHORTEST))
    # How many groups have each window.
    order = np.lexsort((owner[at], code[at]))
    by_code, by_owner = code[at][order], owner[at][order]
    new_code = _changes(by_code)
    first = new_code | _changes(by_owner)
    run = np.cumsum(new_code) - 1
    frequency = np.empty(len(at), np.uint64)
    frequency[order] = np.bincount(run, weights=first).astype(np.uint64)[run]
    # The first of the rarest windows of each group.
    of_group = np.flatnonzero(_changes(owner[at]))
    ranked = (frequency << np.uint64(32)) | at.astype(np.uint64)
    best = np.minimum.reduceat(ranked, of_group) if len(at) else ranked
    rare = (best & np.uint64(0xFFFFFFFF)).astype(np.int64)
    group = owner[rare]
    begin, size = begins[segment[rare]], sizes[segment[rare]]
    offset = np.clip(np.minimum(rare - begin - (ANCHOR - RARE) // 2, size - ANCHOR), 0, None)
    head = segment[at[of_group]]
    first_segment = segment[starts[:-1]] if len(starts) > 1 else starts[:0]
    return {
        "rare_at": begin + offset,
        "rare_size": np.minimum(ANCHOR, size - offset),
        "rare_group": group,
        "rare_segment": segment[rare] - first_segment[group],
        "rare_offset": offset,
        "head_at": begins[head],
        "head_size": np.minimum(ANCHOR, sizes[head]),
        "head_group": group,
        "head_segment": head - first_segment[group],
    }


def _grams(text: Numbers, owner: Numbers, groups: int) -> dict[str, Numbers]:
    code, inside = _windows(text, GRAM)
    at = np.flatnonzero(inside)
    pairs = np.lexsort((owner[at], code[at]))
    by_code, by_owner = code[at][pairs], owner[at][pairs]
    keep = _changes(by_code) | _changes(by_owner)
    by_code, by_owner = by_code[keep], by_owner[keep]
    begin = np.flatnonzero(_changes(by_code))
    count = np.diff(np.append(begin, len(by_code)))
    wanted = count <= max(KEPT, COMMON * groups)
    posted = by_owner[np.repeat(wanted, count)]
    count = count[wanted]
    weight = np.repeat(np.log1p(groups / count), count)
    return {
        "gram": by_code[begin][wanted],
        "gram_start": np.concatenate([[0], np.cumsum(count)]),
        "posted": posted,
        "total": np.bincount(posted, weights=weight, minlength=groups),
        "grams": np.minimum(np.bincount(posted, minlength=groups), 65535),
    }


def _changes(values: Numbers) -> Numbers:
    """Where a value differs from the one before it; the first always does."""
    changed = np.ones(len(values), bool)
    changed[1:] = values[1:] != values[:-1]
    return changed
