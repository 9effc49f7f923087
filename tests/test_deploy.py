"""What is deployed, as text: every file is linted, and what each names exists in the others."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from app.settings import PREFIX, Settings

ROOT = Path(__file__).parent.parent
DEPLOY = ROOT / "deploy"
BIN = Path(sys.executable).parent
MANIFESTS = sorted((DEPLOY / "kubernetes").glob("*.yaml"))
RECIPES = sorted((DEPLOY / "slurm").glob("*.sbatch"))
UNIT = DEPLOY / "systemd/faultbook.service"
KUBERNETES = ("1.31", "1.37")
"""The oldest and newest version that the manifests are checked against."""

DOCKERFILE = (ROOT / "Dockerfile").read_text("utf-8")


def passes(*command: str | Path) -> str:
    """Run a tool that must succeed; what it printed."""
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@cache
def resources(manifest: Path) -> tuple[dict[str, Any], ...]:
    return tuple(yaml.safe_load_all(manifest.read_text("utf-8")))


def workloads() -> Iterator[tuple[str, dict[str, Any]]]:
    """(name, pod spec) of everything that runs pods."""
    for manifest in MANIFESTS:
        for item in resources(manifest):
            if item["kind"] in ("Deployment", "StatefulSet"):
                yield f"{manifest.stem}/{item['metadata']['name']}", item["spec"]["template"]["spec"]


def containers() -> Iterator[tuple[str, dict[str, Any], dict[str, Any]]]:
    for name, pod in workloads():
        for container in pod["containers"]:
            yield f"{name}/{container['name']}", pod, container


WORKLOADS = dict(workloads())
CONTAINERS = {name: (pod, container) for name, pod, container in containers()}


def test_there_is_something_to_check() -> None:
    assert {manifest.stem for manifest in MANIFESTS} == {"single", "cluster"}
    assert {recipe.stem for recipe in RECIPES} == {"serve", "worker"}
    assert len(CONTAINERS) == 4


# --- linters


@pytest.mark.parametrize("script", [DEPLOY / "image/start", *RECIPES], ids=lambda path: path.name)
def test_shell_scripts_are_clean(script: Path) -> None:
    passes(BIN / "shellcheck", "--enable=all", "--exclude=SC2312", script)


@pytest.mark.parametrize("version", KUBERNETES)
@pytest.mark.parametrize("manifest", MANIFESTS, ids=lambda path: path.stem)
def test_manifests_follow_the_schemas(manifest: Path, version: str) -> None:
    printed = passes(BIN / "kubernetes-validate", "--strict", "-k", version, manifest)
    assert printed.count(" passed ") == len(resources(manifest))


def test_a_manifest_with_a_wrong_field_is_noticed(tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text(MANIFESTS[1].read_text("utf-8").replace("readinessProbe:", "readynessProbe:"))
    tool = BIN / "kubernetes-validate"
    done = subprocess.run([tool, "--strict", "-k", KUBERNETES[1], wrong], capture_output=True, check=False)
    assert done.returncode != 0


@pytest.mark.skipif(shutil.which("haproxy") is None, reason="no haproxy here")
def test_the_proxy_takes_its_configuration() -> None:
    passes("haproxy", "-c", "-f", DEPLOY / "compose/haproxy.cfg")


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd here")
def test_the_unit_is_valid_and_confined(tmp_path: Path) -> None:
    """systemd's own scale of exposure goes from 0 to 10; a service without any option has 9.6."""
    here = tmp_path / UNIT.name
    text = UNIT.read_text("utf-8")
    here.write_text(re.sub(r"(?<=^ExecStart=)\S+", shutil.which("true") or "", text, flags=re.MULTILINE))
    done = subprocess.run(["systemd-analyze", "verify", here], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    passes("systemd-analyze", "security", "--offline=true", "--threshold=20", "--no-pager", UNIT)


# --- settings


def named_variables() -> Iterator[tuple[str, str]]:
    """(file, FAULTBOOK_… name) of whatever is set for a service."""
    for path in (ROOT / "docker-compose.yml", *MANIFESTS, *RECIPES, UNIT, ROOT / "Dockerfile", ROOT / ".env"):
        for name in sorted(set(re.findall(rf"\b{PREFIX}[A-Z_]+\b", path.read_text("utf-8")))):
            yield str(path.relative_to(ROOT)), name


OWN = {"FAULTBOOK_IMAGE", "FAULTBOOK_PUBLISH", "FAULTBOOK_VENV", "FAULTBOOK_BROKER_FILE"}
"""Variables of compose and the recipes themselves."""


def test_every_setting_that_is_named_exists() -> None:
    known = {PREFIX + name.upper() for name in Settings.model_fields} | OWN
    assert [(file, name) for file, name in named_variables() if name not in known] == []


# --- Dockerfile


def test_what_runs_is_not_root() -> None:
    """Each stage that can be built as an image ends as the service's user."""
    stages = re.split(r"^FROM ", DOCKERFILE, flags=re.MULTILINE)[1:]
    parents = {stage.split()[2]: stage.split()[0] for stage in stages}
    users = {stage.split()[2]: re.findall(r"^USER (\S+)$", stage, re.MULTILINE) for stage in stages}
    for target in ("service", "worker", "upstream"):
        name = target
        while not users[name]:
            name = parents[name]
        assert users[name][-1] == "10001:10001", target


# --- Kubernetes


@pytest.mark.parametrize("name", CONTAINERS)
def test_containers_meet_the_restricted_standard(name: str) -> None:
    pod, container = CONTAINERS[name]
    own = container["securityContext"]
    assert own["allowPrivilegeEscalation"] is False
    assert own["readOnlyRootFilesystem"] is True
    assert own["capabilities"] == {"drop": ["ALL"]}
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["runAsUser"] > 0
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert pod["automountServiceAccountToken"] is False
    assert "memory" in container["resources"]["limits"]


@pytest.mark.parametrize("name", CONTAINERS)
def test_containers_are_probed(name: str) -> None:
    assert {"startupProbe", "livenessProbe"} <= CONTAINERS[name][1].keys()


@pytest.mark.parametrize("name", [name for name in CONTAINERS if "redis" not in name])
def test_containers_write_where_a_volume_is(name: str) -> None:
    pod, container = CONTAINERS[name]
    mounts = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
    assert {"/var/lib/faultbook", "/tmp"} <= mounts.keys()
    assert set(mounts.values()) == {volume["name"] for volume in pod["volumes"]}
    assert "FAULTBOOK_DATA=/var/lib/faultbook" in DOCKERFILE


@pytest.mark.parametrize("manifest", MANIFESTS, ids=lambda path: path.stem)
def test_selectors_choose_pods(manifest: Path) -> None:
    """Of services, policies and budgets: each selects a workload's pods, each port is a container's."""
    items = resources(manifest)
    pods = [
        (item["spec"]["template"]["metadata"]["labels"], item["spec"]["template"]["spec"]["containers"])
        for item in items
        if item["kind"] in ("Deployment", "StatefulSet")
    ]

    def chosen(selector: dict[str, Any]) -> list[Any]:
        wanted = selector.get("matchLabels", {})
        rules = selector.get("matchExpressions", [])
        return [
            found
            for labels, found in pods
            if wanted.items() <= labels.items()
            and all(labels.get(rule["key"]) in rule["values"] for rule in rules)
        ]

    for item in items:
        if item["kind"] == "Service":
            [found] = chosen({"matchLabels": item["spec"]["selector"]})
            names = {port["name"] for container in found for port in container["ports"]}
            assert {port["targetPort"] for port in item["spec"]["ports"]} <= names
        elif item["kind"] == "NetworkPolicy":
            assert chosen(item["spec"]["podSelector"]), item["metadata"]["name"]
            for rule in item["spec"].get("ingress", []):
                assert all(chosen(source["podSelector"]) for source in rule["from"])
        elif item["kind"] == "PodDisruptionBudget":
            assert chosen(item["spec"]["selector"])


def test_every_pod_has_a_policy_that_keeps_it_from_the_outside() -> None:
    for manifest in MANIFESTS:
        policies = [item["spec"] for item in resources(manifest) if item["kind"] == "NetworkPolicy"]
        for policy in policies:
            for rule in policy.get("egress") or []:
                assert rule["to"], "a rule without a destination allows all"
        whole = [
            policy["podSelector"]["matchLabels"]
            for policy in policies
            if set(policy["policyTypes"]) == {"Ingress", "Egress"} and not policy.get("egress")
        ]
        for item in resources(manifest):
            if item["kind"] in ("Deployment", "StatefulSet"):
                labels = item["spec"]["template"]["metadata"]["labels"]
                assert any(wanted.items() <= labels.items() for wanted in whole)


def test_a_worker_has_a_gpu_of_its_own() -> None:
    on_gpu = {
        name: container["resources"]["limits"].get("nvidia.com/gpu")
        for name, (_, container) in CONTAINERS.items()
    }
    assert on_gpu == {
        "single/faultbook/faultbook": 1,
        "cluster/faultbook-api/api": None,
        "cluster/faultbook-broker/redis": None,
        "cluster/faultbook-worker/worker": 1,
    }


# --- the health check


def test_the_health_check_is_a_script_of_the_oldest_python_supported() -> None:
    ast.parse((DEPLOY / "image/healthy").read_text("utf-8"), feature_version=(3, 11))
