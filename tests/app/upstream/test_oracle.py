"""Upstream's process: what it is asked, what it answers, and what becomes of it."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from app.upstream.asking import WAITING, Queue
from app.upstream.comparing import compare
from app.upstream.forms import job
from app.upstream.oracle import Answer, Oracle
from kernels.dtypes import DType
from kernels.per_token_group_quant.signature import VALID
from kernels.registry import Operation, operations
from kernels.spec import TensorSpec
from kernels.target import Target
from kernels.values import Full

QUANT = operations()["per_token_group_quant"]

PACKAGE = """
import os, sys, time
import torch

def facts(input, **_):
    raise ValueError(
        f"{tuple(input.shape)} {input.stride()} {input.dtype} {input.device} {input.is_cuda} "
        f"{input.data_ptr() % 512} {input[1:].data_ptr() - input.data_ptr()}"
    )

def allocates(input, **_):
    made = torch.empty(3, input.shape[-1], device=input.device, dtype=torch.int32)
    made.view(-1, 7)

def launches(input, **_):
    raise RuntimeError("Failed at /x/y.cuh:1: CUDA error: no CUDA-capable device is detected")

def chatters(input, **_):
    print("noise on standard output")
    os.write(1, b"more noise\\n")
    return 3

def sleeps(input, **_):
    time.sleep(60)

def dies(input, **_):
    os.write(2, b"the reason stands here\\n")
    os._exit(3)

def lacks(input, **_):
    import a_package_that_nobody_has

def asserts(input, **_):
    assert input.shape[0] == 5

def environment(input, **_):
    raise ValueError(str(sorted(name for name in os.environ if name.startswith("FAULTBOOK_"))))
"""


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> str:
    """An interpreter that has the package `stand_in`, as a site's own script would start it."""
    folder = tmp_path_factory.mktemp("upstream")
    (folder / "stand_in.py").write_text(PACKAGE)
    script = folder / "python"
    script.write_text(f'#!/bin/sh\nPYTHONPATH="{folder}:$PYTHONPATH" exec "{sys.executable}" "$@"\n')
    script.chmod(0o755)
    return str(script)


@pytest.fixture(scope="module")
def oracle(python: str) -> Iterator[Oracle]:
    oracle = Oracle(python, ["stand_in", "safetensors"], limit=60, memory=1 << 30, launches=False)
    yield oracle
    oracle.close()


Ask = Callable[..., Answer]


@pytest.fixture
def ask(oracle: Oracle) -> Ask:
    def asked(function: str, input: TensorSpec = VALID.input) -> Answer:  # noqa: A002 (its name)
        operation = replace(QUANT, module="stand_in", function=function)
        return oracle.ask(job(operation, VALID.replace(input=input)))

    return asked


def test_tensors_have_the_described_form_on_the_stated_device(ask: Ask) -> None:
    told = ask("facts", TensorSpec((4, 256), DType.BF16, (264, 1), 8))
    assert (told.ending, told.error_class) == ("raised", "ValueError")
    assert told.message == "(4, 256) (264, 1) torch.bfloat16 cuda:0 True 16 528"
    assert told.frames[-1][2] == "facts"


def test_torch_s_own_errors_are_torch_s_own(ask: Ask) -> None:
    told = ask("allocates")
    assert told.error_class == "RuntimeError"
    assert told.message == "shape '[-1, 7]' is invalid for input of size 768"


def test_reaching_the_launch_is_no_error(ask: Ask) -> None:
    told = ask("launches")
    assert told.ending == "unlaunched"
    assert compare(QUANT, QUANT.examine(VALID), told).agrees


def test_what_upstream_prints_does_not_disturb(ask: Ask) -> None:
    assert ask("chatters").ending == "returned"
    assert ask("facts").ending == "raised"


def test_a_missing_package_is_the_environment_s_fault(ask: Ask) -> None:
    told = ask("lacks")
    assert told.ending == "unavailable"
    assert "a_package_that_nobody_has" in told.detail
    assert compare(QUANT, QUANT.examine(VALID), told).agrees is None


def test_our_settings_stay_ours(ask: Ask, monkeypatch: pytest.MonkeyPatch, python: str) -> None:
    monkeypatch.setenv("FAULTBOOK_API_KEYS", "secret")
    own = Oracle(python, ["stand_in"], limit=60, memory=1 << 30, launches=False)
    operation = replace(QUANT, module="stand_in", function="environment")
    assert own.ask(job(operation, VALID)).message == "[]"
    own.close()


