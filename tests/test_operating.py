"""The operator's guide names what exists: settings, commands, files, profiles, metrics, places in it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml
from fastapi.testclient import TestClient
from typer.main import get_command

from app.cli import cli
from app.main import create_app
from app.settings import PREFIX, Settings

ROOT = Path(__file__).parent.parent
GUIDE = ROOT / "docs/operating.md"
TEXT = GUIDE.read_text("utf-8")
COMPOSE = (ROOT / "docker-compose.yml").read_text("utf-8")
SCRIPTS = "".join(path.read_text("utf-8") for path in (ROOT / "deploy/slurm").iterdir())


def test_its_settings_exist() -> None:
    known = {PREFIX + name.upper() for name in Settings.model_fields}
    named = set(re.findall(rf"\b{PREFIX}[A-Z_]*[A-Z]\b", TEXT))
    assert named
    assert [name for name in named - known if name not in COMPOSE + SCRIPTS] == []


def test_its_commands_exist() -> None:
    commands = get_command(cli).commands  # type: ignore[attr-defined]
    code = re.findall(r"^```bash\n(.*?)^```", TEXT, re.DOTALL | re.MULTILINE)
    lines = "\n".join([*code, *re.findall(r"`([^`\n]+)`", TEXT)]).splitlines()
    named = {
        found[1]
        for line in lines
        if not line.startswith(("kubectl", "systemctl"))
        for found in re.finditer(r"(?:^|.*[ /])faultbook ([a-z]+)(?![\w/])(?! create)", line)
    }
    assert {"doctor", "keys", "index", "worker", "bundle"} <= named
    # `docker compose exec faultbook COMMAND` names the service, and what it runs is in the image.
    scripts = {path.name for path in (ROOT / "deploy/image").iterdir()}
    assert named - set(commands) - scripts == set()


def test_its_files_exist() -> None:
    named = set(re.findall(r"\bdeploy/[\w./-]+", TEXT))
    assert named
    assert [name for name in named if not (ROOT / name).exists()] == []


def test_its_links_lead_somewhere() -> None:
    headings = {
        re.sub(r"[^\w -]", "", line.lstrip("# ")).lower().replace(" ", "-")
        for line in TEXT.splitlines()
        if line.startswith("#")
    }
    for target in re.findall(r"\]\(([^)]+)\)", TEXT):
        if target.startswith("#"):
            assert target[1:] in headings, target
        elif not target.startswith("http"):
            assert (GUIDE.parent / target).exists(), target


def test_its_profiles_exist() -> None:
    services = yaml.safe_load(COMPOSE)["services"]
    profiles = {profile for service in services.values() for profile in service["profiles"]}
    named = set(re.findall(r"--profile ([a-z-]+)", TEXT)) | set(
        re.findall(r"COMPOSE_PROFILES=([a-z-]+)", TEXT)
    )
    assert named
    assert named <= profiles
    used = re.findall(r"docker compose (?:exec|stop)(?: -\S+)* ([a-z][a-z-]*)", TEXT)
    assert {"faultbook", "worker"} <= set(used)
    assert set(used) <= services.keys()


def test_its_metrics_are_counted() -> None:
    named = set(re.findall(r"`(faultbook_[a-z_]+)", TEXT))
    assert len(named) >= 7
    with TestClient(create_app(Settings(workers=0))) as client:
        lines = client.get("/metrics").text
    families = set(re.findall(r"^# TYPE (\S+) ", lines, re.MULTILINE))
    assert named <= families


@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/metrics"])
def test_its_addresses_answer(path: str) -> None:
    assert f"`{path}`" in TEXT
    with TestClient(create_app(Settings(workers=0))) as client:
        assert client.get(path).status_code == 200
