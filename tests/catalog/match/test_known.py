"""Texts of drivers, compiled libraries, watchdogs and launchers: told as what they are, never as a match."""

from __future__ import annotations

import pytest

from catalog.match import Matcher
from catalog.match.causes import ONLY_SECONDARY, notice
from catalog.match.clean import SMALL
from catalog.match.known import known, known_in

ERROR = "ValueError: Unsupported output_s dtype torch.uint8"
ASSERTION = (
    "/build/IndexKernel.cu:92: operator(): block: [{0},0,0], thread: [{1},0,0] "
    "Assertion `-sizes[i] <= index && index < sizes[i]` failed."
)
MEMORY = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.0{0} GiB. GPU {0} has a total capacity "
    "of 139.72 GiB of which 1.1{0} GiB is free. Process 4{0} has 138.5 GiB memory in use."
)
WATCHDOG = (
    "[rank{0}]:[E1202 09:14:05.1 ProcessGroupNCCL.cpp:616] [Rank {0}] Watchdog caught collective operation "
    "timeout: WorkNCCL(SeqNum=12, OpType=ALLREDUCE, Timeout(ms)=600000) ran for 60001{0} milliseconds"
)


@pytest.mark.parametrize(
    ("text", "name", "role"),
    [
        (
            "RuntimeError: CUDA error: an illegal memory access was encountered",
            "cuda-illegal-memory-access",
            "",
        ),
        ("torch.AcceleratorError: CUDA error: device-side assert triggered", "cuda-device-assert", ""),
        (ASSERTION.format(3, 4), "cuda-device-assert", ""),
        ("RuntimeError: CUDA error: misaligned address", "cuda-misaligned-address", ""),
        ("CUDA driver error: 719 (CUDA_ERROR_LAUNCH_FAILED)", "cuda-launch-failure", ""),
        (
            "RuntimeError: CUDA error: no kernel image is available for execution on the device",
            "cuda-no-kernel-image",
            "",
        ),
        (
            "RuntimeError: CUDA error: operation not permitted when stream is capturing",
            "cuda-graph-capture",
            "",
        ),
        (MEMORY.format(3), "cuda-out-of-memory", ""),
        ("RuntimeError: CUDA error: out of memory", "cuda-out-of-memory", ""),
        (
            "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
            "cublas-no-memory",
            "",
        ),
        (
            "RuntimeError: CUDA error: CUBLAS_STATUS_NOT_SUPPORTED when calling cublasLtMatmul with m 8",
            "cublas-not-supported",
            "",
        ),
        (
            "triton.runtime.errors.OutOfResources: out of resource: shared memory, Required: 1",
            "triton-shared-memory",
            "",
        ),
        ("ncclUnhandledCudaError: Call to CUDA function failed: unhandled cuda error", "nccl-unhandled", ""),
        (WATCHDOG.format(1), "nccl-timeout", "secondary"),
        ("RuntimeError: NCCL communicator was aborted on rank 1.", "nccl-peer-gone", "secondary"),
        (
            "Received sigquit from a child process. It usually means the child failed.",
            "worker-failed",
            "secondary",
        ),
        (
            "RuntimeError: Engine core initialization failed. See root cause above.",
            "worker-failed",
            "secondary",
        ),
        ("  exitcode  : -9 (pid: 12)", "killed", ""),
        (
            "safetensors_rust.SafetensorError: Error while deserializing header: HeaderTooLarge",
            "safetensors-header",
            "",
        ),
        ("terminate called after throwing an instance of 'c10::Error'", "cpp-exception", ""),
        ("Fatal Python error: Segmentation fault", "segmentation-fault", ""),
        ("Aborted (core dumped)", "aborted", "secondary"),
        ("ImportError: /x/_C.abi3.so: undefined symbol: _ZN3c105ErrorC2E", "undefined-symbol", ""),
        ("ImportError: libcudart.so.12: cannot open shared object file: No such file", "shared-library", ""),
        ("CUDA_EXCEPTION_14, Warp Illegal Address.", "cuda-illegal-memory-access", ""),
        ("n1:12:34 [3] enqueue.cc:1456 NCCL WARN Cuda failure 2 'out of memory'", "cuda-out-of-memory", ""),
        (
            "n1:12:34 [3] socket.cc:4 NCCL WARN socketStartConnect: Connect to peer failed : refused",
            "nccl-network",
            "",
        ),
        ("Exception: WorkerProc initialization failed due to an exception.", "worker-failed", "secondary"),
        ("[ 9.1] NVRM: Xid (PCI:0000:04:00): 31, pid=7, name=python, MMU Fault", "gpu-xid", ""),
    ],
)
def test_what_it_is(matcher: Matcher, text: str, name: str, role: str) -> None:
    report = matcher.match(f"start\n{text}\nend")
    assert not report.has_match
    [missed] = report.unmatched
    assert missed.known is not None
    assert missed.known.name == name
    assert (missed.role, missed.line) == (role or "root-cause", 2)
    assert missed.message in text
    assert (notice(report) == ONLY_SECONDARY) == (role == "secondary")


