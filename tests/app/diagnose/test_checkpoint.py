"""POST /api/diagnose/checkpoint and `faultbook checkpoint`: files, parts of files, and what is none."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.testclient import TestClient

from app.diagnose.files import inspectors
from app.main import create_app
from app.settings import Settings
from kernels.call import arguments_json
from kernels.checkpoint import Checkpoint, Header
from kernels.comfy_checkpoint import signature as comfy
from kernels.quanto_int8_checkpoint import signature as quanto
from kernels.safetensors_file.signature import HEADER, VALID, entry, written
from kernels.values import Text
from tests.kernels.safetensors_file.files import ACCEPTED, LFS, REFUSED, library

PATH = "/api/diagnose/checkpoint"
BINARY = {"Content-Type": "application/octet-stream"}
COMMAND = Path(sys.executable).with_name("faultbook")


@pytest.fixture(scope="module")
def client() -> Iterator[TestClient]:
    """A service without a worker: nothing here needs one."""
    with TestClient(create_app(Settings(workers=0))) as made:
        yield made


def ask(client: TestClient, data: bytes, **query: Any) -> dict[str, Any]:
    response = client.post(PATH, content=data, params=query, headers=BINARY)
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


def failed(answer: dict[str, Any]) -> list[str]:
    return [check["id"] for check in answer["checks"] if check["status"] == "failed"]


def stored(checkpoint: Checkpoint) -> bytes:
    """A whole file of this description, its data zero but for texts."""
    header: dict[str, Any] = {"__metadata__": dict(checkpoint.metadata)}
    data = b""
    for name, described in checkpoint.tensors.items():
        held = described.values.encoded() if isinstance(described.values, Text) else bytes(described.nbytes)
        header[name] = entry(described.dtype, list(described.shape), len(data), len(data) + len(held))
        data += held
    return written(header) + data


@pytest.mark.parametrize("name", REFUSED)
def test_a_file_that_cannot_be_opened_is_rejected_in_the_librarys_words(
    client: TestClient, name: str
) -> None:
    data, check, mention = REFUSED[name]
    answer = ask(client, data, size=len(data))
    assert (answer["operation"], answer["verdict"], answer["level"]) == (
        "safetensors_file",
        "rejected",
        "checks",
    )
    assert answer["raised"]["message"] == library(data)
    assert (answer["raised"]["errorClass"], answer["raised"]["atCheck"]) == ("SafetensorError", check)
    assert client.get(f"/api/errors/{answer['raised']['recordId']}").status_code == 200
    [row] = [row for row in answer["checks"] if row["id"] == check]
    assert mention in row["reason"]


@pytest.mark.parametrize("name", ACCEPTED)
def test_a_file_that_declares_nothing_passes_and_says_what_follows(client: TestClient, name: str) -> None:
    answer = ask(client, ACCEPTED[name], size=len(ACCEPTED[name]))
    assert (answer["operation"], answer["verdict"], answer["raised"]) == ("safetensors_file", "passed", None)
    assert "declares no quantisation" in answer["detail"]
    assert "quanto_int8_checkpoint" in answer["detail"]


def test_the_header_alone_is_enough_and_the_size_is_asked_for(client: TestClient) -> None:
    data = VALID.filename.data
    answer = ask(client, data[:-12])
    assert answer["verdict"] == "passed"
    assert any(f"{len(data):,} bytes" in line for line in answer["assumed"])
    assert ask(client, data[:-12], size=len(data))["assumed"] == []
    short = ask(client, data[:-12], size=len(data) - 1)
    assert failed(short) == ["metadata_incomplete_buffer"]


def test_a_part_of_a_header_is_no_error_of_upstreams(client: TestClient) -> None:
    answer = ask(client, VALID.filename.data[:40])
    assert (answer["verdict"], answer["raised"]) == ("rejected", None)
    [row] = [row for row in answer["checks"] if row["status"] == "failed"]
    assert (row["id"], row["origin"]) == ("header_not_sent", "beyond")
    assert "send 70 bytes more" in row["message"]
    assert "invalid header length" in row["reason"]


def test_a_quanto_file_is_inspected_as_such(client: TestClient) -> None:
    sound = ask(client, stored(quanto.VALID.checkpoint))
    assert (sound["operation"], sound["verdict"]) == ("quanto_int8_checkpoint", "passed")
    broken = quanto.VALID.with_map({quanto.PREFIX: {"weights": "qint4", "activations": "none"}}).checkpoint
    data = stored(broken)
    answer = ask(client, data, size=len(data))
    assert (answer["operation"], answer["verdict"]) == ("quanto_int8_checkpoint", "rejected")
    assert answer["raised"]["message"] == f"Unsupported Quanto weight type for {quanto.PREFIX!r}: 'qint4'"
    # The same as describing the file in JSON.
    described = client.post(
        "/api/diagnose",
        json={
            "operation": answer["operation"],
            "arguments": {"checkpoint": broken.to_json()},
            "level": "checks",
        },
    ).json()
    assert described["checks"] == answer["checks"]
    assert described["fixes"] == answer["fixes"]


def test_a_comfy_file_is_inspected_as_such_with_the_markers_that_were_sent(client: TestClient) -> None:
    sound = ask(client, stored(comfy.VALID.checkpoint))
    assert (sound["operation"], sound["verdict"]) == ("comfy_checkpoint", "passed")
    marker = b'{"format": "nf4"}'
    header = {
        "fc.weight": entry("U8", [2, 2], 0, 4),
        "fc.weight_scale": entry("F32", [], 4, 8),
        "fc.comfy_quant": entry("U8", [len(marker)], 8, 8 + len(marker)),
    }
    data = written(header, 8) + marker
    answer = ask(client, data, size=len(data))
    assert answer["operation"] == "comfy_checkpoint"
    assert answer["raised"]["message"] == "Unsupported Comfy quantization format(s): nf4"


def test_packed_tensors_without_their_metadata_are_noticed(client: TestClient) -> None:
    bare = quanto.VALID.checkpoint.without_metadata(*quanto.VALID.checkpoint.metadata)
    answer = ask(client, stored(bare))
    assert answer["operation"] == "quanto_int8_checkpoint"
    assert failed(answer)[0] == "not_quanto"


def test_a_cut_quanto_file_cannot_be_opened_first(client: TestClient) -> None:
    data = stored(quanto.VALID.checkpoint)
    answer = ask(client, data[:-3], size=len(data) - 3)
    assert failed(answer) == ["metadata_incomplete_buffer"]


def test_the_operation_can_be_chosen(client: TestClient) -> None:
    plain = ask(client, VALID.filename.data, operation="quanto_int8_checkpoint")
    assert failed(plain)[0] == "not_quanto"
    packed = ask(client, stored(quanto.VALID.checkpoint), operation="safetensors_file")
    assert (packed["operation"], packed["verdict"]) == ("safetensors_file", "passed")
    assert ask(client, LFS, operation="quanto_int8_checkpoint")["operation"] == "safetensors_file"
    assert {"quanto_int8_checkpoint", "safetensors_file"} <= set(inspectors())
    assert "per_token_group_quant" not in inspectors()


@pytest.mark.parametrize(
    ("query", "status", "pointer"),
    [
        ({"operation": "nothing"}, 404, None),
        ({"operation": "per_token_group_quant"}, 422, "/operation"),
        ({"size": 3}, 422, "/size"),
        ({"size": -1}, 422, "/size"),
        ({"size": "large"}, 422, "/size"),
        ({"size": 2**63}, 422, "/size"),
    ],
)
def test_bad_queries_are_problems(
    client: TestClient, query: dict[str, Any], status: int, pointer: str | None
) -> None:
    response = client.post(PATH, content=VALID.filename.data, params=query, headers=BINARY)
    assert response.status_code == status
    assert response.headers["content-type"] == "application/problem+json"
    assert [fault["pointer"] for fault in response.json().get("errors", [])] == ([pointer] if pointer else [])


def test_bodies_of_another_type_or_beyond_the_limit_are_problems(client: TestClient) -> None:
    other = client.post(PATH, content=b"{}", headers={"Content-Type": "text/plain"})
    assert other.status_code == 415
    large = client.post(PATH, content=bytes(17 * 1024 * 1024), headers=BINARY)
    assert large.status_code == 413
    assert client.get(PATH).status_code == 405


def test_an_empty_body_is_an_empty_file(client: TestClient) -> None:
    assert failed(ask(client, b"")) == ["header_too_small"]


def test_a_repeated_name_is_told_whatever_the_format(client: TestClient) -> None:
    data = ACCEPTED["repeated name"]
    answer = ask(client, data)
    assert answer["verdict"] == "passed"
    assert any("more than once" in line for line in answer["assumed"])


def test_the_described_bytes_are_an_argument_like_any_other(client: TestClient) -> None:
    for name in ("lfs pointer", "gap"):
        data, check, _ = REFUSED[name]
        call = VALID.with_file(data, len(data))
        body = {"operation": "safetensors_file", "arguments": arguments_json(call), "level": "checks"}
        assert failed(client.post("/api/diagnose", json=body).json()) == [check]
    wrong = {"operation": "safetensors_file", "arguments": {"filename": {"base64": "?"}}}
    response = client.post("/api/diagnose", json=wrong)
    assert response.status_code == 422
    assert [fault["pointer"] for fault in response.json()["errors"]] == ["/arguments/filename/base64"]


def sent(*files: bytes) -> dict[str, Any]:
    """Files of one component as a request's body."""
    encoded = ({"base64": base64.b64encode(data).decode(), "size": len(data)} for data in files)
    return {"files": {f"model-{place}.safetensors": item for place, item in enumerate(encoded, start=1)}}


