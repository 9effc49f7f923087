"""Cleaning keeps every character in its place and blanks what is not the message."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from catalog.match.clean import PIECE, SMALL, Chunk, Pasted, clean, key, without_prefixes


def _whole(text: str | bytes) -> Pasted:
    return Pasted(text, lambda _: True)


def _shown(text: str | bytes) -> str:
    pasted = _whole(text)
    return pasted.shown(0, len(pasted.text))


@pytest.mark.parametrize(
    ("line", "rest"),
    [
        ("(WorkerDict pid=859188) msg", " msg"),
        ("(RayTrainWorker pid=8, ip=10.0.0.1) msg", " msg"),
        ("(EngineCore_0 pid=1179302) ERROR 08-19 13:12:57 [core.py:708] msg", " msg"),
        ("[pod/worker-0/main] 2026-12-02T09:14:05.123456789Z [rank1]: msg", " msg"),
        ("2026-12-02T09:14:05.123456789Z stderr F msg", " msg"),
        ("2026-12-02T09:14:05+0000 node8 serve[12]: msg", " msg"),
        ("2026/12/02 09:14:05 msg", " msg"),
        ("[12/02/26 09:14:05] ERROR    msg", "    msg"),
        ("[rank3]:[E1202 09:14:05.123 ProcessGroupNCCL.cpp:616] [Rank 3] msg", " msg"),
        ("node1:12:99 [3] NCCL WARN msg", " NCCL WARN msg"),
        ("[2026-05-22 09:14:03 DP0 TP2 EP2] msg", " msg"),
        ("[2025-07-30T20:52:36Z] msg", " msg"),
        ("2026-01-01 00:00:00,123 - sglang.srt - ERROR - msg", " msg"),
        ("2026-01-01 00:00:00.123 | ERROR    | sglang.x:foo:12 - msg", " msg"),
        ("ERROR:sglang.srt:msg", "msg"),
        ("ERROR 02-22 00:01:41 engine.py:400] msg", " msg"),
        ("E0522 09:14:03.123456 1234 file.cc:12] msg", " msg"),
        ("Dec  2 00:38:51 host serve[123]: msg", " msg"),
        ("web-1  | [rank3]: msg", " msg"),
        ("[1,0]<stderr>: msg", " msg"),
        ("[prterun-node1-77@1,2]<stderr>: msg", " msg"),
        ("[trainer0]: msg", " msg"),
        ("3: msg", " msg"),
        ("10.0.0.2: msg", " msg"),
        ("  | msg", " msg"),
        ("E       msg", "       msg"),
        ("> > msg", "msg"),
        ("\x1b[31mERROR\x1b[0m 02-22 00:01:41 \x1b[1mmsg", " msg"),
        # no prefixes
        ("- Root cause: msg", "- Root cause: msg"),
        ("ValueError: msg", "ValueError: msg"),
        ("Error in step 3: msg", "Error in step 3: msg"),
        ('  File "a.py", line 3, in f', '  File "a.py", line 3, in f'),
    ],
)
def test_line_prefixes(line: str, rest: str) -> None:
    assert _shown(f"{line}\n{line}") == f"{rest}\n{rest}"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (r'x={"msg":"a \"q\" x\ny\tz\u0027 \/"}', 'x={"msg":"a "q" x\ny\tz\' /"}'),
        (r'"{\"m\": \"a \\\"q\\\" b\\nc\"}"', '"{"m": "a "q" b\nc"}"'),
        (r'File "C:\new\test.py", line 3', r'File "C:\new\test.py", line 3'),
        (r"Traceback (last):\n  File:\ta", "Traceback (last):\n  File:\ta"),
        ("&quot;a&#39;&lt;b&gt;&amp;&#x27;", "\"a'<b>&'"),
        ("a\r\nb\rc", "a\nb\nc"),
        ("?title=a%20%28b%29%3A%0Ac", "?title=a (b):\nc"),
        ("100%2 of 5%20x", "100%2 of 5 x"),
        ("60%28", "60%28"),
        (r"\u001b[31mred\x1b[0m \033[1mx^[[0m", "red x"),
        ("\x1b]0;title\x07x\x1b(", "x\x1b("),
        ("é ✓ 😀\x00\x1b[0m", "é ✓ 😀"),
        (b"\xffx\xfe\x00", "\ufffdx\ufffd"),
        ("R\x00u\x00n\x00", "Run"),
    ],
)
def test_escapes_and_colours(text: str | bytes, shown: str) -> None:
    assert _shown(text) == shown


@given(st.text(st.sampled_from("ab\\\"'nru0027&#39;quot[31m\x1b\r\n\x00é✓😀:ERROR -|>"), max_size=80))
def test_every_step_keeps_the_length(text: str) -> None:
    data = clean(text)
    assert len(data) == len(text)
    blanked = without_prefixes(data)
    assert len(blanked) == len(text)
    assert all(after in (before, 0) for before, after in zip(data, blanked, strict=True))


@given(st.text(st.sampled_from("aB \n'?\x00é"), max_size=1500), st.data())
def test_a_key_knows_where_its_characters_are(text: str, data: st.DataObject) -> None:
    raw = clean(text)
    start = data.draw(st.integers(0, len(raw)))
    chunk = Chunk(raw, start, len(raw))
    assert chunk.key == key(raw[start:])
    offsets = [chunk.offset(at) for at in range(len(chunk.key))]
    assert offsets == sorted(set(offsets))
    assert bytes(raw[offset] for offset in offsets).lower() == chunk.key
    assert [chunk.key_index(offset) for offset in offsets] == list(range(len(chunk.key)))


@pytest.mark.parametrize("line", ["an ordinary line of a log\n", "x" * 5000 + "\n", "x"])
def test_of_a_long_text_only_promising_pieces_are_examined(line: str) -> None:
    text = line * (3 * SMALL // len(line))
    place = len(text) // 2
    text = f"{text[:place]}HERE{text[place:]}"
    pasted = Pasted(text, lambda data: b"HERE" in data)
    assert any(begin <= place and place + 4 <= stop for begin, stop in pasted.regions)
    assert sum(stop - begin for begin, stop in pasted.regions) < 6 * PIECE
    assert len(pasted.data) == len(text)
    owners = [chunk for chunk, until in pasted.chunks() if chunk.start <= place < until]
    assert len(owners) == 1
    assert b"here" in owners[0].key


@settings(deadline=None)
@given(st.integers(1, 4000), st.integers(0, 6))
def test_every_place_belongs_to_one_chunk(width: int, lines: int) -> None:
    text = ("y" * width + "\n") * (lines * 400)
    pasted = _whole(text)
    at = 0
    for chunk, until in pasted.chunks():
        assert chunk.start == at
        at = until
    assert at == len(text)


@pytest.mark.parametrize(
    ("text", "quote"),
    [
        ('"a HERE', b'"'),
        ('"a" HERE', b""),
        ("can't HERE", b""),
        ("say 'x HERE", b"'"),
        (r'{"a": "b \"c HERE', b'\x01"'),
        (r'{"a": "b \"c\" HERE', b'"'),
        ('"a\nHERE', b""),
        (r'"a\nHERE', b'"'),
        ("`code HERE", b"`"),
        ("b'text HERE", b"'"),
        ("“text HERE", b'"'),
        ("'a', \"A('HERE", b"'"),
        ("\"it's 'HERE", b"'"),
        ("\"a 'b'HERE", b'"'),
    ],
)
def test_the_quote_a_place_stands_in(text: str, quote: bytes) -> None:
    assert _whole(text).open_quote(text.index("HERE")) == quote


# -- lines that change places, and wrappers


def test_lines_of_workers_that_alternate_are_put_together() -> None:
    text = "start\n[rank0]: a\n[rank1]: x\n[rank0]: b\n  more\n[rank1]: y\nend"
    assert _whole(text).shown(0, 5) == "start"
    text = text.replace("end", 'end  File "x"')
    pasted = _whole(text)
    shown = pasted.shown(0, len(text))
    assert [line.strip() for line in shown.split("\n")] == [
        *("start", "a", "b", "more", "x", "y"),
        'end  File "x"',
    ]
    for word, line in (("start", 1), ("b", 4), ("more", 5), ("x", 3), ("y", 6), ("end", 7)):
        at = pasted.data.index(word.encode(), 5 if word != "start" else 0)
        assert pasted.line_of(at) == line
        begin, end = pasted.span(at, at + len(word))
        assert text[begin:end] == word


@given(
    st.lists(
        st.sampled_from(["[rank0]: a", "[rank1]: b", "(W pid=3) é✓", "", "plain", "[rank0]: "]), max_size=12
    ),
    st.booleans(),
)
def test_every_character_keeps_its_place_as_pasted(lines: list[str], ended: bool) -> None:
    text = "Traceback (most recent call last):\n" + "\n".join(lines) + "\n" * ended
    pasted = _whole(text)
    assert len(pasted.text) == len(pasted.data) == len(text)
    for at, char in enumerate(pasted.text):
        if char != "\n":
            assert text[pasted.place(at)] == char
            assert pasted.line_of(at) == text.count("\n", 0, pasted.place(at)) + 1


@pytest.mark.parametrize(
    ("line", "messages"),
    [
        (r'{"log":"  msg \"q\"\n","stream":"stderr","time":"2026-12-02T09:14:05Z"}', ['  msg "q"']),
        (r'{"level":"error","rank":3,"msg":"a\tb"}', ["a\tb"]),
        (r'{"message":"a","exc_info":"b\nc"}', ["a", "b", "c"]),
        (
            r'{"message":{"message":"E: a","extraInfo":{"py_callstack":"T\nE: a\n","timestamp":"1"}}}',
            ["T", "E: a"],
        ),
    ],
)
def test_of_an_object_only_its_messages_are_left(line: str, messages: list[str]) -> None:
    shown = _shown(f"{line}\n{line}")
    assert [part for part in shown.split("\n") if part] == messages * 2


def test_an_object_without_a_message_stays() -> None:
    assert _shown('{"a": 1, "b": "c"}') == '{"a": 1, "b": "c"}'
