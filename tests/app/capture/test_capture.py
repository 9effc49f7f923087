"""/capture.py: what a running program writes down is what the service diagnoses, and nothing reaches it."""

from __future__ import annotations

import ast
import io
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pytest
import torch
from starlette.testclient import TestClient

from app.capture.service import described
from app.main import create_app
from app.settings import Settings
from kernels.registry import operations

BASE = "https://faultbook.example"


@pytest.fixture(scope="module")
def client() -> Iterator[TestClient]:
    with TestClient(create_app(Settings(workers=0, public_url=BASE))) as made:
        yield made


@pytest.fixture(scope="module")
def source(client: TestClient) -> str:
    response = client.get("/capture.py")
    assert response.status_code == 200
    assert response.headers["content-type"] == "text/x-python; charset=utf-8"
    return response.text


@pytest.fixture
def capture(source: str, tmp_path: Path) -> Any:
    path = tmp_path / "capture.py"
    path.write_text(source)
    spec = spec_from_file_location("capture", path)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def per_token_group_quant(
    input: Any,  # noqa: A002 (upstream's name)
    output_q: Any = None,
    output_s: Any = None,
    group_size: Any = 128,
    scale_ue8m0: Any = False,
    masked_m: Any = None,
    out_dtype: Any = None,
) -> None:
    """A function of upstream's name, which fails in a frame further in."""
    deeper(input, group_size)


def deeper(tensor: Any, size: int) -> None:
    unrelated = tensor
    raise ValueError(f"{size} and {unrelated.shape[0]}")


def caught(capture: Any, *arguments: Any, **named: Any) -> tuple[dict[str, Any], list[str]]:
    notes: list[str] = []
    try:
        per_token_group_quant(*arguments, **named)
    except ValueError as error:
        return capture.spec_of(error, None, notes), notes
    raise AssertionError("nothing was raised")


def diagnosed(client: TestClient, spec: dict[str, Any]) -> dict[str, Any]:
    response = client.post("/api/diagnose", json={**spec, "level": "checks"})
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


