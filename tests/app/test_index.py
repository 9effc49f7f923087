"""`faultbook index`, and what the service makes of it."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import pytest
from starlette.testclient import TestClient
from typer.testing import CliRunner

from app import indexing
from app.cli import cli
from app.environment import findings
from app.main import create_app
from app.settings import Settings
from catalog.snapshots.shelf import Shelf

CODE = """
def charge(x):
    if x > 3:
        raise ValueError(f"the flux capacitor of {x.name!r} holds {x.size} units")
    logger.warning("the flux capacitor of %s is getting warm", x)
    assert x.shape[0] % 16 == 0
"""
TEXT = "ValueError: the flux capacitor of 'a' holds 7 units"


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    source = folder / "delorean"
    source.mkdir()
    (source / "engine.py").write_text(CODE)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FAULTBOOK_DATA", str(folder))
        done = CliRunner().invoke(cli, ["index", str(source), "--upstream", "brown/delorean", "--jobs", "1"])
    assert done.exit_code == 0, done.output
    assert "3 records of brown/delorean" in done.output
    return folder


@pytest.fixture(scope="module")
def served(data: Path) -> Iterator[TestClient]:
    with TestClient(create_app(Settings(data=data, workers=0))) as client:
        yield client


def test_a_scanned_record_is_found_and_served(served: TestClient) -> None:
    answer = served.post("/api/match", content=TEXT, headers={"Content-Type": "text/plain"}).json()
    [found] = answer["matches"]
    assert answer["hasMatch"]
    assert (found["repo"], found["operation"], found["spec"]) == ("brown/delorean", None, None)
    assert [(item["name"], item["value"]) for item in found["captures"]] == [("x.name", "a"), ("x.size", "7")]
    body = served.get(f"/api/errors/{found['id']}?view=full").json()
    assert body["record"]["triggerScenarios"] == "In `charge`, when `x > 3`."
    assert "flux capacitor" in body["record"]["sourceCode"]
    assert body["record"]["x"]["provenance"]["errorMessage"] == "extracted"
    assert body["datasetVersion"] == answer["datasetVersion"]
    markdown = served.get(f"/api/errors/{found['id']}.md")
    assert "engine.py:4" in markdown.text
    [searched, *_] = served.get("/api/search", params={"q": TEXT.partition(": ")[2]}).json()["matches"]
    assert searched["id"] == found["id"]


def test_every_answer_names_the_same_version_of_the_data(
    served: TestClient, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    call = {"operation": "per_token_group_quant", "arguments": {}, "level": "checks"}
    sweep = {**call, "vary": {"group_size": [16, 128]}}
    answers = [
        served.get("/api/repos").json(),
        served.post("/api/diagnose", json=call).json(),
        served.post("/api/diagnose/sweep", json={key: sweep[key] for key in sweep if key != "level"}).json(),
    ]
    monkeypatch.setenv("FAULTBOOK_DATA", str(data))
    done = CliRunner().invoke(cli, ["diagnose", "per_token_group_quant", "--level", "checks", "--json"])
    answers.append(json.loads(done.output))
    assert len({answer["datasetVersion"] for answer in answers}) == 1


def test_a_log_line_below_error_level_is_no_match(served: TestClient) -> None:
    text = "WARNING: the flux capacitor of 88 is getting warm"
    answer = served.post("/api/match", content=text, headers={"Content-Type": "text/plain"}).json()
    assert not answer["hasMatch"]
    assert answer["matches"][0]["repo"] == "brown/delorean"


def test_an_assertion_without_words_is_found_by_its_frame(served: TestClient) -> None:
    text = 'Traceback (most recent call last):\n  File "/x/engine.py", line 6, in charge\nAssertionError'
    answer = served.post("/api/match", content=text, headers={"Content-Type": "text/plain"}).json()
    assert [item["errorMessage"] for item in answer["matches"]] == ["assert x.shape[0] % 16 == 0"]


def test_pages_lists_and_the_manifest_have_it(served: TestClient, data: Path) -> None:
    [listed] = served.get("/api/errors", params={"q": "flux units"}).json()["errors"]
    page = served.get(f"/errors/{listed['id']}")
    assert page.status_code == 200
    assert "flux capacitor" in page.text
    assert served.get("/errors", params={"repo": "brown/delorean"}).text.count("/errors/") >= 3
    assert "brown/delorean" in served.get("/").text
    assert {"repo": "brown/delorean", "errorCount": 3}.items() <= next(
        item.items() for item in served.get("/api/repos").json()["repos"] if item["repo"] == "brown/delorean"
    )
    manifest = served.get("/data/manifest.json").json()
    [held] = manifest["files"]
    assert (held["package"], held["records"]) == ("delorean", 3)
    assert (data / "snapshots" / held["path"]).stat().st_size == held["bytes"]


def test_a_scanned_record_has_no_example_to_run(served: TestClient) -> None:
    [listed] = served.get("/api/errors", params={"q": "flux units"}).json()["errors"]
    assert served.post(f"/api/errors/{listed['id']}/reproduce").status_code in (404, 409)


def test_the_command_line_answers_from_it(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAULTBOOK_DATA", str(data))
    runner = CliRunner()
    done = runner.invoke(cli, ["match", "--json"], input=TEXT)
    assert done.exit_code == 0
    [found] = json.loads(done.output)["matches"]
    assert "flux capacitor" in runner.invoke(cli, ["explain", found["id"]]).output


def test_what_cannot_be_indexed_is_said(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAULTBOOK_DATA", str(data))
    for nothing in ("no/such/place", "", " ", "a package>=", "missing.whl"):
        assert CliRunner().invoke(cli, ["index", nothing]).exit_code == 2, nothing
    assert CliRunner().invoke(cli, ["index", "x", "--macro", "not a name"]).exit_code == 2


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder with two versions of one package."""
    folder = tmp_path_factory.mktemp("two")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FAULTBOOK_DATA", str(folder / "data"))
        for version, word in (("1.0", "units"), ("1.1", "pieces")):
            source = folder / version
            source.mkdir()
            (source / "pyproject.toml").write_text(f'[project]\nname = "delorean"\nversion = "{version}"\n')
            (source / "engine.py").write_text(CODE.replace("units", word))
            assert CliRunner().invoke(cli, ["index", str(source), "--jobs", "1"]).exit_code == 0
    return folder / "data"