def ask_all(client: TestClient, *files: bytes, **query: Any) -> dict[str, Any]:
    response = client.post(PATH, json=sent(*files), params=query)
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


HALVES = [
    comfy.VALID.checkpoint.without_tensors(f"{comfy.PREFIX}.weight_scale"),
    Checkpoint({}, {f"{comfy.PREFIX}.weight_scale": comfy.nvfp4(128, 64)["weight_scale"]}),
]


def test_several_files_are_read_as_one_component(client: TestClient) -> None:
    files = [stored(half) for half in HALVES]
    whole = ask_all(client, *files)
    assert (whole["operation"], whole["verdict"], failed(whole)) == ("comfy_checkpoint", "passed", [])
    turned = ask_all(client, *reversed(files))
    assert (turned["operation"], turned["verdict"]) == ("comfy_checkpoint", "passed")
    assert failed(ask(client, files[0])) == ["tensors_missing"]
    twice = ask_all(client, files[0], *files)
    assert failed(twice) == ["tensor_in_two_files"]
    assert twice["verdict"] == "passed"


def test_the_first_file_that_cannot_be_opened_is_named(client: TestClient) -> None:
    answer = ask_all(client, stored(HALVES[0]), LFS)
    assert (answer["operation"], failed(answer)) == ("safetensors_file", ["header_too_large"])
    assert answer["assumed"] == ["this is about 'model-2.safetensors', one of 2 files"]