def test_it_is_one_file_of_the_standard_library_for_python_3_8(source: str) -> None:
    tree = ast.parse(source, feature_version=(3, 8))
    imported = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    imported |= {str(node.module) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert {name.partition(".")[0] for name in imported} <= sys.stdlib_module_names
    for method in ("removeprefix", "removesuffix", "strict=", "match "):
        assert method not in source


def test_it_names_the_service_and_its_operations(capture: Any) -> None:
    assert capture.SERVICE == BASE
    assert described() == capture.OPERATIONS
    assert "per_token_group_quant" in capture.OPERATIONS
    assert "comfy_checkpoint" not in capture.OPERATIONS
    for name, item in capture.OPERATIONS.items():
        assert item["arguments"] == [parameter.name for parameter in operations()[name].call.arguments()]


def test_metadata_of_the_call_that_failed(client: TestClient, capture: Any) -> None:
    storage = torch.zeros(16 * 16, dtype=torch.int32)
    spec, notes = caught(
        capture,
        torch.zeros(16, 7168, dtype=torch.bfloat16),
        torch.zeros(16, 7168, dtype=torch.float8_e4m3fn),
        storage.as_strided((16, 14), (1, 16)),
        out_dtype=torch.float8_e4m3fn,
    )
    assert notes == []
    assert spec["operation"] == "per_token_group_quant"
    scales = spec["arguments"]["output_s"]
    assert {name: scales[name] for name in ("shape", "dtype", "strides", "device")} == {
        "shape": [16, 14],
        "dtype": "torch.int32",
        "strides": [1, 16],
        "device": "cpu",
    }
    assert spec["arguments"]["out_dtype"] == "torch.float8_e4m3fn"
    assert spec["arguments"]["group_size"] == 128
    for tensor in (spec["arguments"][name] for name in ("input", "output_q", "output_s")):
        tensor["device"] = "cuda"
    assert diagnosed(client, spec)["raised"]["atCheck"] == "packed_scales_without_ue8m0"


def test_the_offset_is_the_alignment_of_the_address(capture: Any) -> None:
    whole = torch.zeros(4096, dtype=torch.float16)
    first = (-whole.data_ptr() % 512) // 2
    spec, _ = caught(capture, whole[first + 3 : first + 3 + 256].view(1, 256))
    assert spec["arguments"]["input"]["offset"] == 3
    spec, _ = caught(capture, whole[first : first + 256].view(1, 256))
    assert "offset" not in spec["arguments"]["input"]


def test_no_element_is_read(capture: Any) -> None:
    spec, _ = caught(capture, torch.zeros(4, 256, device="meta", dtype=torch.bfloat16))
    assert spec["arguments"]["input"]["device"] == "meta"

    class Watched(torch.Tensor):
        @classmethod
        def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            used.add(func.__name__)
            return super().__torch_function__(func, types, args, kwargs)  # type: ignore[no-untyped-call]

    used: set[str] = set()
    spec, _ = caught(capture, torch.zeros(4, 256).as_subclass(Watched))
    assert spec["arguments"]["input"]["shape"] == [4, 256]
    assert used <= {"__get__", "stride", "data_ptr", "element_size"}


@pytest.mark.parametrize(
    ("value", "told"),
    [(object(), "object"), ([1], "list"), (float("nan"), "finite"), ("x" * 501, "long text")],
)
def test_what_cannot_be_written_is_left_out_and_told(capture: Any, value: Any, told: str) -> None:
    spec, notes = caught(capture, torch.zeros(4, 256), group_size=value)
    assert "group_size" not in spec["arguments"]
    assert any("group_size" in note and told in note for note in notes)


def test_a_tensor_without_strides_is_told(capture: Any) -> None:
    places, ones = torch.zeros(2, 1, dtype=torch.int64), torch.ones(1)
    sparse = torch.sparse_coo_tensor(places, ones, (4, 4), check_invariants=True)
    spec, notes = caught(capture, torch.zeros(4, 256), masked_m=sparse)
    assert "masked_m" not in spec["arguments"]
    assert notes == ["masked_m is left out: it is no strided tensor"]


def test_the_block_prints_and_lets_the_exception_go_on(capture: Any) -> None:
    out = io.StringIO()
    with pytest.raises(ValueError, match="128 and 4"), capture.capturing(stream=out):
        per_token_group_quant(torch.zeros(4, 256))
    assert json.loads(out.getvalue())["arguments"]["input"]["shape"] == [4, 256]


def test_frames_of_no_operation_are_listed(capture: Any) -> None:
    out = io.StringIO()
    with pytest.raises(ValueError), capture.capturing(stream=out):  # noqa: PT011
        deeper(torch.zeros(2, 3), 1)
    says, frames = out.getvalue().splitlines()
    assert "no operation" in says
    [frame] = json.loads(frames)
    assert frame["function"] == "deeper"
    assert set(frame["tensors"]) == {"tensor", "unrelated"}


def test_a_mistake_of_its_own_reaches_nobody(capture: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken(io.StringIO):
        def write(self, text: str) -> int:
            raise OSError("gone")

    error = ValueError("x")
    capture.report(error, None, False, Broken())
    out = io.StringIO()
    monkeypatch.setattr(capture, "spec_of", lambda *_: 1 / 0)
    capture.report(error, None, False, out)
    assert "nothing was written down: ZeroDivisionError" in out.getvalue()


def test_the_call_is_sent_and_the_answer_told(
    client: TestClient, capture: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def urlopen(request: Any, timeout: float) -> Any:
        asked.append(request.full_url)
        answer = client.post("/api/diagnose", content=request.data, headers=dict(request.headers))
        assert answer.status_code == 200, answer.text
        return io.BytesIO(answer.content)

    monkeypatch.setattr(capture.urllib.request, "urlopen", urlopen)
    for post in (True, "http://other.example/"):
        out = io.StringIO()
        with pytest.raises(ValueError), capture.capturing(post=post, stream=out):  # noqa: PT011
            per_token_group_quant(torch.zeros(4, 256, dtype=torch.bfloat16, device="meta"), group_size=100)
        assert "rejected" in out.getvalue()
        assert "unsupported_group_size" in out.getvalue()
        assert "fix: " in out.getvalue()
    assert asked == [BASE + "/api/diagnose", "http://other.example/api/diagnose"]


def test_without_an_address_nothing_is_sent(capture: Any) -> None:
    capture.SERVICE = ""
    out = io.StringIO()
    with pytest.raises(ValueError), capture.capturing(post=True, stream=out):  # noqa: PT011
        per_token_group_quant(torch.zeros(4, 256))
    assert "not sent" in out.getvalue()


def test_hooks_come_after_those_that_are_there(capture: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []
    monkeypatch.setattr(sys, "excepthook", lambda *_: order.append("own"))
    monkeypatch.setattr(threading, "excepthook", lambda _: order.append("own thread"))
    out = io.StringIO()
    capture.install(stream=out)
    try:
        per_token_group_quant(torch.zeros(4, 256))
    except ValueError as error:
        sys.excepthook(type(error), error, error.__traceback__)
    thread = threading.Thread(target=per_token_group_quant, args=(torch.zeros(8, 256),))
    thread.start()
    thread.join()
    assert order == ["own", "own thread"]
    shapes = [json.loads(line)["arguments"]["input"]["shape"] for line in out.getvalue().splitlines()]
    assert shapes == [[4, 256], [8, 256]]


def test_it_loads_no_torch(source: str, tmp_path: Path) -> None:
    (tmp_path / "capture.py").write_text(source)
    program = "import sys, capture; capture.install(); assert 'torch' not in sys.modules; 1 / 0"
    done = subprocess.run(
        [sys.executable, "-I", "-c", f"import sys; sys.path.insert(0, {str(tmp_path)!r}); {program}"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "ZeroDivisionError" in done.stderr
    assert "no operation that can be diagnosed" in done.stderr


LOG = """\
================================================================================
[2026-03-19 00:47:30] SGLang Kernel API Call: sglang.custom_op.fused_inplace_qknorm
Positional input arguments:
  arg[0]=Tensor(
      shape=(1, 1024)
      dtype=torch.bfloat16
      device=cuda:0
    )
================================================================================
[2026-03-19 00:47:31] SGLang Kernel API Call: sglang.custom_op.per_token_group_quant
Positional input arguments:
  arg[0]=Tensor(
      shape=(16, 7168)
      dtype=torch.bfloat16
      device=cuda:0
      requires_grad=False
      is_contiguous=True
    )
  arg[1]=Tensor(
      shape=(16, 7168)
      dtype=torch.float8_e4m3fn
      device=cuda:0
      is_contiguous=True
    )
Keyword input arguments:
  output_s=Tensor(
      shape=(16, 14)
      dtype=torch.int32
      device=cuda:0
      is_contiguous=False
    )
  group_size=128
  scale_ue8m0=False
  layer=QKVParallelLinear(
      repr=QKVParallelLinear(in_features=1024)
    )
Output:
  return=None
"""

FLASHINFER = """\
[2025-12-18 10:30:46] FlashInfer API Call: per_token_group_quant
--------------------------------------------------------------------------------
Positional input arguments:
  arg[0]:
    Tensor(
      shape=(4, 256)
      dtype=torch.bfloat16
      device=cuda:0
      is_contiguous=True
    )
Keyword input arguments:
  out_dtype=torch.int8
  group_size=
    100
"""


def test_a_log_of_sglangs_api_calls(client: TestClient, capture: Any) -> None:
    [(spec, notes)] = capture.read_log(LOG)
    assert set(spec["arguments"]) == {"input", "output_q", "output_s", "group_size", "scale_ue8m0"}
    assert spec["arguments"]["group_size"] == 128
    assert spec["arguments"]["scale_ue8m0"] is False
    assert any("output_s is not contiguous" in note for note in notes)
    assert any("layer" in note for note in notes)
    assert diagnosed(client, spec)["raised"]["atCheck"] == "packed_scales_without_ue8m0"


def test_a_log_in_flashinfers_form(client: TestClient, capture: Any) -> None:
    [(spec, notes)] = capture.read_log(FLASHINFER)
    assert notes == []
    assert spec["arguments"] == {
        "input": {"shape": [4, 256], "dtype": "torch.bfloat16", "device": "cuda:0"},
        "out_dtype": "torch.int8",
        "group_size": 100,
    }
    assert diagnosed(client, spec)["raised"]["atCheck"] == "unsupported_group_size"


def test_lines_of_the_logger_itself_belong_to_no_argument(capture: Any) -> None:
    text = LOG.replace("Output:\n", "Dumped inputs to: dumps/1_call0001\nOutput:\n")
    [(spec, _)] = capture.read_log(text.replace(text[text.index("  layer=") : text.index("Dumped")], ""))
    assert spec["arguments"]["scale_ue8m0"] is False
    level10 = "SGLang Kernel API Call: per_token_group_quant\nKeyword input arguments:\n  group_size=128\n"
    [(spec, notes)] = capture.read_log(f"{level10}Dumped inputs to: dumps/2_call0001\n")
    assert (spec["arguments"], notes) == ({"group_size": 128}, [])


def test_a_log_on_one_line_and_one_that_breaks_off(capture: Any) -> None:
    line = "  arg[0]=Tensor(shape=(2, 256), dtype=torch.float16, device=cuda:0)"
    text = f"SGLang Kernel API Call: per_token_group_quant\nPositional input arguments:\n{line}"
    [(spec, _)] = capture.read_log(text)
    assert spec["arguments"]["input"]["shape"] == [2, 256]
    [(spec, notes)] = capture.read_log(text[: text.index(", dtype")])
    assert spec["arguments"] == {}
    assert notes == ["input is left out: its tensor cannot be read"]
    assert list(capture.read_log("FlashInfer API Call: per_token_group_quant\n")) == []


def test_logs_from_the_command_line(capture: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "engine.log").write_text(LOG + FLASHINFER)
    capture.main([str(tmp_path / "engine.log")])
    out, err = capsys.readouterr()
    assert [json.loads(line)["operation"] for line in out.splitlines()] == ["per_token_group_quant"] * 2
    assert "not contiguous" in err
