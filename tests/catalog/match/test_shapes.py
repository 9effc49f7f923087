"""Logs as launchers, container runtimes and loggers write them: who said it, where, when, how often."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

import pytest

from catalog.match import Matcher
from catalog.match.causes import ONLY_SECONDARY, is_secondary, notice

ERROR = "ValueError: Unsupported output_s dtype torch.uint8"
OTHER = "RuntimeError: kv_scales must be fp32, got torch.bfloat16"
OUTPUT_S, SCALES = "d88716b07b0cf3b3", "3018da578aab5d5a"
STACK = ("Traceback (most recent call last):", '  File "/x/pkg/a.py", line 3, in f', "    g()")
AT = "2026-12-02T09:14:0{}.123456789Z"


def _stack(error: str = ERROR) -> list[str]:
    return [*STACK, error]


def _interleaved(tags: Sequence[str], *errors: str) -> str:
    stacks = [_stack(error) for error in errors]
    return "\n".join(
        tag + stack[line] for line in range(len(stacks[0])) for tag, stack in zip(tags, stacks, strict=True)
    )


@dataclass(frozen=True)
class Said:
    """What a match tells of its origins."""

    count: int = 1
    ranks: tuple[int | str, ...] = ()
    hosts: tuple[str, ...] = ()
    first_seen: str | None = None


ELASTIC = {
    "message": {
        "message": ERROR,
        "extraInfo": {"py_callstack": "\n".join(_stack()) + "\n", "timestamp": "1796202845"},
    }
}
EPOCH = "2026-12-02T09:14:05Z"
SUMMARY = f"""============================================================
train.py FAILED
------------------------------------------------------------
Failures:
[1]:
  time      : 2026-12-02_09:14:06
  host      : node1
  rank      : 9 (local_rank: 1)
  exitcode  : 1 (pid: 12)
  error_file: /tmp/e/1/error.json
  traceback : Traceback (most recent call last):
    File "/x/a.py", line 3, in f
      g()
  {ERROR}

------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-12-02_09:14:05
  host      : node0
  rank      : 0 (local_rank: 0)
  exitcode  : 1 (pid: 11)
  error_file: /tmp/e/0/error.json
  traceback : Traceback (most recent call last):
    File "/x/a.py", line 3, in f
      g()
  {ERROR}