def test_an_operation_of_one_file_is_asked_about_the_file_that_it_claims(client: TestClient) -> None:
    answer = ask_all(client, VALID.filename.data, stored(quanto.VALID.checkpoint))
    assert (answer["operation"], answer["verdict"]) == ("quanto_int8_checkpoint", "passed")
    assert any("this is about 'model-2.safetensors'" in line for line in answer["assumed"])
    plain = ask_all(client, VALID.filename.data, VALID.filename.data)
    assert (plain["operation"], plain["verdict"]) == ("safetensors_file", "passed")
    assert plain["detail"].startswith("Each of 2 files can be opened: ")


@pytest.mark.parametrize(
    ("body", "pointers"),
    [
        ({}, ["/files"]),
        ({"files": {}}, ["/files"]),
        ({"files": [], "more": 1}, ["/files"]),
        ({"files": {"a/b": {"base64": "?"}, "c": {"size": 3}}}, ["/files/a~1b/base64", "/files/c/base64"]),
    ],
)
def test_files_that_cannot_be_read_are_problems(
    client: TestClient, body: dict[str, Any], pointers: list[str]
) -> None:
    response = client.post(PATH, json=body)
    assert response.status_code == 422
    assert [fault["pointer"] for fault in response.json()["errors"]] == pointers


