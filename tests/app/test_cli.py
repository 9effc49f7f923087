"""The command line as a process: what it prints where, and what it exits with."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

COMMAND = Path(sys.executable).with_name("faultbook")
REFUSED = (
    "diagnose",
    "per_token_group_quant",
    "--arg",
    "output_q=fp8[4,256]",
    "--arg",
    "output_s=int32[4,1]",
)
LINE = "ValueError: int32-packed scale buffers require scale_ue8m0=True\n"


def faultbook(*arguments: str, text: str = "", **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [COMMAND, *arguments],
        input=text,
        env={**os.environ, "NO_COLOR": "1", "COLUMNS": "150", **variables},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def answer(*arguments: str, text: str = "") -> Any:
    return json.loads(faultbook(*arguments, "--json", text=text).stdout)


@pytest.mark.parametrize(
    ("arguments", "text", "code"),
    [
        (("match", "-"), LINE, 0),
        (("match", "-"), "nothing of the kind\n", 1),
        (("explain", "402df144293dfbb6"), "", 0),
        (("explain", "kv-scales-must-be-fp32-got-kv-scales-dtype"), "", 0),
        (("explain", "0000000000000000"), "", 1),
        (("operations",), "", 0),
        (("operations", "per_token_group_quant"), "", 0),
        (("operations", "nothing"), "", 2),
        (REFUSED, "", 1),
        ((*REFUSED, "--arg", "scale_ue8m0=True"), "", 0),
        (("diagnose", "per_token_group_quant", "--arg", "input=bf16[-1]"), "", 2),
        (("diagnose", "per_token_group_quant", "--arg", "input"), "", 2),
        (("diagnose", "per_token_group_quant", "--level", "deep"), "", 2),
        (("diagnose", "nothing"), "", 2),
        (("match", "/nowhere/at/all"), "", 2),
        (("no-such-command",), "", 2),
        (("match", "--limit", "0"), "", 2),
        (("doctor",), "", 0),
        (("--help",), "", 0),
    ],
)
def test_exit_codes(arguments: tuple[str, ...], text: str, code: int) -> None:
    ended = faultbook(*arguments, text=text)
    assert ended.returncode == code, ended.stdout + ended.stderr
    assert "Traceback" not in ended.stderr
    if code == 2:
        assert ended.stdout == ""
        assert ended.stderr


ORDERS = "\x1b]0;owned\x07 \x1b[2J \x9b2J \x7f \u202egnp.exe \u2066 \x08"


def test_what_others_wrote_gives_a_terminal_no_orders(tmp_path: Path) -> None:
    """A log, or a package's sources, could set its title, clear it, or fill its clipboard."""
    package = tmp_path / "package"
    (package / "orders").mkdir(parents=True)
    (package / "pyproject.toml").write_text('[project]\nname = "orders"\nversion = "1.0"\n')
    (package / "orders/__init__.py").write_text(
        f"def f(x):\n    raise ValueError({'wrong dtype of x ' + ORDERS!r})\n", "utf-8"
    )
    data = {"FAULTBOOK_DATA": str(tmp_path / "data")}
    assert faultbook("index", str(package), **data).returncode == 0
    log = f"ValueError: wrong dtype of x {ORDERS}\nKeyError: 'a{ORDERS}'\n"
    found = faultbook("match", text=log, **data)
    assert "wrong dtype of x" in found.stdout
    [identifier, *_] = [
        match["id"] for match in json.loads(faultbook("match", "--json", text=log, **data).stdout)["matches"]
    ]
    explained = faultbook("explain", identifier, **data)
    assert "wrong dtype of x" in explained.stdout
    unknown = faultbook("explain", ORDERS, **data)
    assert "no record has the id" in unknown.stderr
    for shown in (found.stdout, explained.stdout, unknown.stderr):
        assert r"\x1b]0;owned" in shown or "\\x1b]0;owned" in shown
        assert not set(shown) & set("\x1b\x07\x08\x7f\x9b\u202e\u2066")


def test_a_run_of_a_valid_call_passes() -> None:
    ended = faultbook("diagnose", "per_token_group_quant", "--level", "run", "--json")
    assert ended.returncode == 0, ended.stderr
    assert json.loads(ended.stdout)["run"]["implementation"] in ("triton", "reference")


def test_a_run_that_overruns_exits_with_four() -> None:
    large = ("--arg", "input=bf16[60000,7168]", "--level", "run")
    assert faultbook("diagnose", "per_token_group_quant", *large, FAULTBOOK_RUN_TIMEOUT="1").returncode == 4


def test_json_is_what_the_api_answers() -> None:
    matched = answer("match", "-", text=LINE)
    assert matched["matches"][0]["id"] == "402df144293dfbb6"
    assert answer("explain", "402df144293dfbb6")["record"]["slug"].startswith("int32-packed")
    assert answer(*REFUSED)["raised"]["recordId"] == "402df144293dfbb6"
    assert {finding["name"] for finding in answer("doctor")["findings"]} >= {"python", "catalog", "torch"}
    listed = answer("operations")["operations"]
    assert answer("operations", listed[0]["name"])["checks"]


def test_a_folder_of_logs_and_a_spec_file_are_read(tmp_path: Path) -> None:
    (tmp_path / "rank0.log").write_text("fine\n", encoding="utf-8")
    (tmp_path / "rank1.log").write_text(LINE, encoding="utf-8")
    assert answer("match", str(tmp_path))["hasMatch"]
    spec = tmp_path / "spec.json"
    spec.write_text(json.dumps({"arguments": {"input": "bf16[4,256]", "group_size": 96}}), encoding="utf-8")
    found = answer("diagnose", "per_token_group_quant", "--spec", str(spec))
    assert found["raised"]["atCheck"] == "unsupported_group_size"
    repaired = answer("diagnose", "per_token_group_quant", "--spec", str(spec), "--arg", "group_size=64")
    assert repaired["verdict"] == "passed"


def test_doctor_says_what_a_bad_setting_is() -> None:
    ended = faultbook("doctor", FAULTBOOK_PORT="many")
    assert ended.returncode == 2
    assert "FAULTBOOK_PORT" in ended.stderr