============================================================
"""


@pytest.mark.parametrize(
    ("text", "said"),
    [
        pytest.param(
            "\n".join(
                json.dumps({"log": f"{line}\n", "stream": "stderr", "time": AT.format(number)})
                for number, line in enumerate(_stack())
            ),
            Said(first_seen=AT.format(3)),
            id="docker",
        ),
        pytest.param(
            "\n".join(f"{AT.format(5)} stderr F {line}" for line in _stack()),
            Said(first_seen=AT.format(5)),
            id="containerd",
        ),
        pytest.param(
            "\n".join(
                f"[pod/w-{rank}/main] {AT.format(rank)} {line}" for rank in (2, 1) for line in _stack()
            ),
            Said(2, (), ("w-2", "w-1"), AT.format(1)),
            id="kubectl",
        ),
        pytest.param(
            _interleaved([f"[pod/w-{n}/main] {AT.format(n)} [rank{n}]: " for n in (2, 1)], ERROR, ERROR),
            Said(2, (1, 2), ("w-2", "w-1"), AT.format(1)),
            id="kubectl, interleaved",
        ),
        pytest.param(json.dumps(ELASTIC), Said(first_seen=EPOCH), id="torchelastic"),
        pytest.param(json.dumps(ELASTIC, indent=2), Said(first_seen=EPOCH), id="torchelastic, printed"),
        pytest.param(f"{json.dumps(ELASTIC)}\n" * 3, Said(3, first_seen=EPOCH), id="several of torchelastic"),
        pytest.param(
            SUMMARY, Said(2, (0, 9), ("node1", "node0"), "2026-12-02_09:14:05"), id="torchrun's end"
        ),
        pytest.param(
            json.dumps(
                {"ts": AT.format(5), "rank": 3, "hostname": "n1", "msg": "x", "exc_info": "\n".join(_stack())}
            ),
            Said(1, (3,), ("n1",), AT.format(5)),
            id="structured",
        ),
        pytest.param(
            json.dumps({"created": 1796202845.0, "message": ERROR, "exc_info": "\n".join(_stack())}),
            Said(first_seen=EPOCH),
            id="structured, said twice",
        ),
        pytest.param(
            f"E1202 09:14:06.100 123 a.cc:12] {ERROR}\n[rank3]:[E1202 09:14:05.1 b.cpp:616] {ERROR}",
            Said(2, (3,), (), "1202 09:14:05.1"),
            id="glog",
        ),
        pytest.param(
            f"[1,3]<stderr>:{ERROR}\n[1,0]<stderr>: {ERROR}\n[prterun-n1-77@1,2]<stderr>:{ERROR}",
            Said(3, (0, 2, 3)),
            id="mpirun",
        ),
        pytest.param(
            f"worker-1  | {ERROR}\nworker-2  | {ERROR}", Said(2, (), ("worker-1", "worker-2")), id="compose"
        ),
        pytest.param(
            f"Dec  2 09:14:05 node7 serve[12]: {ERROR}\nDec  2 09:14:04 node8 serve[12]: {ERROR}",
            Said(2, (), ("node7", "node8"), "Dec  2 09:14:04"),
            id="syslog",
        ),
        pytest.param(
            f"2026-12-02T09:14:05+0000 node8 serve[12]: {ERROR}",
            Said(1, (), ("node8",), "2026-12-02T09:14:05+0000"),
            id="journald",
        ),
        pytest.param(
            f"(RayWorkerWrapper pid=859, ip=10.0.0.2) {ERROR}", Said(1, (), ("10.0.0.2",)), id="ray"
        ),
        pytest.param(
            f"[12/02/26 09:14:05] ERROR    {ERROR}", Said(first_seen="12/02/26 09:14:05"), id="rich"
        ),
        pytest.param(
            f"node1: [rank0]: {ERROR}\nnode2: [rank8]: {ERROR}",
            Said(2, (0, 8), ("node1", "node2")),
            id="pdsh",
        ),
        pytest.param(
            "\n".join(f"{rank:>2}: {line}" for line in _stack() for rank in (3, 12)),
            Said(2, (3, 12)),
            id="srun, aligned",
        ),
        pytest.param(f"gpu-7: 3: {ERROR}", Said(1, (3,), ("gpu-7",)), id="pdsh over srun"),
        pytest.param(
            "\n".join(f"10.0.0.{host}: {line}" for line in _stack() for host in (2, 3)),
            Said(2, (), ("10.0.0.2", "10.0.0.3")),
            id="pdsh, by address",
        ),
        pytest.param(
            f"Dec 02 09:14:05.123456 gpu-7 serve[12]: {ERROR}",
            Said(1, (), ("gpu-7",), "Dec 02 09:14:05.123456"),
            id="journald, precise",
        ),
        pytest.param(
            f"{AT.format(5)} stderr F {json.dumps({'levelname': 'ERROR', 'message': ERROR, 'rank': 3})}",
            Said(1, (3,), (), AT.format(5)),
            id="an object behind containerd's prefix",
        ),
        pytest.param(
            f"[pod/w-2/main] {json.dumps({'msg': ERROR, 'exc_info': chr(10).join(_stack())})}",
            Said(1, (), ("w-2",)),
            id="an object behind a pod's name, said twice",
        ),
        pytest.param(
            "2026-12-02 09:14:05.000000000 +0000 kubernetes.var.log.serve: "
            + json.dumps({"log": f"{ERROR}\n", "kubernetes": {"pod_name": "w-0"}}),
            Said(1, (), ("w-0",), "2026-12-02 09:14:05.000000000 +0000"),
            id="fluentd",
        ),
        pytest.param(
            json.dumps(
                {
                    "@timestamp": EPOCH,
                    "host.name": "gpu-7",
                    "error.message": ERROR,
                    "error.stack_trace": "\n".join(_stack()),
                }
            ),
            Said(1, (), ("gpu-7",), EPOCH),
            id="elastic",
        ),
        pytest.param(
            json.dumps(
                {
                    "body": {"stringValue": ERROR},
                    "attributes": [{"key": "exception.stacktrace", "value": {"stringValue": ERROR}}],
                }
            ),
            Said(),
            id="open telemetry",
        ),
        pytest.param(
            "-- Process 3 terminated with the following error:\n" + "\n".join(_stack()),
            Said(1, (3,)),
            id="torch's spawn",
        ),
        pytest.param(f"node1:12:99 [3] NCCL WARN {ERROR}", Said(1, (), ("node1",)), id="nccl"),
        pytest.param("\n".join(f"E   {line}" for line in _stack()), Said(), id="pytest"),
        pytest.param(
            "  + Exception Group Traceback (most recent call last):\n"
            '  |   File "/x/m.py", line 3, in main\n  | ExceptionGroup: several (1 sub-exception)\n'
            "  +-+---------------- 1 ----------------\n"
            + "".join(f"    | {line}\n" for line in _stack())
            + "    +------------------------------------\n",
            Said(),
            id="exception group",
        ),
    ],
)
def test_shapes(matcher: Matcher, text: str, said: Said) -> None:
    report = matcher.match(text)
    assert [(match.record_id, match.role) for match in report.matches] == [(OUTPUT_S, "root-cause")]
    match = report.matches[0]
    assert Said(match.count, match.ranks, match.hosts, match.first_seen) == said
    assert match.captures[0].value == "torch.uint8"
    assert text[slice(*match.span)] == "Unsupported output_s dtype torch.uint8"
    assert text.split("\n")[match.line - 1].find("Unsupported") >= 0
    assert report.unmatched == ()
    assert (report.root_cause, report.truncated) == (0, False)


@pytest.mark.parametrize(
    "tags",
    [
        ("[rank0]: ", "[rank1]: "),
        ("[default0]:", "[default1]:"),
        ("[1,0]<stderr>: ", "[1,1]<stderr>: "),
        ("0: ", "1: "),
        ("(Worker_TP0 pid=7) ", "(Worker_TP1 pid=8) "),
        ("\x1b[1;36m(EngineCore_DP0 pid=7)\x1b[0;0m ", "\x1b[1;36m(EngineCore_DP1 pid=8)\x1b[0;0m "),
        ("[pod/a/m] [rank0]: ", "[pod/a/m] [rank1]: "),
        (f"{AT.format(1)} stderr F [rank0]: ", f"{AT.format(2)} stderr F [rank1]: "),
    ],
)
def test_workers_that_alternate_are_told_apart(matcher: Matcher, tags: tuple[str, str]) -> None:
    text = _interleaved(tags, ERROR, OTHER)
    report = matcher.match(text)
    assert [(match.record_id, match.ranks, match.line) for match in report.matches] == [
        (OUTPUT_S, (0,), 7),
        (SCALES, (1,), 8),
    ]


@pytest.mark.parametrize("keys", [("rank", 0, 1), ("pod_name", "a", "b")])
def test_objects_of_workers_that_alternate(matcher: Matcher, keys: tuple[str, object, object]) -> None:
    name, *values = keys
    tensor = "Tensor<5>[strides=<1>, dtype=int32, device=cuda:0]"
    launched = [
        f"RuntimeError: Tensor match failed for {tensor} at /x/per_token_group_quant.cuh:488",
        "- Root cause: Size mismatch for shape#0('num_tokens'): expected 4 but got 5",
    ]
    text = "\n".join(json.dumps({name: value, "log": f"{line}\n"}) for line in launched for value in values)
    report = matcher.match(text)
    assert [(match.record_id, match.count) for match in report.matches] == [("sizes", 2)]
    assert report.matches[0].captures[-1].value == "5"


# -- which is the cause


def test_the_earliest_error_is_the_cause_wherever_it_stands(matcher: Matcher) -> None:
    text = f"2026-12-02 09:14:09 {ERROR}\n2026-12-02 09:14:03 {OTHER}"
    report = matcher.match(text)
    assert report.root_cause is not None
    assert report.matches[report.root_cause].record_id == SCALES


def test_without_times_of_one_form_the_first_is_the_cause(matcher: Matcher) -> None:
    report = matcher.match(f"2026-12-02 09:14:09 {ERROR}\n[rank1]:[E1202 09:14:03.1 a.cpp:1] {OTHER}")
    assert report.root_cause is not None
    assert report.matches[report.root_cause].record_id == OUTPUT_S


def test_a_message_without_a_time_is_ordered_by_the_last_above_it(matcher: Matcher) -> None:
    ready = "2026-12-02 09:15:00 ready"
    report = matcher.match(f"{ready}\n{ERROR}\n2026-12-02 09:14:00 other\n{OTHER}")
    assert [match.first_seen for match in report.matches] == [None, None]
    assert report.root_cause is not None
    assert report.matches[report.root_cause].record_id == SCALES


@pytest.mark.parametrize(
    "message",
    [
        "[Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=12) ran for 600010 ms",
        "Received sigquit from a child process. It usually means the child failed.",
        "Engine core initialization failed. See root cause above. Failed core proc(s): {'EngineCore_0': 1}",
        "NCCL communicator was aborted on rank 3.",
        "[../gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.1]:4321",
    ],
)
def test_what_only_follows_is_secondary(message: str) -> None:
    assert is_secondary(message)


def test_a_watchdog_that_tells_the_cause_is_none() -> None:
    assert not is_secondary(
        "Process group watchdog thread terminated with exception: CUDA error: misaligned address"
    )


def test_who_pasted_only_what_follows_is_asked_for_the_rest(matcher: Matcher) -> None:
    end = "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: train.py FAILED"
    alone = matcher.match(end)
    assert [missed.role for missed in alone.unmatched] == ["secondary"]
    assert notice(alone) == ONLY_SECONDARY
    assert notice(matcher.match(f"{ERROR}\n{end}")) is None
    assert notice(matcher.match(f"KeyError: 'a'\n{end}")) is None
    assert notice(matcher.match("all is well")) is None


def test_an_earlier_failure_without_a_record_is_pointed_at(matcher: Matcher) -> None:
    later = f"2026-12-02 09:14:09 {ERROR}"
    told = notice(matcher.match(f"2026-12-02 09:14:03 IndexError: pop from empty list\n{later}"))
    assert told is not None
    assert "IndexError came before it, at 2026-12-02 09:14:03" in told
    assert notice(matcher.match(f"{later}\n2026-12-02 09:14:12 IndexError: pop from empty list")) is None
    assert notice(matcher.match(f"IndexError: pop from empty list\n{later}")) is None


def test_an_exception_without_a_record_is_counted_too(matcher: Matcher) -> None:
    report = matcher.match("\n".join(f"[rank{rank}]: {AT.format(rank)} KeyError: 'scale'" for rank in (3, 1)))
    assert [(missed.count, missed.ranks, missed.first_seen) for missed in report.unmatched] == [
        (2, (1, 3), AT.format(1))
    ]