def test_a_packed_weight_without_any_marker_is_noticed(client: TestClient) -> None:
    bare = comfy.VALID.checkpoint.without_tensors(f"{comfy.PREFIX}.comfy_quant")
    answer = ask(client, stored(bare))
    assert (answer["operation"], failed(answer)) == ("comfy_checkpoint", ["markers_missing"])
    one_byte = Checkpoint({}, {"fc.weight": Header("F8_E4M3", (4, 4))})
    assert ask(client, stored(one_byte))["operation"] == "safetensors_file"


def test_the_address_is_documented(client: TestClient) -> None:
    described = client.get("/openapi.json").json()["paths"][PATH]["post"]
    assert list(described["requestBody"]["content"]) == ["application/octet-stream", "application/json"]
    assert {parameter["name"] for parameter in described["parameters"]} == {"operation", "size"}
    assert {"200", "404", "413", "415", "422"} <= set(described["responses"])


FRAGMENTS = st.sampled_from(
    [
        VALID.filename.data,
        stored(quanto.VALID.checkpoint),
        written(json.dumps(HEADER)),
        LFS,
        b"PK\x03\x04",
        b"{",
        bytes(16),
    ]
)


@settings(max_examples=150, deadline=None)
@given(
    data=st.one_of(
        st.binary(max_size=300),
        st.binary(max_size=200).map(written),
        st.tuples(FRAGMENTS, st.integers(0, 600), st.binary(max_size=8)).map(
            lambda made: made[0][: made[1]] + made[2] + made[0][made[1] + len(made[2]) :]
        ),
    ),
    more=st.one_of(st.none(), st.integers(0, 2**62)),
)
def test_no_bytes_are_the_services_mistake(client: TestClient, data: bytes, more: int | None) -> None:
    query = {} if more is None else {"size": len(data) + more}
    answer = ask(client, data, **query)
    assert answer["verdict"] in ("passed", "rejected")
    if more == 0 and library(data) is not None:
        assert answer["raised"]["message"] == library(data)


def test_a_run_opens_the_file_with_the_library() -> None:
    with TestClient(create_app(Settings(device="cpu", run_timeout=30))) as client:
        for name, verdict in (("gap", "rejected"), ("data cut", "rejected"), ("latin-1", "rejected")):
            data, check, _ = REFUSED[name]
            body = {
                "operation": "safetensors_file",
                "arguments": arguments_json(VALID.with_file(data, len(data))),
            }
            answer = client.post("/api/diagnose", json={**body, "level": "run"}).json()
            assert (answer["verdict"], answer["disagreement"]) == (verdict, None)
            assert answer["raised"]["atCheck"] == check
            assert answer["raised"]["message"] == library(data)
        sound = {"operation": "safetensors_file", "arguments": arguments_json(VALID), "level": "run"}
        answer = client.post("/api/diagnose", json=sound).json()
        assert (answer["verdict"], answer["run"]["implementation"]) == ("passed", "library")


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [COMMAND, "checkpoint", *arguments], capture_output=True, text=True, timeout=120, check=False
    )


def test_the_command_says_the_same(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(VALID.filename.data)
    passed = command(str(path))
    assert (passed.returncode, passed.stdout.count("declares no quantisation")) == (0, 1)
    path.write_bytes(LFS)
    refused = command(str(path), "--json")
    assert refused.returncode == 1
    assert json.loads(refused.stdout)["raised"]["atCheck"] == "header_too_large"
    paths = [tmp_path / f"{place}.safetensors" for place in range(2)]
    for half, file in zip(HALVES, paths, strict=True):
        file.write_bytes(stored(half))
    several = command(*map(str, paths), "--json")
    assert (several.returncode, json.loads(several.stdout)["operation"]) == (0, "comfy_checkpoint")
    assert command(str(paths[0])).returncode == 1
    assert command(str(tmp_path / "absent")).returncode == 2
    assert command(str(tmp_path)).returncode == 2
    assert command(str(path), "--operation", "nothing").returncode == 2
