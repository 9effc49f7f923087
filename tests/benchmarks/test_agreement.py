"""Compiled launchers are looked for where the command line named them, wherever upstream's process works."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from benchmarks.agreement import opened


def test_a_relative_folder_of_launchers_is_found_from_another_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("sglang", "sglang.kernels", "sglang.kernels.jit", "sglang.srt", "sglang.srt.utils"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    utils = ModuleType("sglang.kernels.jit.utils")
    sys.modules["sglang.kernels.jit"].utils = utils  # type: ignore[attr-defined]
    sys.modules["sglang.srt.utils"].common = SimpleNamespace()  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "sglang.kernels.jit.utils", utils)
    monkeypatch.setitem(sys.modules, "sglang.srt.utils.common", ModuleType("sglang.srt.utils.common"))
    monkeypatch.setitem(sys.modules, "tvm_ffi", ModuleType("tvm_ffi"))
    for folder in ("here", "elsewhere"):
        (tmp_path / folder / "built").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "here")
    code = opened("built")
    monkeypatch.chdir(tmp_path / "elsewhere")
    exec(code, {})  # noqa: S102 (upstream's process does so)
    with pytest.raises(ImportError, match="was not built"):
        utils.load_jit("x", cuda_files=["x.cuh"], cuda_wrappers=[("run", "Kernel<4>::run")])
    [wanted] = (tmp_path / "here" / "built" / "wanted.jsonl").read_text("utf-8").splitlines()
    assert json.loads(wanted)["kernels"] == ["Kernel<4>::run"]
    assert not (tmp_path / "elsewhere" / "built" / "wanted.jsonl").exists()


def test_without_a_folder_upstream_builds_its_own() -> None:
    assert opened("") == ""
