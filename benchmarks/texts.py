"""What people paste of a message: rendered with plausible values, then wrapped, cut, coloured, mistyped."""

from __future__ import annotations

import json
import random
import re
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from catalog.match.model import Entry, Site
from kernels.message import Hole

VALUES: Final[Mapping[str, tuple[object, ...]]] = {
    "dtype": ("torch.bfloat16", "torch.float8_e4m3fn", "float16", "torch.int8"),
    "shape": ("(16, 7168)", "torch.Size([4096, 128])", "[1, 3, 224]", "(1,)"),
    "int": (448, 7, 4096, 1, 131072),
    "float": (0.5, 9.0, 0.88, 1e-05),
    "bool": (True, False),
    "device": ("cuda:0", "cpu", "cuda"),
    "path": ("/models/a/model.safetensors", "/root/.cache/x/config.json"),
    "name": ("model.layers.3.mlp.down_proj", "blocks.3.ffn", "q_proj"),
    "text": ("['blocks.0.weight']", "fp8", "unsupported", "{'a': 1}", "3", "Qwen3ForCausalLM", "None"),
}
WORDS: Final = (
    "wrong",
    "buffer",
    "mapping",
    "given",
    "already",
    "process",
    "ordered",
    "between",
    "final",
    "object",
)
_WORD: Final = re.compile(r"[A-Za-z]{4,}")


@dataclass(frozen=True)
class Sample:
    """One message of one record as it was raised; `values` as its holes printed them."""

    entry: Entry
    message: str
    values: tuple[str, ...]

    @property
    def site(self) -> Site:
        return self.entry.sites[0]

    @property
    def raised(self) -> str:
        """The last line of a traceback; what is only logged has no class."""
        if self.entry.logged:
            return self.message
        name = self.site.exception.rpartition(".")[2]
        return f"{name if name.isidentifier() else 'RuntimeError'}: {self.message}"

    @property
    def words(self) -> list[tuple[int, int]]:
        """Places of the template's own words in the message."""
        spans, at = [], 0
        for segment, value in zip(self.entry.template.segments, (*self.values, ""), strict=True):
            spans += [(at + word.start(), at + word.end()) for word in _WORD.finditer(segment)]
            at += len(segment) + len(value)
        return spans


def sample(entry: Entry, chance: random.Random) -> Sample:
    """The entry's message with values drawn for its holes."""
    first, *rest = entry.template.segments
    holes = zip(entry.template.holes, entry.hole_kinds, strict=True)
    values = tuple(_printed(hole, chance.choice(VALUES[kind])) for hole, kind in holes)
    message = first + "".join(value + literal for value, literal in zip(values, rest, strict=True))
    return Sample(entry, message, values)


def _printed(hole: Hole, value: object) -> str:
    try:
        return hole.fill(value)
    except (TypeError, ValueError):  # a format that only another type has
        return str(value)


Form = Callable[[Sample, random.Random], str | None]


def _traceback(drawn: Sample, chance: random.Random) -> str:
    path = drawn.site.path.removeprefix("python/")
    line = max(1, (drawn.site.lines or (10,))[0] + chance.choice((0, 0, 3, -2, 40)))
    function = drawn.site.function or "f"
    return (
        "Traceback (most recent call last):\n"
        '  File "/app/serve.py", line 10, in <module>\n    main()\n'
        f'  File "/usr/lib/python3/site-packages/{path}", line {line}, in {function}\n'
        f"    raise error\n{drawn.raised}"
    )


def _prefixed(drawn: Sample, chance: random.Random) -> str:
    before = chance.choice(
        (
            "[2026-05-22 09:14:03 TP2] ",
            "(WorkerDict pid=859188, ip=10.0.0.1) ",
            "[rank3]: ",
            "sglang-1  | ",
            "(Worker_TP0 pid=12) ERROR 08-19 13:12:57 [core.py:708] ",
            "E   ",
        )
    )
    return before + drawn.raised


def _wrapped(drawn: Sample, chance: random.Random) -> str:
    width = chance.choice((60, 72, 80))
    if chance.random() < 0.5:
        return textwrap.fill(drawn.raised, width)
    return "\n".join(drawn.raised[at : at + width] for at in range(0, len(drawn.raised), width))


def cut(size: int) -> Form:
    """The first characters of a message, as a title has them; all of a shorter one."""
    return lambda drawn, _: drawn.message[:size]


def _word_changed(drawn: Sample, chance: random.Random) -> str | None:
    if not drawn.words:
        return None
    start, end = chance.choice(drawn.words)
    return f"{drawn.message[:start]}{chance.choice(WORDS)}{drawn.message[end:]}"


def _typos(drawn: Sample, chance: random.Random) -> str:
    letters = list(drawn.message)
    for _ in range(2):
        at = chance.randrange(len(letters))
        kind = chance.randrange(3)
        if kind == 0:
            del letters[at]
        elif kind == 1:
            letters.insert(at, letters[at])
        else:
            letters[at - 1 : at + 1] = reversed(letters[at - 1 : at + 1])
    return "".join(letters)


def _start_lost(drawn: Sample, chance: random.Random) -> str:
    return drawn.message[int(len(drawn.message) * chance.uniform(0.2, 0.5)) :]


def _coloured(drawn: Sample, _: random.Random) -> str:
    coloured = drawn.raised.replace(": ", ":\x1b[0m ", 1)
    return f"\x1b[1;31m{coloured}\x1b[0m"


FORMS: Final[Mapping[str, Form]] = {
    "as raised": lambda drawn, _: drawn.raised,
    "prefixed": _prefixed,
    "coloured": _coloured,
    "JSON-escaped": lambda drawn, _: json.dumps({"level": "error", "msg": drawn.raised, "rank": 3}),
    "wrapped": _wrapped,
    "traceback": _traceback,
    "cut to 60": cut(60),
    "cut to 40": cut(40),
    "word changed": _word_changed,
    "typos": _typos,
    "start lost": _start_lost,
}
