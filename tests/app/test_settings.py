from __future__ import annotations

import logging
from pathlib import Path

import pytest

from app import settings
from app.settings import Settings, SettingsError, load, run_allowed, unknown_variables, variable

DOCUMENT = Path(__file__).parents[2] / "docs" / "settings.md"


def test_the_defaults_are_a_private_service_on_this_machine() -> None:
    chosen = load()
    assert (chosen.host, chosen.port, chosen.device) == ("127.0.0.1", 8000, "auto")
    assert chosen.max_body_bytes == 16 * 1024 * 1024
    assert not chosen.open
    assert not chosen.allow_faulting_runs
    assert chosen.data.is_absolute()


def test_variables_are_read_and_command_line_options_win(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAULTBOOK_PORT", "9000")
    monkeypatch.setenv("FAULTBOOK_DEVICE", "cpu")
    monkeypatch.setenv("FAULTBOOK_MAX_BODY_BYTES", "1MiB")
    assert load().port == 9000
    chosen = load(port=9001)
    assert (chosen.port, chosen.device, chosen.max_body_bytes) == (9001, "cpu", 1024 * 1024)


def test_an_empty_variable_counts_as_unset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAULTBOOK_HOST", "")
    monkeypatch.setenv("FAULTBOOK_PORT", "")
    assert (load().host, load().port) == ("127.0.0.1", 8000)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("PORT", "many"),
        ("PORT", "65536"),
        ("DEVICE", "tpu"),
        ("WORKERS", "-1"),
        ("RUN_TIMEOUT", "inf"),
        ("RUN_TIMEOUT", "0"),
        ("MAX_BODY_BYTES", "0"),
        ("MAX_STORE_BYTES", "1MiB"),
        ("MAX_TENSOR_BYTES", "lots"),
        ("OPEN", "perhaps"),
        ("PUBLIC_URL", "faults.example.org"),
        ("PUBLIC_URL", "https://faults.example.org/?a=b"),
        ("ROOT_PATH", "faultbook"),
        ("ROOT_PATH", "//elsewhere.example.org"),
    ],
)
def test_a_bad_value_names_its_variable(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv("FAULTBOOK_" + name, value)
    with pytest.raises(SettingsError, match=f"^FAULTBOOK_{name}: "):
        load()


def test_every_bad_variable_is_named_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAULTBOOK_PORT", "x")
    monkeypatch.setenv("FAULTBOOK_OPEN", "x")
    with pytest.raises(SettingsError, match=r"FAULTBOOK_PORT.*FAULTBOOK_OPEN"):
        load()


def test_an_unknown_variable_is_warned_about_with_the_nearest_name(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("FAULTBOOK_MAX_BODY_BYTE", "1")
    with caplog.at_level(logging.WARNING, "faultbook.settings"):
        load()
    (message,) = caplog.messages
    assert message.startswith("FAULTBOOK_MAX_BODY_BYTE is not a setting of this version and has no effect")
    assert message.endswith("did you mean FAULTBOOK_MAX_BODY_BYTES?")


def test_only_unknown_variables_with_our_prefix_are_reported() -> None:
    assert unknown_variables({variable(name): "" for name in Settings.model_fields}) == []
    assert unknown_variables({"faultbook_port": "1", "PATH": "/bin"}) == []
    assert unknown_variables({"FAULTBOOK_COMMIT": "0" * 40}) == []  # what an image says of itself
    (sentence,) = unknown_variables({"FAULTBOOK_ZZZZ": "1"})
    assert "did you mean" not in sentence


@pytest.mark.parametrize(
    ("host", "opened", "allowed"),
    [
        ("127.0.0.1", False, True),
        ("127.8.8.8", False, True),
        ("localhost", False, True),
        ("::1", False, True),
        ("[::1]", False, True),
        ("0.0.0.0", False, False),
        ("::", False, False),
        ("10.0.0.1", False, False),
        ("gpu-host", False, False),
        ("0.0.0.0", True, True),
    ],
)
def test_runs_beyond_loopback_need_open(host: str, opened: bool, allowed: bool) -> None:
    assert run_allowed(Settings(host=host, open=opened)) is allowed


@pytest.mark.parametrize(
    ("public_url", "root_path", "base"),
    [
        ("", "", ""),
        ("", "/faultbook/", "/faultbook"),
        ("https://a.example", "", "https://a.example"),
        ("https://a.example/", "/f", "https://a.example/f"),
        ("https://a.example/f/", "/f", "https://a.example/f"),
    ],
)
def test_base_url_holds_the_prefix_once(public_url: str, root_path: str, base: str) -> None:
    assert Settings(public_url=public_url, root_path=root_path).base_url == base


def test_the_documented_table_is_current() -> None:
    assert DOCUMENT.read_text("utf-8") == settings.reference(), (
        "run: python -m app.settings > docs/settings.md"
    )


def test_every_setting_is_documented() -> None:
    text = DOCUMENT.read_text("utf-8")
    for name, field in Settings.model_fields.items():
        assert f"| `{variable(name)}` |" in text
        assert field.description
