"""Whatever fails, hangs, exits or is huge in a program, it goes on, and what can be told of it is told."""

from __future__ import annotations

import io
import json
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.app.capture.test_capture import capture, caught, client, per_token_group_quant, source

__all__ = ["capture", "client", "source"]

INPUT = torch.zeros(4, 256, dtype=torch.bfloat16)


def failing() -> ValueError:
    try:
        per_token_group_quant(INPUT)
    except ValueError as error:
        return error
    raise AssertionError("nothing was raised")


def reported(capture: Any, error: BaseException) -> str:
    out = io.StringIO()
    capture.report(error, None, False, out)
    return out.getvalue()


def test_the_cause_of_an_error_is_looked_through(capture: Any) -> None:
    def wrapped() -> None:
        try:
            per_token_group_quant(INPUT)
        except ValueError as error:
            raise RuntimeError("a framework's own words") from error

    with pytest.raises(RuntimeError) as raised:
        wrapped()
    assert capture.spec_of(raised.value)["operation"] == "per_token_group_quant"


def test_what_was_being_handled_is_looked_through(capture: Any) -> None:
    def handled() -> None:
        try:
            per_token_group_quant(INPUT)
        except ValueError:
            {}["no such key"]

    with pytest.raises(KeyError) as raised:
        handled()
    assert capture.spec_of(raised.value)["operation"] == "per_token_group_quant"


def test_groups_are_looked_through(capture: Any) -> None:
    group = ExceptionGroup("two tasks", [KeyError("x"), ExceptionGroup("inner", [failing()])])
    assert capture.spec_of(group)["operation"] == "per_token_group_quant"


def test_a_circle_of_causes_ends(capture: Any) -> None:
    first, second = KeyError("a"), KeyError("b")
    first.__context__, second.__context__ = second, first
    assert capture.spec_of(first) is None


class Hostile(torch.Tensor):
    """A tensor whose own properties do something else than to tell."""

    @property
    def shape(self) -> Any:  # type: ignore[override]
        raise SystemExit(3)

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise KeyboardInterrupt


def test_a_class_derived_from_tensor_is_read_past_its_own_properties(capture: Any) -> None:
    hostile = torch.zeros(2, 3).as_subclass(Hostile)
    spec = None
    try:
        per_token_group_quant(INPUT, hostile)
    except ValueError as error:
        spec = capture.spec_of(error)
    assert spec["arguments"]["output_q"]["shape"] == [2, 3]


def stranger(**members: Any) -> Any:
    """A value that passes for a tensor by its class's name alone."""
    kind = type("Tensor", (), {"layout": "torch.strided", "dtype": "torch.int8", "device": "cpu", **members})
    kind.__module__ = "torch"
    return kind()


def exits(_: Any) -> Any:
    raise SystemExit(3)


def waits(_: Any) -> Any:
    time.sleep(30)


def test_one_argument_that_cannot_be_read_costs_no_other(capture: Any) -> None:
    spec, notes = caught(capture, INPUT, stranger(shape=property(exits)), group_size=64)
    assert spec["arguments"]["group_size"] == 64
    assert "output_q" not in spec["arguments"]
    assert notes == ["output_q is left out: reading it failed (SystemExit)"]