@pytest.mark.parametrize("text", [ASSERTION, MEMORY, WATCHDOG])
def test_ranks_and_threads_with_their_own_numbers_are_one(matcher: Matcher, text: str) -> None:
    lines = [f"[rank{rank}]: {text.format(rank, 7 * rank)}" for rank in range(9)]
    [missed] = matcher.match("\n".join(lines)).unmatched
    assert (missed.count, missed.ranks) == (9, tuple(range(9)))


def test_a_line_in_which_a_record_was_found_is_told_by_that(matcher: Matcher) -> None:
    launched = "RuntimeError: Failed at /x/per_token_group_quant.cuh:584: CUDA error: misaligned address"
    report = matcher.match(launched)
    assert [match.record_id for match in report.matches] == ["launch"]
    assert report.unmatched == ()


def test_the_only_such_line_of_a_large_log_is_found(matcher: Matcher) -> None:
    filler = "INFO an ordinary line of a long log\n" * (SMALL // 20)
    for said in ("Segmentation fault (core dumped)", "n1:1:2 [3] NCCL WARN Cuda failure 2 'out of memory'"):
        [missed] = matcher.match(f"{filler}{said}\n{filler}").unmatched
        assert (missed.known is not None, missed.line) == (True, filler.count("\n") + 1)


def test_a_cause_comes_before_what_a_watchdog_makes_of_it() -> None:
    both = known_in("Watchdog caught collective operation timeout; CUDA error: misaligned address")
    assert both is not None
    assert both.told.name == "cuda-misaligned-address"


def test_a_log_that_says_nothing_of_the_kind(matcher: Matcher) -> None:
    report = matcher.match("memory access pattern ok\nasserts: 0\nout of order\nkilled 0 processes")
    assert report.unmatched == ()


def test_the_texts_are_whole_and_tell_apart() -> None:
    names = [each.told.name for each in known()]
    assert len(names) == len(set(names))
    phrases = [phrase for each in known() for phrase in each.phrases]
    assert len(phrases) == len(set(phrases))
    for each in known():
        assert each.told.meaning.endswith(".")
        assert each.told.advice.endswith(".")
        assert all(phrase == phrase.lower() for phrase in each.phrases)
        for phrase in each.phrases:
            found = known_in(phrase.upper())
            assert found is each


def test_a_worker_s_line_of_its_own_time_has_no_one_else_s_rank(matcher: Matcher) -> None:
    """What a server says of its child stands below the child's traceback and is not its."""
    report = matcher.match(
        "[2026-05-22 09:14:03 TP2] Scheduler hit an exception: Traceback (most recent call last):\n"
        f'  File "/x/a.py", line 3, in f\n{ERROR}\n\n'
        "[2026-05-22 09:14:04] Received sigquit from a child process. It usually means the child failed."
    )
    assert [match.ranks for match in report.matches] == [(2,)]
    assert [missed.ranks for missed in report.unmatched] == [()]
    assert notice(report) is None