def test_versions_are_compared(two: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with TestClient(create_app(Settings(data=two, workers=0))) as client:
        answer = client.get("/api/diff", params={"package": "delorean", "from": "1.0", "to": "1.1"}).json()
        [change] = answer["changed"]
        assert change["errorMessage"].endswith("pieces")
        assert change["before"]["errorMessage"].endswith("units")
        assert (answer["equal"], answer["appeared"], answer["vanished"]) == (2, [], [])
        missing = client.get("/api/diff", params={"package": "delorean", "from": "1.0", "to": "2"})
        assert missing.status_code == 404
        assert "1.1" in missing.json()["detail"]
    monkeypatch.setenv("FAULTBOOK_DATA", str(two))
    done = CliRunner().invoke(cli, ["diff", "delorean==1.0", "delorean==1.1"])
    assert done.exit_code == 0
    assert "was: the flux capacitor of {x.name!r} holds {x.size} units" in done.output
    assert CliRunner().invoke(cli, ["diff", "delorean==1.0", "other==1"]).exit_code == 2


def test_a_bundle_goes_to_another_host(two: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAULTBOOK_DATA", str(two))
    file = str(tmp_path / "bundle.tar")
    assert CliRunner().invoke(cli, ["bundle", "export", file]).exit_code == 0
    monkeypatch.setenv("FAULTBOOK_DATA", str(tmp_path / "elsewhere"))
    done = CliRunner().invoke(cli, ["bundle", "import", file])
    assert done.exit_code == 0
    assert done.output.count("delorean") >= 2
    assert CliRunner().invoke(cli, ["match"], input=TEXT).exit_code == 0


def test_serving_indexes_what_is_installed_and_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert indexing.missing(tmp_path, ["jinja2", "no-such-package"]) == ["jinja2"]
    with indexing.indexing(tmp_path, ["jinja2", "no-such-package"]):
        deadline = monotonic() + 60
        while not Shelf(tmp_path).held() and monotonic() < deadline:
            sleep(0.05)
    assert [held.package for held in Shelf(tmp_path).held()] == ["jinja2"]
    assert indexing.missing(tmp_path, ["jinja2"]) == []


def test_what_fails_in_the_background_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("no folder")
    with indexing.indexing(blocked, ["jinja2"]):
        said = ""
        deadline = monotonic() + 60
        while "ended with code" not in said and monotonic() < deadline:
            said += capfd.readouterr().err
            sleep(0.05)
    assert "indexing: " in said
    assert "ended with code 1" in said


def test_indexing_that_is_killed_is_said_and_goes_on_at_the_next_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    started: list[subprocess.Popen[str]] = []

    class Known(subprocess.Popen[str]):
        def __init__(self, *arguments: Any, **named: Any) -> None:
            super().__init__(*arguments, **named)
            started.append(self)

    monkeypatch.setattr(subprocess, "Popen", Known)
    with indexing.indexing(tmp_path, ["jinja2"]):
        started[0].kill()
        said = ""
        deadline = monotonic() + 60
        while "ended by signal 9" not in said and monotonic() < deadline:
            said += capfd.readouterr().err
            sleep(0.05)
    assert "indexing was ended by signal 9" in said
    assert indexing.missing(tmp_path, ["jinja2"]) == ["jinja2"]
    with indexing.indexing(tmp_path, ["jinja2"]):
        pass
    assert "signal" not in capfd.readouterr().err


def test_doctor_compares_checksums(data: Path, tmp_path: Path) -> None:
    def found(folder: Path) -> tuple[str, str]:
        [finding] = [item for item in findings(Settings(data=folder)) if item.name == "snapshots"]
        return finding.state, finding.detail

    assert found(tmp_path)[0] == "missing"
    assert found(data) == ("ok", "3 records: delorean " + Shelf(data).held()[0].version)
    copy = tmp_path / "snapshots"
    shutil.copytree(data / "snapshots", copy)
    [file] = copy.glob("*.sqlite")
    file.write_bytes(file.read_bytes()[:-1] + b"x")
    assert found(tmp_path)[0] == "broken"
