"""Team notes: whom they are about, what they change, and what they never change."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from starlette.testclient import TestClient
from typer.testing import CliRunner

from app.cli import cli
from app.main import create_app
from app.settings import Settings
from catalog.overlay import Overlay, parse
from catalog.record import Record
from tests.app.test_cli import faultbook

SCALES = "3018da578aab5d5a"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / f"{SCALES}.md").write_text(
        "owner: kernels team\nrunbook: https://runbooks.example.org/scales\n"
        "wording: our fork needs float32 scales here, not {dtype}\n\n"
        "Cast them in the loader.\n\n<b>Not</b> later.\n"
    )
    (tmp_path / "fp8.md").write_text("pattern: kv_scales .* fp32\nfixed-in: 0.6\n\nAn old friend.\n")
    (tmp_path / "lost.md").write_text("nobody knows what this is about")
    (tmp_path / "bad.md").write_text("pattern: (\n\nx")
    return tmp_path


@pytest.fixture
def served(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    data = tmp_path_factory.mktemp("data")
    with TestClient(create_app(Settings(data=data, overlay=str(folder), workers=0))) as client:
        yield client


def test_notes_are_found_by_id_and_by_pattern(folder: Path) -> None:
    overlay = Overlay(folder)
    about = overlay.about(SCALES, "kv_scales must be fp32, got {kv_scales.dtype}")
    assert [note.source for note in about] == [f"{SCALES}.md", "fp8.md"]
    assert about[0].known == {"owner": "kernels team", "runbook": "https://runbooks.example.org/scales"}
    assert [note.source for note in overlay.about("0" * 16, "something else")] == []
    assert len(overlay.problems) == 2


def test_the_command_says_once_what_it_leaves_out(folder: Path) -> None:
    ended = faultbook("explain", SCALES, FAULTBOOK_OVERLAY=str(folder))
    said = ended.stderr.strip().splitlines()
    assert [line.partition(": ")[2] for line in said] == [
        "bad.md: pattern: missing ): (",
        "lost.md: it names no record: by its file name, an id or a pattern",
    ]


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.md")
    assert Overlay(tmp_path).problems == ["pipe.md: it is no file"]


@pytest.mark.parametrize("content", ["id: xyz\n\ntext", "wording: x\npattern: y\n\n", "text alone", ""])
def test_a_file_about_no_record_is_refused(content: str) -> None:
    with pytest.raises(ValueError, match="record"):
        parse("a.md", content)


def test_notes_are_beside_the_record_and_never_in_it(served: TestClient) -> None:
    full = served.get(f"/api/errors/{SCALES}?view=full").json()["record"]
    notes = full.pop("x")["notes"]
    assert [note["fixedIn"] for note in notes] == [None, "0.6"]
    strict = served.get(f"/api/errors/{SCALES}").json()["record"]
    assert strict == full
    Record.from_json(strict)
    page = served.get(f"/errors/{SCALES}/kv-scales-must-be-fp32-got-kv-scales-dtype").text
    assert "Cast them in the loader." in page
    assert "&lt;b&gt;Not&lt;/b&gt;" in page
    assert 'href="https://runbooks.example.org/scales"' in page
    assert "our fork needs float32 scales here" in page


def test_the_command_line_shows_notes(
    folder: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAULTBOOK_DATA", str(tmp_path_factory.mktemp("data")))
    monkeypatch.setenv("FAULTBOOK_OVERLAY", str(folder))
    shown = CliRunner().invoke(cli, ["explain", SCALES]).output
    for told in ("Cast them in the loader", "kernels team", "fixed-in: 0.6", "our fork needs float32 scales"):
        assert told in shown, told


def test_the_command_shows_notes_too(folder: Path) -> None:
    shown = faultbook("explain", SCALES, FAULTBOOK_OVERLAY=str(folder)).stdout
    assert "## Team note\n\nCast them in the loader." in shown
    assert "\\<b\\>Not\\</b\\> later." in shown
    assert "- owner: kernels team\n- runbook: https://runbooks.example.org/scales\n" in shown
    assert f"- from `{SCALES}.md`" in shown
    assert "- fixed-in: 0.6" in shown
    assert "Team note" not in faultbook("explain", SCALES).stdout


def test_a_forks_wording_finds_the_record(served: TestClient) -> None:
    text = "RuntimeError: our fork needs float32 scales here, not torch.bfloat16"
    answer = served.post("/api/match", content=text, headers={"Content-Type": "text/plain"}).json()
    assert answer["hasMatch"]
    [found] = answer["matches"]
    assert (found["id"], [item["value"] for item in found["captures"]]) == (SCALES, ["torch.bfloat16"])
    assert found["errorMessage"] == "kv_scales must be fp32, got {kv_scales.dtype}"
