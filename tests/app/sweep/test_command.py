"""`faultbook sweep`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from app.cli import cli

RUN = CliRunner()


def test_regions_as_text() -> None:
    result = RUN.invoke(cli, ["sweep", "per_token_group_quant", "--vary", "group_size=15:17"])
    assert result.exit_code == 1
    assert "1 of 3 calls pass" in result.stdout
    assert "group_size = 16: passes" in result.stdout
    assert "group_size = 17: unsupported_group_size" in result.stdout


def test_the_apis_body_and_the_exit_code_of_calls_that_pass(tmp_path: Path) -> None:
    spec = tmp_path / "spec.json"
    spec.write_text(
        json.dumps({"operation": "per_token_group_quant", "arguments": {"group_size": 64}, "level": "run"})
    )
    vary = ["--vary", "input.dtype=bfloat16,float16", "--vary", "input.shape=[[4,256],[2,512]]"]
    result = RUN.invoke(cli, ["sweep", "per_token_group_quant", "--spec", str(spec), *vary, "--json"])
    assert result.exit_code == 0, result.output
    answer = json.loads(result.stdout)
    assert answer["passing"] == len(answer["points"]) == 4
    assert [region["points"] for region in answer["regions"]] == [4]


@pytest.mark.parametrize("vary", [["group_size"], ["group_size="], ["group_size=1", "group_size=2"]])
def test_wrong_usage(vary: list[str]) -> None:
    options = [item for text in vary for item in ("--vary", text)]
    assert RUN.invoke(cli, ["sweep", "per_token_group_quant", *options]).exit_code == 2
