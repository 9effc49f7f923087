"""Folders of logs: what is read of them, what is left out and said, and equal errors as one."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import os
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest

from app.lookup import folder
from app.lookup.folder import Log, Skipped, log, logs, source_of
from app.lookup.origins import origins, place, ranges
from app.lookup.service import match_logs, match_text
from catalog.match.gathering import Source
from tests.app.test_cli import faultbook

ERROR = "ValueError: Unsupported output_s dtype torch.uint8"
OTHER = "RuntimeError: kv_scales must be fp32, got torch.bfloat16"
RECORD, OTHER_RECORD = "d88716b07b0cf3b3", "3018da578aab5d5a"
STACK = f'Traceback (most recent call last):\n  File "/x/a.py", line 3, in f\n    g()\n{ERROR}\n'
Write = Callable[[str, str | bytes], Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def written(name: str, content: str | bytes) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    return written


def _elastic(error: str, second: int) -> str:
    inside = {"py_callstack": f"Traceback (most recent call last):\n{error}\n", "timestamp": str(second)}
    return json.dumps({"message": {"message": error, "extraInfo": inside}})


def _answer(path: Path) -> dict[str, Any]:
    return match_logs(logs(path))


def _skipped(path: Path) -> dict[str, str]:
    return {item.file: item.reason for item in logs(path) if isinstance(item, Skipped)}


# -- whose a log is


@pytest.mark.parametrize(
    ("name", "rank", "host"),
    [
        ("rank_0/stdout.log", 0, None),
        ("node1/rank_3/stdout.log", 3, "node1"),
        ("none_ab12/attempt_0/3/stderr.log", 3, None),
        ("1/rank.3/stdout", 3, None),
        ("log_rank_12.txt", 12, None),
        ("node0_rank3.log", 3, "node0"),
        ("tp1.log.2.gz", 1, None),
        ("worker-3.log", None, "worker-3"),
        ("default_web-0_0123456789abcdef0123456789abcdef/main/0.log", None, "web-0"),
        ("server.log", None, None),
        ("train.log", None, None),
        ("slurm-12.out", None, None),
    ],
)
def test_a_name_tells_rank_and_host(name: str, rank: int | None, host: str | None) -> None:
    found = source_of(name)
    assert (found.rank, found.host) == (rank, host)


def test_torchrun_s_folders_are_one_failure(tmp_path: Path, write: Write) -> None:
    for rank in (0, 1):
        write(f"none_x/attempt_0/{rank}/stderr.log", f"2026-12-02 09:14:0{7 - rank} start\n{STACK}")
        write(f"none_x/attempt_0/{rank}/error.json", _elastic(ERROR, 1796202850))
    answer = _answer(tmp_path)
    [found] = answer["matches"]
    assert (found["id"], found["count"], found["ranks"]) == (RECORD, 2, [0, 1])
    assert (found["file"], found["line"]) == ("none_x/attempt_0/1/stderr.log", 5)
    assert sorted(found["files"]) == [
        f"none_x/attempt_0/{rank}/{name}" for rank in (0, 1) for name in ("error.json", "stderr.log")
    ]
    assert (answer["rootCause"], answer["logs"], answer["skipped"], answer["notice"]) == (0, 4, [], None)
    assert answer["unmatched"] == []


def _tagged(text: str, rank: int) -> str:
    return "".join(f"[rank{rank}]: {line}\n" for line in text.splitlines())


def test_a_log_of_all_ranks_says_again_what_theirs_say(tmp_path: Path, write: Write) -> None:
    said = [f"2026-12-02 09:14:0{rank},123 INFO start\n{STACK}" for rank in range(3)]
    for rank, text in enumerate(said):
        write(f"rank_{rank}.log", text)
    write("combined.log", "".join(_tagged(text, rank) for rank, text in enumerate(said)))
    [found] = _answer(tmp_path)["matches"]
    assert (found["count"], found["ranks"], len(found["files"])) == (3, [0, 1, 2], 4)


@pytest.mark.parametrize(
    ("head", "what"),
    [
        ("2026-12-02 07:00:00,123 INFO start", "an earlier start"),
        ("[pod/node2/main] start", "another host"),
    ],
)
def test_a_log_of_another_run_counts(tmp_path: Path, write: Write, head: str, what: str) -> None:
    write("node1/rank_0.log", f"2026-12-02 09:14:00,123 INFO start\n{STACK}")
    prefix = head.partition(" start")[0] + " " if head.startswith("[pod") else ""
    write("combined.log", "".join(f"{prefix}[rank0]: {line}\n" for line in f"{head}\n{STACK}".splitlines()))
    [found] = _answer(tmp_path)["matches"]
    assert found["count"] == 2, what


def test_ranks_that_only_the_common_log_has_are_counted(tmp_path: Path, write: Write) -> None:
    write("rank_0.log", STACK)
    write("combined.log", "".join(_tagged(STACK, rank) for rank in range(4)))
    [found] = _answer(tmp_path)["matches"]
    assert (found["count"], found["ranks"]) == (4, [0, 1, 2, 3])


def test_error_files_alone_count(tmp_path: Path, write: Write) -> None:
    for rank in (0, 1, 2):
        write(f"x/attempt_0/{rank}/error.json", _elastic(ERROR, 1796202850 - rank))
    [found] = _answer(tmp_path)["matches"]
    assert (found["count"], found["ranks"], found["firstSeen"]) == (3, [0, 1, 2], "2026-12-02T09:14:08Z")
    assert found["file"] == "x/attempt_0/2/error.json"


def test_the_earliest_of_several_files_is_the_cause(tmp_path: Path, write: Write) -> None:
    write("rank_0.log", f"2026-12-02 09:14:09 {ERROR}\n")
    write("rank_1.log", f"2026-12-02 09:14:03 {OTHER}\n")
    write(
        "rank_2.log",
        "[rank2]:[E1202 09:24:03.1 P.cpp:1] RuntimeError: NCCL communicator was aborted on rank 2.",
    )
    answer = _answer(tmp_path)
    assert answer["matches"][answer["rootCause"]]["id"] == OTHER_RECORD
    assert [(missed["role"], missed["ranks"]) for missed in answer["unmatched"]] == [("secondary", [2])]


def test_without_times_the_first_file_s_is_the_cause(tmp_path: Path, write: Write) -> None:
    write("rank_10.log", OTHER)
    write("rank_9.log", ERROR)
    answer = _answer(tmp_path)
    assert answer["matches"][answer["rootCause"]]["ranks"] == [9]


def test_a_rank_s_own_number_makes_no_other_error() -> None:
    texts = [f"AssertionError: shape mismatch on cuda:{rank}" for rank in (0, 1)]
    found = [Log(Source(f"rank_{rank}.log", rank=rank), text.encode()) for rank, text in enumerate(texts)]
    answer = match_logs(found)
    assert [(missed["ranks"], missed["count"]) for missed in answer["unmatched"]] == [([0, 1], 2)]
    answer = match_text("\n".join(f"[rank{rank}]: {text}" for rank, text in enumerate(texts)))
    assert [(missed["ranks"], missed["count"]) for missed in answer["unmatched"]] == [([0, 1], 2)]
    other = match_text("\n".join(f"[rank{1 - rank}]: {text}" for rank, text in enumerate(texts)))
    assert len(other["unmatched"]) == 2


def test_twenty_ranks_with_their_own_numbers_are_one_match() -> None:
    lines = [
        f"[rank{rank}]: RuntimeError: Tensor match failed for Tensor<5>[strides=<1>, dtype=int32, "
        f"device=cuda:{rank}] at /x/per_token_group_quant.cuh:488\n[rank{rank}]: - Root cause: "
        "Tensor dimension mismatch: expected 2 but got 1"
        for rank in range(20)
    ]
    answer = match_text("\n".join(lines))
    assert [(found["count"], found["ranks"]) for found in answer["matches"]] == [(20, list(range(20)))]
    assert answer["truncated"] is False


def test_only_what_follows_from_another_failure_is_said_to_be_so(tmp_path: Path, write: Write) -> None:
    write(
        "rank_0.log", "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \ntrain.py FAILED"
    )
    answer = _answer(tmp_path)
    assert answer["hasMatch"] is False
    assert "another rank or process failed first" in answer["notice"]


# -- what is not read


def test_links_pipes_and_what_is_no_text_are_named(tmp_path: Path, write: Write) -> None:
    outside = write("outside/secret.log", ERROR)
    inside = tmp_path / "logs"
    inside.mkdir()
    (inside / "link.log").symlink_to(outside)
    (inside / "folder").symlink_to(outside.parent)
    os.mkfifo(inside / "pipe.log")
    write("logs/weights.bin", b"\x00\x01\x02" * 9)
    write("logs/old.log.gz", b"\x1f\x8bno")
    assert _skipped(inside).keys() == {"link.log", "folder", "pipe.log", "weights.bin", "old.log.gz"}
    answer = _answer(inside)
    assert (answer["hasMatch"], answer["logs"], len(answer["skipped"])) == (False, 0, 5)


def test_what_may_not_be_read_is_named(tmp_path: Path, write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    write("a.log", ERROR)
    write("b.log", OTHER)
    opened = os.open

    def refusing(path: Any, *arguments: Any, **named: Any) -> int:
        if str(path).endswith("a.log"):
            raise PermissionError(13, "Permission denied", path)
        return opened(path, *arguments, **named)

    monkeypatch.setattr(os, "open", refusing)
    answer = _answer(tmp_path)
    assert answer["skipped"] == [{"file": "a.log", "reason": "Permission denied"}]
    assert [found["id"] for found in answer["matches"]] == [OTHER_RECORD]


@pytest.mark.parametrize(
    ("bound", "value", "named"),
    [("FILES", 1, "b.log"), ("ENTRIES", 1, "b.log"), ("TOTAL", 10, "b.log"), ("DEPTH", 0, "in")],
)
def test_every_bound_says_what_it_left_out(
    tmp_path: Path, write: Write, monkeypatch: pytest.MonkeyPatch, bound: str, value: int, named: str
) -> None:
    for name in ("a.log", "b.log", "in/c.log"):
        write(name, ERROR)
    monkeypatch.setattr(folder, bound, value)
    monkeypatch.setattr(folder, "_Left", _left(value, bound))
    found = list(folder._inside(tmp_path, "", value if bound == "DEPTH" else 8, folder._Left()))
    assert named in {item.file for item in found if isinstance(item, Skipped)}
    assert len([item for item in found if isinstance(item, Log)]) < 3


def _left(value: int, bound: str) -> Callable[[], Any]:
    names = {"FILES": "files", "ENTRIES": "entries", "TOTAL": "bytes"}
    made = folder._Left
    return lambda: made(**{names[bound]: value}) if bound in names else made()


def test_of_a_long_file_the_beginning_and_the_end_are_read(
    tmp_path: Path, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folder, "HEAD", 1000)
    monkeypatch.setattr(folder, "TAIL", 2000)
    filler = "an ordinary line\n" * 1000
    write("rank_4.log", f"{ERROR}\n{filler}{OTHER}\n")
    answer = _answer(tmp_path)
    places = {found["id"]: (found["line"], found["ranks"]) for found in answer["matches"]}
    assert places == {RECORD: (1, [4]), OTHER_RECORD: (1002, [4])}
    assert [item["file"] for item in answer["skipped"]] == ["rank_4.log"]
    assert answer["logs"] == 2


def test_a_rotated_log_is_unpacked_within_bounds(
    tmp_path: Path, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    write("rank_1.log.1.gz", gzip.compress(ERROR.encode()))
    assert [found["ranks"] for found in _answer(tmp_path)["matches"]] == [[1]]
    monkeypatch.setattr(folder, "HEAD", 1000)
    monkeypatch.setattr(folder, "TAIL", 1000)
    write("bomb.gz", gzip.compress(b"x\n" * (8 << 20)))
    found = [item for item in logs(tmp_path) if isinstance(item, Log) and item.source.name == "bomb.gz"]
    assert [len(item.content) for item in found] == [2000]


def test_a_name_that_a_terminal_would_act_on(tmp_path: Path, write: Write) -> None:
    write("a\x1b[31m\n.log", ERROR)
    [found] = _answer(tmp_path)["matches"]
    assert found["file"] == "a\ufffd[31m\ufffd.log"


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-8-sig"])
def test_encodings_of_windows(tmp_path: Path, write: Write, encoding: str) -> None:
    write("a.log", ERROR.encode(encoding))
    assert [found["id"] for found in _answer(tmp_path)["matches"]] == [RECORD]


def test_of_a_long_file_in_powershell_s_encoding_both_ends_are_read(
    tmp_path: Path, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folder, "HEAD", 1000)
    monkeypatch.setattr(folder, "TAIL", 2000)
    filler = "an ordinary line\n" * 1000
    write("rank_4.log", f"{ERROR}\n{filler}{OTHER}\n".encode("utf-16"))
    places = {found["id"]: found["line"] for found in _answer(tmp_path)["matches"]}
    assert places == {RECORD: 1, OTHER_RECORD: 1002}


@pytest.mark.parametrize("pack", [gzip.compress, bz2.compress], ids=["gzip", "bzip2"])
@pytest.mark.parametrize("name", ["rank_1.log.1.gz", "rank_1.log"])
def test_what_packs_a_log_is_told_by_its_content(
    tmp_path: Path, write: Write, name: str, pack: Callable[[bytes], bytes]
) -> None:
    write(name, pack(f"first\n{ERROR}".encode()))
    [found] = _answer(tmp_path)["matches"]
    assert (found["id"], found["line"], found["ranks"]) == (RECORD, 2, [1])
    [piped] = log(BytesIO(pack(ERROR.encode())), "standard input")
    assert isinstance(piped, Log)
    assert piped.content == ERROR.encode()


@pytest.mark.parametrize("damage", [lambda data: data[:-9], lambda data: data[: len(data) // 2] + b"\0" * 99])
def test_of_a_damaged_packed_log_what_is_whole_is_read(
    tmp_path: Path, write: Write, damage: Callable[[bytes], bytes]
) -> None:
    lines = "".join(f"an ordinary line {number}\n" for number in range(40_000))
    write("a.gz", damage(gzip.compress(f"{ERROR}\n{lines}".encode())))
    answer = _answer(tmp_path)
    assert [found["id"] for found in answer["matches"]] == [RECORD]
    [skipped] = answer["skipped"]
    assert skipped["file"] == "a.gz"
    assert skipped["reason"].startswith("all behind its first ")


def test_what_is_only_called_packed_is_read_as_it_is(tmp_path: Path, write: Write) -> None:
    write("a.gz", ERROR)
    assert [found["id"] for found in _answer(tmp_path)["matches"]] == [RECORD]


@pytest.mark.parametrize(("content", "name"), [(lzma.compress(b"x"), "xz"), (b"\x28\xb5\x2f\xfdx", "zstd")])
def test_another_packing_is_named(content: bytes, name: str) -> None:
    [found] = log(BytesIO(content), "a.log")
    assert found == Skipped("a.log", f"packed by {name}; unpack it first")


def test_one_stream_is_read_whatever_it_holds() -> None:
    [found] = log(BytesIO(b"\x00\xff" + ERROR.encode()), "x")
    assert isinstance(found, Log)
    assert match_text(found.content)["matches"][0]["id"] == RECORD


# -- hosts, and words for them


def test_addresses_are_numbered_not_told() -> None:
    lines = [f"(Worker pid=1, ip=10.0.0.{host}) {ERROR}" for host in (7, 8, 7)]
    answer = match_text("\n".join([*lines, f"(Worker pid=1, ip=10.0.0.8) {OTHER}"]))
    hosts = {found["id"]: found["hosts"] for found in answer["matches"]}
    assert hosts == {RECORD: ["address 1", "address 2"], OTHER_RECORD: ["address 2"]}
    assert "10.0.0" not in json.dumps(answer)


def test_ranks_in_words() -> None:
    assert ranges([0, 1, 2, 5, 7, 8, "DP0 TP1"]) == "0-2, 5, 7-8, DP0 TP1"
    found = {
        "count": 9,
        "ranks": [0, 1],
        "hosts": [f"n{number}" for number in range(10)],
        "files": ["a", "b"],
        "file": "a",
        "line": 3,
        "firstSeen": "09:14:05",
    }
    assert place(found) == "a:3"
    assert list(origins(found)) == [
        "9 times",
        "ranks 0-1",
        "on n0, n1, n2, n3, n4, n5, n6, n7 and 2 more",
        "in 2 files",
        "first 09:14:05",
    ]


# -- the command


def test_the_command_reads_a_folder_and_names_what_it_does_not(tmp_path: Path, write: Write) -> None:
    write("node1/rank_3.log", STACK)
    write("weights.bin", b"\x00" * 9)
    ended = faultbook("match", str(tmp_path))
    assert ended.returncode == 0
    assert "node1/rank_3.log:4, root cause, rank 3, on node1" in ended.stdout
    assert ended.stderr == "faultbook: not read: weights.bin: no text\n"
    answer = json.loads(faultbook("match", "--json", str(tmp_path)).stdout)
    assert (answer["logs"], answer["skipped"]) == (1, [{"file": "weights.bin", "reason": "no text"}])


def test_what_is_only_similar_is_shown_in_the_record_s_own_words() -> None:
    said = "MXFP8 fused prologue needs contiguous interleaved zorgle"
    ended = faultbook("match", text=f"ValueError: {said}")
    assert ended.returncode == 1
    assert ended.stdout.startswith("No record matches this text.")
    found, _, rest = ended.stdout.partition("no record  ")
    assert "MXFP8 fused prologue requires contiguous interleaved SFK/SFV." in found
    assert said not in found
    assert said in rest
