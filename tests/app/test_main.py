from __future__ import annotations

import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from fastapi import APIRouter, FastAPI
from starlette.testclient import TestClient

import app as package
from app.main import create_app
from app.settings import Settings, SettingsError

CAPABILITY = """
from fastapi import APIRouter

router = APIRouter()


@router.get("/api/zz")
async def zz() -> str:
    return "found"
"""


def python(code: str) -> str:
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return run.stdout.strip()


def test_importing_the_module_builds_no_application() -> None:
    code = "import app.main as m, fastapi; print([v for v in vars(m).values() if type(v) is fastapi.FastAPI])"
    assert python(code) == "[]"


def test_a_capability_is_found_by_its_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "zz_silent").mkdir()
    (tmp_path / "zz_silent" / "__init__.py").touch()
    (tmp_path / "zz_probe").mkdir()
    (tmp_path / "zz_probe" / "__init__.py").touch()
    (tmp_path / "zz_probe" / "routes.py").write_text(CAPABILITY)
    monkeypatch.setattr(package, "__path__", [str(tmp_path)])
    assert TestClient(create_app(Settings())).get("/api/zz").json() == "found"


def test_a_capability_starts_and_stops_with_the_service() -> None:
    events: list[str] = []

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        events.append(f"start on {app.state.settings.host}")
        yield
        events.append("stop")

    router = APIRouter(lifespan=lifespan)
    with TestClient(create_app(Settings(), routers=[router])) as client:
        assert events == ["start on 127.0.0.1"]
        assert client.get("/healthz").status_code == 200
    assert events == ["start on 127.0.0.1", "stop"]


def test_the_factory_reads_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAULTBOOK_ROOT_PATH", "/f")
    app = create_app(routers=[])
    assert app.state.settings.root_path == "/f"
    monkeypatch.setenv("FAULTBOOK_PORT", "x")
    with pytest.raises(SettingsError):
        create_app(routers=[])


def test_an_address_with_a_slash_more_is_not_redirected(monkeypatch: pytest.MonkeyPatch) -> None:
    client = TestClient(create_app(Settings(), routers=[]), follow_redirects=False)
    assert client.get("/healthz/").status_code == 404