def test_a_property_that_exits_or_waits_does_not_reach_the_program(
    capture: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(capture, "PATIENCE", 0.5)

    def fail(value: Any) -> None:
        raise ValueError(str(type(value)))

    for member, told in ((exits, "SystemExit"), (waits, "nothing was written down within 0.5 s")):
        with pytest.raises(ValueError, match="class") as raised:
            fail(stranger(shape=property(member)))
        started = time.monotonic()
        assert told in reported(capture, raised.value)
        assert time.monotonic() - started < 5


@pytest.mark.parametrize("shape", [[1] * 100_000, [10**100_000], [2**70]])
def test_what_no_tensor_can_have_is_left_out(capture: Any, shape: list[int]) -> None:
    value = stranger(shape=shape, stride=lambda self: [1] * len(shape))
    spec, notes = caught(capture, INPUT, value, group_size=10**100_000)
    assert set(spec["arguments"]) & {"output_q", "group_size"} == set()
    assert len(json.dumps(spec)) < 2000
    assert "group_size is left out: it is a long number" in notes


def test_frames_without_end_are_cut(capture: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capture, "MAX_OUTPUT", 10_000)

    def fail(depth: int, tensors: Any) -> None:
        first, second, third = tensors
        if depth == 0:
            raise ValueError(str((first, second, third))[:5])
        fail(depth - 1, tensors)

    try:
        fail(200, (INPUT, INPUT, INPUT))
    except ValueError as error:
        told = reported(capture, error)
        frames = json.loads(told.splitlines()[-1])
        assert 5 < len(frames) < 64
        assert len(told) < 11_000


def test_a_file_that_is_absent_is_said(capture: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert capture.main(["/nowhere/engine.log"]) == 2
    assert capture.main([]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "/nowhere/engine.log cannot be read: No such file or directory" in err
    assert "Traceback" not in err


def dump(folder: Path, metadata: dict[str, Any], *, lines: bool) -> Path:
    folder.mkdir(parents=True)
    name, end = ("metadata.jsonl", "\n") if lines else ("metadata.json", "")
    (folder / name).write_text(json.dumps(metadata) + end)
    return folder


SGLANG = {
    "function_name": "kernels.ops.quantization.per_token_group_quant.per_token_group_quant",
    "execution_status": "exception",
    "input_metadata": {"kwarg_group_size": 128, "kwarg_scale_ue8m0": False, "kwarg_out_dtype": None},
    "input_tensor_keys": ["arg_0", "arg_1", "kwarg_output_s"],
}


def test_a_dump_of_sglang_s_level_10(capture: Any, tmp_path: Path) -> None:
    folder = dump(tmp_path / "a_call0001", SGLANG, lines=False)
    tensors = {
        "arg_0": torch.zeros(16, 7168, dtype=torch.bfloat16),
        "arg_1": torch.zeros(16, 7168, dtype=torch.float8_e4m3fn),
        "kwarg_output_s": torch.zeros(14, 16, dtype=torch.int32).t(),
    }
    torch.save(tensors, folder / "inputs.pt")
    spec, notes = capture.read_dump(folder)
    assert notes == []
    assert spec["arguments"]["input"] == {
        "shape": [16, 7168],
        "strides": [7168, 1],
        "dtype": "torch.bfloat16",
        "device": "cuda",
    }
    assert spec["arguments"]["output_q"]["dtype"] == "torch.float8_e4m3fn"
    assert spec["arguments"]["output_s"]["strides"] == [1, 16]
    assert spec["arguments"]["out_dtype"] is None


@pytest.mark.parametrize(
    "dtype", [torch.bool, torch.int64, torch.uint16, torch.float8_e8m0fnu, torch.float16]
)
def test_types_of_saved_tensors_are_read_without_torch(capture: Any, tmp_path: Path, dtype: Any) -> None:
    torch.save({"arg_0": torch.zeros(3, 2, dtype=dtype)[1:]}, tmp_path / "inputs.pt")
    [form] = capture._saved(tmp_path / "inputs.pt").values()
    assert (form["dtype"], form["shape"], form["stride"]) == (str(dtype), [2, 2], [2, 1])


def test_a_saved_file_runs_no_code(capture: Any, tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> Any:
            return Path.touch, (tmp_path / "touched",)

    torch.save({"arg_0": Evil()}, tmp_path / "inputs.pt")
    with pytest.raises(Exception, match="it holds a"):
        capture._saved(tmp_path / "inputs.pt")
    assert not (tmp_path / "touched").exists()


FLASHINFER = {
    "function_name": "per_token_group_quant",
    "input_metadata": {
        "kwarg_group_size": 100,
        "kwarg_out_dtype": {"type": "torch.dtype", "value": "torch.int8"},
        "kwarg_expected_m": {"type": "Config", "repr": "Config()"},
    },
    "tensor_details": {
        "arg_0": {"shape": [4, 256], "dtype": "torch.bfloat16", "stride": [512, 1], "device": "cuda:0"}
    },
}


def test_a_dump_of_flashinfer_s_level_10(
    capture: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dump(tmp_path / "dumps" / "1_call0001", FLASHINFER, lines=True)
    dump(tmp_path / "dumps" / "2_call0001", {**FLASHINFER, "function_name": "mm_fp8"}, lines=True)
    dump(tmp_path / "dumps" / "3_call0001", {"no": "function"}, lines=True)
    assert capture.main([str(tmp_path / "dumps")]) == 0
    out, err = capsys.readouterr()
    [line] = out.splitlines()
    assert json.loads(line)["arguments"] == {
        "input": {"shape": [4, 256], "dtype": "torch.bfloat16", "device": "cuda:0", "strides": [512, 1]},
        "group_size": 100,
        "out_dtype": "torch.int8",
    }
    assert "expected_m is left out: it is a Config" in err
    assert "3_call0001 is left out" in err


def test_the_hook_leaves_the_exit_status_alone(source: str, tmp_path: Path) -> None:
    import subprocess

    (tmp_path / "capture.py").write_text(source)
    program = (
        "import capture\n"
        "class T:\n"
        "    @property\n"
        "    def shape(self): raise SystemExit(7)\n"
        "T.__module__ = 'torch'; T.__name__ = 'Tensor'\n"
        "capture.install()\n"
        "def f(t): 1 / 0\n"
        "f(T())\n"
    )
    (tmp_path / "program.py").write_text(program)
    done = subprocess.run(
        [sys.executable, "program.py"], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 1
    assert "ZeroDivisionError" in done.stderr