def test_a_dead_process_is_replaced(ask: Ask) -> None:
    told = ask("dies")
    assert (told.ending, told.detail) == (
        "crashed",
        "its process ended with status 3: the reason stands here",
    )
    assert ask("facts").ending == "raised"


def test_a_call_that_takes_too_long_is_ended(python: str) -> None:
    impatient = Oracle(python, ["stand_in"], limit=1, memory=1 << 30, launches=False)
    operation = replace(QUANT, module="stand_in", function="sleeps")
    told = impatient.ask(job(operation, VALID))
    assert told.ending == "timed-out"
    impatient.close()


@pytest.mark.parametrize("module", ["os", "stand_in_too", "safetensorsx", "subprocess"])
def test_other_modules_are_refused(oracle: Oracle, module: str) -> None:
    operation = replace(QUANT, module=module, function="system")
    told = oracle.ask(job(operation, VALID))
    assert told.ending == "unavailable"
    assert "none of the modules" in told.detail


def test_an_interpreter_that_is_none_is_told() -> None:
    told = Oracle("/nowhere/python", ["sglang"], limit=1, memory=1, launches=False).ask(job(QUANT, VALID))
    assert told.ending == "unavailable"
    assert "cannot be started" in told.detail


def test_the_seconds_of_a_call_are_told_however_it_ends(python: str) -> None:
    oracle = Oracle(python, ["stand_in"], limit=60.0, memory=1 << 30, launches=False)
    question = job(QUANT, VALID, 0) | {"module": "stand_in"}
    try:
        began = time.monotonic()
        first = oracle.ask(question | {"function": "facts"})
        assert first.ending == "raised"
        assert 0 < first.seconds < time.monotonic() - began, "not those of the start"
        oracle._limit = 1.0
        slow = oracle.ask(question | {"function": "sleeps"})
        assert (slow.ending, slow.seconds) == ("timed-out", pytest.approx(1.0, abs=0.5))
    finally:
        oracle.close()
    absent = Oracle("/nowhere/python", ["stand_in"], limit=1.0, memory=1 << 30)
    assert (absent.ask(question).ending, absent.ask(question).seconds) == ("unavailable", 0.0)


def test_calls_wait_without_a_thread_and_not_without_end(python: str) -> None:
    """Of a service with 40 threads, 40 calls that wait would take each one."""
    queue = Queue(Oracle(python, ["stand_in"], limit=60, memory=1 << 30, launches=False))
    question = job(QUANT, VALID, 0) | {"module": "stand_in", "function": "facts"}

    async def asked() -> tuple[list[str], int]:
        # Other event loops of this process may have left threads of theirs.
        others = set(threading.enumerate())
        calls = [asyncio.ensure_future(queue.ask(question, spent.append)) for _ in range(WAITING + 2)]
        await asyncio.sleep(0.2)
        own = set(threading.enumerate()) - others
        threads = sum(thread.name.startswith("AnyIO worker") for thread in own)
        return [answer.ending for answer in await asyncio.gather(*calls)], threads

    spent: list[float] = []
    endings, threads = asyncio.run(asked())
    queue.close()
    assert endings == ["raised"] * WAITING + ["not-run"] * 2
    assert threads == 1
    assert len(spent) == WAITING


@pytest.mark.parametrize("after", [0.0, 0.05, 8.0], ids=["at once", "at its start", "at the call"])
def test_a_call_that_is_cancelled_ends_its_process_and_is_paid_for(python: str, after: float) -> None:
    oracle = Oracle(python, ["stand_in"], limit=60, memory=1 << 30, launches=False)
    queue = Queue(oracle)
    question = job(QUANT, VALID, 0) | {"module": "stand_in"}
    spent: list[float] = []

    async def cancelled() -> float:
        call = asyncio.ensure_future(queue.ask(question | {"function": "sleeps"}, spent.append))
        await asyncio.sleep(after)
        call.cancel()
        began = time.monotonic()
        with pytest.raises(asyncio.CancelledError):
            await call
        return time.monotonic() - began

    assert asyncio.run(cancelled()) < 5
    assert oracle._process is None
    assert [seconds > 0 for seconds in spent] == [after > 1]
    answer = asyncio.run(queue.ask(question | {"function": "facts"}, spent.append))
    assert answer.ending == "raised"
    queue.close()


def test_upstream_that_is_absent_is_told(oracle: Oracle) -> None:
    absent = Oracle(sys.executable, ["sglang"], limit=60, memory=1 << 30, launches=False)
    told = absent.ask(job(QUANT, VALID))
    assert told.ending == "unavailable"
    assert "No module named 'sglang'" in told.detail
    absent.close()


