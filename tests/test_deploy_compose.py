"""docker-compose.yml as an engine gets it: each profile rendered by podman-compose and checked against the
Compose specification, and what the engine is then told to build and to start.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from functools import cache
from importlib.resources import files
from pathlib import Path

import pytest
import yaml
from jsonschema import Draft202012Validator

from tests.composing import FILE, PROFILES, REACHES, REMOTE, ROOT, Compose, arguments_of

DOCKERFILE = (ROOT / "Dockerfile").read_text("utf-8")
DATA = "/var/lib/faultbook"
USER = "10001:10001"

EVERY = [(profile, service) for profile in PROFILES for service in sorted(PROFILES[profile])]
"""(profile, service) of all of them."""


@pytest.fixture(scope="module")
def compose(tmp_path_factory: pytest.TempPathFactory) -> Compose:
    return Compose(tmp_path_factory.mktemp("compose"))


# --- the file


@cache
def specification() -> Draft202012Validator:
    """As the check of `make check` has it, of the version that it is pinned to."""
    file = files("check_jsonschema") / "builtin_schemas/vendor/compose-spec.json"
    return Draft202012Validator(json.loads(file.read_text("utf-8")))


def faults(text: str) -> list[str]:
    return [error.message for error in specification().iter_errors(yaml.safe_load(text))]


@pytest.mark.parametrize("profile", PROFILES)
def test_each_profile_is_a_compose_file(compose: Compose, profile: str) -> None:
    text = compose.rendered(profile)
    assert "${" not in text, "everything is filled in"
    assert faults(text) == []
    [wrong, *_] = faults(text.replace("read_only: true", "readonly: true"))
    assert "'readonly' was unexpected" in wrong


@pytest.mark.parametrize("profile", ["cluster", "cluster-cpu"])
def test_so_is_a_cluster_of_many_hosts(compose: Compose, profile: str) -> None:
    assert faults(compose.rendered(profile, FILE, REMOTE, **REACHES)) == []


@pytest.mark.parametrize("profile", PROFILES)
def test_each_profile_starts_its_own(compose: Compose, profile: str) -> None:
    assert compose.services(profile).keys() == PROFILES[profile]
    assert compose.containers(profile).keys() == PROFILES[profile]


def test_every_service_belongs_to_a_profile() -> None:
    services = yaml.safe_load(FILE.read_text("utf-8"))["services"]
    assert services.keys() == set().union(*PROFILES.values())
    assert {profile for service in services.values() for profile in service["profiles"]} == PROFILES.keys()


def test_nothing_named_starts_the_gpu_host(compose: Compose) -> None:
    assert compose.services("").keys() == PROFILES["gpu"]


def test_defaults_of_compose_are_those_of_its_env_file() -> None:
    """Without .env, as with another one, the same is built."""
    stated = dict(
        line.split("=", 1)
        for line in (ROOT / ".env").read_text("utf-8").splitlines()
        if line and not line.startswith("#")
    )
    defaults = dict(re.findall(r"\$\{([A-Z_]+):?-([^}]*)\}", FILE.read_text("utf-8")))
    differing = {
        name: (stated[name], defaults[name])
        for name in stated
        if defaults.get(name, stated[name]) != stated[name]
    }
    assert not differing


# --- what is started


@cache
def stages() -> dict[str, tuple[str, str]]:
    """Of the Dockerfile: name → (what it is built from, its text)."""
    found = re.split(r"^FROM ", DOCKERFILE, flags=re.MULTILINE)[1:]
    return {stage.split()[2]: (stage.split()[0], stage) for stage in found}


def line_of(target: str) -> Iterator[str]:
    """Texts of the stages that `target` is built on, itself first."""
    name = target
    while name in stages():
        name, text = stages()[name]
        yield text


def needed_by(target: str) -> set[str]:
    """Stages that are built for `target`: those it is built on, and those it copies from."""
    found: set[str] = set()
    todo = [target]
    while todo:
        name = todo.pop()
        if name in found or name not in stages():
            continue
        found.add(name)
        parent, text = stages()[name]
        todo += [parent, *re.findall(r"--from=(\S+)", text)]
    return found


def environment_of(target: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for text in line_of(target):
        for block in re.findall(r"^ENV ((?:.*\\\n)*.*)$", text, re.MULTILINE):
            for name, value in re.findall(r"([A-Z_]+)=(\S+)", block):
                found.setdefault(name, value)
    return found


@pytest.mark.parametrize(("profile", "name"), EVERY)
def test_what_is_started_is_confined(compose: Compose, profile: str, name: str) -> None:
    found = compose.containers(profile)[name]
    assert "--read-only" in found.options
    assert found.given("--cap-drop") == ["ALL"]
    assert not found.given("--cap-add")
    assert "--privileged" not in found.options
    assert "no-new-privileges:true" in found.given("--security-opt")
    assert "--init" in found.options
    assert found.given("-m")
    assert int(found.given("--pids-limit")[0]) <= 1024
    [memory] = found.given("--tmpfs")
    assert re.fullmatch(r"/tmp:size=\d+m,mode=1777", memory)


@pytest.mark.parametrize(("profile", "name"), EVERY)
def test_what_is_started_is_not_root(compose: Compose, profile: str, name: str) -> None:
    """By its image, which ends as the service's user, or by name, where the image is another project's."""
    target = compose.services(profile)[name].get("build", {}).get("target")
    named = compose.containers(profile)[name].given("-u", "--user")
    if target is None:
        assert named == [{"redis": "redis", "cluster": "haproxy"}[name]]
        return
    users = [re.findall(r"^USER (\S+)$", text, re.MULTILINE) for text in line_of(target)]
    assert next(found for found in users if found)[-1] == USER
    assert named == []


@pytest.mark.parametrize(("profile", "name"), EVERY)
def test_what_is_started_says_whether_it_lives(compose: Compose, profile: str, name: str) -> None:
    found = compose.containers(profile)[name]
    [command] = found.given("--health-cmd")
    assert found.given("--health-interval")
    asked = " ".join(json.loads(command))
    assert asked == {"worker": "healthy worker", "cpu-worker": "healthy worker"}.get(name, asked)
    if found.image.startswith("faultbook:"):
        assert asked in ("healthy", "healthy worker")
        assert shutil.which("healthy", path=str(ROOT / "deploy/image"))


@pytest.mark.parametrize(("profile", "name"), EVERY)
def test_what_is_kept_is_on_a_volume(compose: Compose, profile: str, name: str) -> None:
    """The data folder, and the kernels that Triton compiles: a /tmp in memory may hold no executable code."""
    target = compose.services(profile)[name].get("build", {}).get("target")
    if target is None:
        return
    assert compose.containers(profile)[name].mounts.keys() == {DATA}
    variables = environment_of(target)
    assert variables["FAULTBOOK_DATA"] == variables["HOME"] == DATA
    if target == "service":
        assert "TRITON_CACHE_DIR" not in variables, "it compiles nothing"
    else:
        assert Path(variables["TRITON_CACHE_DIR"]).parent == Path(DATA)
    assert f"VOLUME {DATA}" in DOCKERFILE
    assert f"install -d -o 10001 -g 10001 {DATA}" in DOCKERFILE, "a new volume is its user's"


NVIDIA = {("gpu", "faultbook"), ("upstream", "upstream"), ("cluster", "worker")}


@pytest.mark.parametrize(("profile", "name"), EVERY)
def test_each_has_the_devices_it_needs_and_no_other(compose: Compose, profile: str, name: str) -> None:
    found = compose.containers(profile)[name]
    reserved = compose.services(profile)[name]["deploy"]["resources"].get("reservations")
    devices = found.given("--device")
    if (profile, name) in NVIDIA:
        assert reserved == {"devices": [{"driver": "nvidia", "count": 1, "capabilities": ["gpu"]}]}
        assert devices == ["nvidia.com/gpu=0"]
    else:
        assert reserved is None
        assert devices == (["/dev/kfd", "/dev/dri"] if profile == "rocm" else [])
    runs = found.variables.get("FAULTBOOK_DEVICE")
    if profile == "rocm" or (profile, name) in NVIDIA:
        assert runs == "cuda"
    else:
        assert runs == ("cpu" if name in ("cpu", "cpu-worker") else None)


def test_the_groups_of_amd_devices_are_the_hosts(compose: Compose) -> None:
    found = compose.containers("rocm", ROCM_VIDEO_GROUP="27", ROCM_RENDER_GROUP="992")["rocm"]
    assert found.given("--group-add") == ["27", "992"]


@pytest.mark.parametrize("profile", PROFILES)
def test_it_is_published_on_loopback_until_it_is_said_otherwise(compose: Compose, profile: str) -> None:
    ports = {name: found.given("-p") for name, found in compose.containers(profile).items()}
    assert [*filter(None, ports.values())] == [["127.0.0.1:8000:8000"]]
    elsewhere = compose.containers(profile, FAULTBOOK_PUBLISH="10.0.0.5:80")
    published = {name: found.given("-p") for name, found in elsewhere.items() if found.given("-p")}
    assert list(published.values()) == [["10.0.0.5:80:8000"]]
    told = [found.variables for found in elsewhere.values() if found.image.startswith("faultbook:")]
    assert {variables["PUBLISHED"] for variables in told} == {"10.0.0.5:80"}, "runs are then for keys alone"


# --- what is built


BASES = {
    "BASE_IMAGE": "a.example/python@sha256:1",
    "ROCM_BASE_IMAGE": "a.example/rocm@sha256:2",
    "UPSTREAM_IMAGE": "a.example/sglang@sha256:3",
    "TORCH_INDEX": "https://a.example/cpu",
    "ROCM_TORCH_INDEX": "https://a.example/rocm",
    "UPSTREAM_PYTHON": "/opt/engine/bin/python",
    "INDEX_PACKAGES": "sglang==0.5.23",
    "EXTRAS": "telemetry",
    "FAULTBOOK_COMMIT": "0" * 40,
}


@pytest.mark.parametrize(
    ("profile", "image", "target", "own"),
    [
        ("gpu", "gpu", "worker", {"BASE_IMAGE": "BASE_IMAGE"}),
        ("cpu", "cpu", "worker", {"BASE_IMAGE": "BASE_IMAGE", "TORCH_INDEX": "TORCH_INDEX"}),
        ("rocm", "rocm", "worker", {"BASE_IMAGE": "ROCM_BASE_IMAGE", "TORCH_INDEX": "ROCM_TORCH_INDEX"}),
        (
            "upstream",
            "upstream",
            "upstream",
            {"BASE_IMAGE": "UPSTREAM_IMAGE", "UPSTREAM_PYTHON": "UPSTREAM_PYTHON"},
        ),
        ("cluster", "service", "service", {"BASE_IMAGE": "BASE_IMAGE"}),
        ("cluster", "gpu", "worker", {"BASE_IMAGE": "BASE_IMAGE"}),
        ("cluster-cpu", "cpu", "worker", {"BASE_IMAGE": "BASE_IMAGE", "TORCH_INDEX": "TORCH_INDEX"}),
    ],
)
def test_bases_reach_the_build_they_are_meant_for(
    compose: Compose, profile: str, image: str, target: str, own: dict[str, str]
) -> None:
    build = compose.builds(profile, FAULTBOOK_IMAGE="a.example/fb", **BASES)[f"a.example/fb:{image}"]
    assert build[build.index("--target") + 1] == target
    shared = {name: BASES[name] for name in ("INDEX_PACKAGES", "EXTRAS", "FAULTBOOK_COMMIT")}
    assert arguments_of(build) == shared | {name: BASES[variable] for name, variable in own.items()}


@pytest.mark.parametrize("profile", PROFILES)
def test_the_dockerfile_takes_what_it_is_given(compose: Compose, profile: str) -> None:
    """An argument that no stage of the build declares is dropped without a word."""
    everywhere = re.findall(r"^ARG ([A-Z_]+)", DOCKERFILE.partition("\nFROM ")[0], re.MULTILINE)
    for build in compose.builds(profile).values():
        needed = needed_by(build[build.index("--target") + 1])
        declared = [re.findall(r"^ARG ([A-Z_]+)", stages()[name][1], re.MULTILINE) for name in needed]
        assert arguments_of(build).keys() <= {*everywhere, *(name for found in declared for name in found)}


def test_the_base_of_every_stage_is_the_argument() -> None:
    assert re.search(r"^ARG BASE_IMAGE=\S+$", DOCKERFILE.partition("\nFROM ")[0], re.MULTILINE)
    outside = {parent for parent, _ in stages().values()} - stages().keys()
    assert outside == {"${BASE_IMAGE}"}


def test_an_image_may_know_no_package(compose: Compose) -> None:
    [build] = compose.builds("cpu", INDEX_PACKAGES="").values()
    assert arguments_of(build)["INDEX_PACKAGES"] == ""
