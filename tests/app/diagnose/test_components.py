"""Files of one component: what is in two of them, what is missing, what their index says, data not sent."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from app.diagnose.components import NoIndex, read_index, told_of
from app.main import create_app
from app.settings import Settings
from kernels.checkpoint import Checkpoint, Header
from kernels.safetensors_file.signature import entry, written

PATH = "/api/diagnose/checkpoint"
COMMAND = Path(sys.executable).with_name("faultbook")


def holding(*names: str) -> Checkpoint:
    return Checkpoint({}, {name: Header("F32", (2,)) for name in names})


def stored(*names: str) -> bytes:
    header = {name: entry("F32", [2], 8 * at, 8 * at + 8) for at, name in enumerate(names)}
    return written(header, 8 * len(names))


@pytest.fixture(scope="module")
def client() -> Iterator[TestClient]:
    with TestClient(create_app(Settings(workers=0))) as made:
        yield made


def asked(client: TestClient, files: dict[str, bytes]) -> dict[str, Any]:
    listed = {
        name: {"base64": base64.b64encode(data).decode(), "size": len(data)} for name, data in files.items()
    }
    response = client.post(PATH, json={"files": listed})
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


def test_a_tensor_in_two_plain_files_is_told(client: TestClient) -> None:
    answer = asked(client, {"a.safetensors": stored("w", "b"), "b.safetensors": stored("w")})
    assert "1 tensor is in more than one file, such as 'w' in 'a.safetensors' and" in answer["detail"]
    apart = asked(client, {"a.safetensors": stored("w"), "b.safetensors": stored("b")})
    assert "more than one file" not in apart["detail"]


def test_files_of_a_series_that_were_not_given_are_told(client: TestClient) -> None:
    name = "model-{:05}-of-00004.safetensors"
    answer = asked(client, {name.format(1): stored("a"), name.format(3): stored("b")})
    assert "2 of the 4 files of 'model' were not given" in answer["detail"]
    whole = asked(client, {name.format(at): stored(f"w{at}") for at in range(1, 5)})
    assert "not given" not in whole["detail"]


def test_an_index_is_held_against_the_files(client: TestClient) -> None:
    index = {"weight_map": {"a": "1.safetensors", "b": "1.safetensors", "c": "2.safetensors"}}
    answer = asked(
        client,
        {"1.safetensors": stored("a", "x"), "model.safetensors.index.json": json.dumps(index).encode()},
    )
    assert answer["operation"] == "safetensors_file"
    for told in (
        "1 tensor is missing from the file that the index names, such as 'b' from '1.safetensors'",
        "1 tensor is not in the index, such as 'x'",
        "1 file of the index not given: '2.safetensors'",
    ):
        assert told in answer["detail"]


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b'{"weight_map": {"a": 1}}', b"[" * 100_000])
def test_what_is_no_index_is_refused(client: TestClient, data: bytes) -> None:
    with pytest.raises(NoIndex):
        read_index(data)
    encoded = {"base64": base64.b64encode(data).decode()}
    body = {"files": {"a.safetensors": base64.b64encode(stored("a")).decode(), "b.index.json": encoded}}
    response = client.post(PATH, json=body)
    assert response.status_code == 422
    assert [fault["pointer"] for fault in response.json()["errors"]] == ["/files/b.index.json"]


def test_an_index_alone_is_refused(client: TestClient) -> None:
    encoded = base64.b64encode(b'{"weight_map": {}}').decode()
    assert client.post(PATH, json={"files": {"b.index.json": encoded}}).status_code == 422


def test_a_file_named_twice_is_refused_by_its_name(client: TestClient) -> None:
    one = json.dumps(base64.b64encode(stored("a")).decode())
    body = f'{{"files": {{"a/b": {one}, "c": {one}, "a/b": {one}}}}}'
    response = client.post(PATH, content=body, headers={"Content-Type": "application/json"})
    assert response.status_code == 422
    assert response.json()["errors"] == [{"pointer": "/files/a~1b", "detail": "named more than once"}]


def test_a_file_cut_short_says_that_its_data_was_not_checked(client: TestClient) -> None:
    whole = stored("a", "b")
    binary = {"Content-Type": "application/octet-stream"}
    cut = client.post(PATH, content=whole[:-4], headers=binary).json()
    assert (cut["verdict"], [row for row in cut["checks"] if row["status"] == "failed"]) == ("passed", [])
    assert (
        f"of the {len(whole):,} bytes that its header speaks of {len(whole) - 4:,} were sent" in cut["detail"]
    )
    assert "data was not checked" in cut["detail"]
    sized = client.post(PATH, content=whole[:-4], params={"size": len(whole) - 4}, headers=binary).json()
    assert sized["verdict"] == "rejected"
    complete = client.post(PATH, content=whole, headers=binary).json()
    assert "not checked" not in complete["detail"]
    longer = client.post(PATH, content=whole + b"x", headers=binary).json()
    assert longer["raised"]["message"].endswith("incomplete metadata, file not fully covered")


def test_many_names_are_told_by_the_first(client: TestClient) -> None:
    names = [f"w{at}" for at in range(50)]
    [told] = told_of({"a": holding(*names), "b": holding(*names)}, None)
    assert told.startswith("50 tensors are in more than one file, such as 'w0' in 'a' and 'b'")
    [absent] = told_of({"a": holding("x")}, {"x": "a", **{f"y{at}": f"shard{at}" for at in range(9)}})
    assert absent == "9 files of the index not given: 'shard0', 'shard1', 'shard2' …"


def test_the_command_reads_an_index_as_a_whole(tmp_path: Path) -> None:
    (tmp_path / "1.safetensors").write_bytes(stored("a"))
    index = {"weight_map": {"a": "1.safetensors", "b": "2.safetensors"}, "metadata": {"pad": "x" * 200_000}}
    (tmp_path / "model.index.json").write_text(json.dumps(index))
    done = subprocess.run(
        [COMMAND, "checkpoint", "1.safetensors", "model.index.json", "--json"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "1 file of the index not given: '2.safetensors'" in json.loads(done.stdout)["detail"]