def test_files_are_written_below_a_folder_of_the_call_s_own(oracle: Oracle) -> None:
    operation = operations()["safetensors_file"]
    question = job(operation, operation.valid)
    for name in ("/tmp/evil", "../evil", "a/../../evil", ""):
        question["args"][0]["file"]["name"] = name
        assert oracle.ask(question).ending == "unavailable", name
    question["args"][0]["file"]["name"] = "a/b.safetensors"
    assert oracle.ask(question).ending == "returned"
    assert not Path("a").exists()


def _examples(operation: Operation) -> list[Any]:
    return [check for check in operation.checks if check.sites and check.example() is not None]


@pytest.mark.parametrize("check", _examples(operations()["safetensors_file"]), ids=lambda check: check.id())
def test_the_library_says_what_the_checks_predict(oracle: Oracle, check: Any) -> None:
    operation = operations()["safetensors_file"]
    example = check.example()
    told = oracle.ask(job(operation, example))
    found = compare(operation, operation.examine(example), told)
    assert found.agrees, found
    assert found.at_check == check.id()


def test_the_target_is_the_gpu_that_is_stated(oracle: Oracle) -> None:
    assert job(QUANT, VALID.replace(target=Target("sm100")))["target"] == [10, 0]
    assert job(QUANT, VALID.replace(target=Target("gfx942")))["target"] == [9, 0]


def test_values_are_seeded_as_the_worker_seeds_them() -> None:
    drawn = job(QUANT, VALID, seed=5)["kwargs"]["input"]["tensor"]["values"]
    assert drawn == {"kind": "randn", "mean": 0.0, "std": 1.0, "seed": 5}
    full = VALID.with_tensor("input", values=Full(2.0))
    assert job(QUANT, full)["kwargs"]["input"]["tensor"]["values"] == {"kind": "full", "value": 2.0}


GREETS = """
import json, os, sys, time
sys.stdin.readline()
print(json.dumps({"python": "3", "torch": "2", "cuda": None, "device": None, "packages": {}}), flush=True)
"""
ASKED = GREETS + "sys.stdin.readline()\n"


@pytest.mark.parametrize(
    ("program", "ending", "told"),
    [
        ("import time; time.sleep(60)", "unavailable", "longer than 2 s"),
        (GREETS + "time.sleep(60)", "timed-out", "longer than 2 s"),
        (ASKED + "while True: os.write(1, b'x' * 65536)", "crashed", "more than 1,048,576 bytes"),
        (ASKED + "print('no JSON at all', flush=True); time.sleep(60)", "crashed", "no answer"),
        (ASKED + "print('[' * 100_000, flush=True); time.sleep(60)", "crashed", "no answer"),
        (ASKED + "print('[1, 2]', flush=True); time.sleep(60)", "crashed", "no answer"),
        (ASKED + "print('{}', flush=True); time.sleep(60)", "crashed", "no answer"),
        (ASKED + 'print(\'{"ending": "fine"}\', flush=True); time.sleep(60)', "crashed", "no answer"),
        (ASKED + "os.write(2, b'why'); os._exit(7)", "crashed", "status 7: why"),
        (ASKED + "os.kill(os.getpid(), 11)", "crashed", "signal 11"),
        ("print('{}', flush=True); import time; time.sleep(60)", "unavailable", "no answer"),
        ("print('hello', flush=True); import time; time.sleep(60)", "unavailable", "no answer"),
        ("", "unavailable", "ended with status 0"),
        (
            ASKED + "import subprocess; subprocess.Popen(['sleep', '10']); os._exit(0)",
            ("timed-out", "crashed"),
            "ended",
        ),
    ],
)
def test_an_interpreter_that_misbehaves_costs_its_time_at_most(
    program: str, ending: str | tuple[str, ...], told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.upstream.oracle.START_LIMIT", 2)
    monkeypatch.setattr("app.upstream.oracle.MOST_ANSWERED", 1 << 20)
    (tmp_path / "program.py").write_text(program)
    script = tmp_path / "python"
    script.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{tmp_path}/program.py"\n')
    script.chmod(0o755)
    oracle = Oracle(str(script), ["stand_in"], limit=2, memory=1 << 30, launches=False)
    question = {"values": "x" * (1 << 20)}  # more than a pipe holds
    began = time.monotonic()
    answer = oracle.ask(question)
    oracle.close()
    assert answer.ending in ((ending,) if isinstance(ending, str) else ending), answer
    assert told in answer.detail
    assert time.monotonic() - began < 15
