"""Entries as they are written, and the command that makes them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from app.access.caller import Caller, Scope
from app.access.keys import BadKeys, Keyring, digest_of, index, new_key, parse
from app.cli import cli
from app.settings import Settings, SettingsError, load, run_allowed

DIGEST = "0" * 63 + "1"
OTHER = "0" * 63 + "2"


def test_an_entry_says_who_what_and_how_much() -> None:
    (found,) = parse(f"ci:read+diagnose:sha256-{DIGEST}:90")
    assert found.digest == DIGEST
    assert found.caller == Caller("ci", frozenset({Scope.READ, Scope.DIAGNOSE}), 90.0)
    assert str(found) == f"ci:diagnose+read:sha256-{DIGEST}:90"


def test_entries_stand_in_lines_or_behind_commas() -> None:
    text = f"# the team\na:read:sha256-{DIGEST} # first\n\nb:admin:sha256-{OTHER},\n"
    first, second = parse(text)
    assert (first.caller.name, second.caller.name) == ("a", "b")
    assert second.caller.may(Scope.DIAGNOSE)
    assert second.caller.may(Scope.READ)
    assert str(second) == f"b:admin:sha256-{OTHER}"
    assert not first.caller.may(Scope.DIAGNOSE)


@pytest.mark.parametrize(
    "text",
    [
        "hunter2hunter2",
        f"a:read:{DIGEST}",
        "a:read:sha256-12",
        f"a:write:sha256-{DIGEST}",
        f"a::sha256-{DIGEST}",
        f":read:sha256-{DIGEST}",
        f"a b:read:sha256-{DIGEST}",
        f"a:read:sha256-{DIGEST}:-1",
        f"a:read:sha256-{DIGEST}:nan",
        f"a:read:sha256-{DIGEST}:1:1",
        f"a:read:sha256-{DIGEST},b:read:sha256-{DIGEST}",
        f"a:read:sha256-{DIGEST},a:admin:sha256-{OTHER}",
        "a:read:fbk_hunter2hunter2hunter2hunter2",
    ],
)
def test_what_is_no_entry_is_refused_without_repeating_it(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BadKeys) as caught:
        index(parse(text))
    assert "hunter2" not in str(caught.value)
    monkeypatch.setenv("FAULTBOOK_API_KEYS", text)
    with pytest.raises(SettingsError, match=r"^FAULTBOOK_API_KEYS: "):
        load()


def test_one_caller_may_have_two_keys() -> None:
    found = index(parse(f"a:read:sha256-{DIGEST} a:read:sha256-{OTHER}"))
    assert found[DIGEST] == found[OTHER]


def test_a_key_is_found_by_its_digest_alone() -> None:
    key = new_key()
    ring = Keyring(f"a:read:sha256-{digest_of(key)}")
    assert ring
    found = ring.find(key)
    assert found is not None
    assert found.name == "a"
    assert ring.find(digest_of(key)) is None
    assert ring.find("") is None
    assert not Keyring()


def test_a_file_that_cannot_be_read_stops_the_start(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"^FAULTBOOK_API_KEYS_FILE: No such file"):
        Settings(api_keys_file=str(tmp_path / "none")).keyring()
    wrong = tmp_path / "wrong"
    wrong.write_text("hunter2", "utf-8")
    with pytest.raises(SettingsError, match=r"^FAULTBOOK_API_KEYS_FILE: entry 1"):
        Settings(api_keys_file=str(wrong)).keyring()


def test_keys_allow_runs_beyond_loopback() -> None:
    assert not run_allowed(Settings(host="0.0.0.0"))
    assert run_allowed(Settings(host="0.0.0.0", api_keys=f"a:diagnose:sha256-{DIGEST}"))


def test_who_sees_whose_results() -> None:
    alice, bob = Caller("alice", frozenset({Scope.DIAGNOSE})), Caller("bob", frozenset({Scope.READ}))
    admin = Caller("root", frozenset(Scope))
    assert alice.sees("alice")
    assert not bob.sees("alice")
    assert not Caller().sees("alice")
    assert admin.sees("alice")
    assert all(caller.sees("") for caller in (alice, bob, admin, Caller()))


def test_the_command_makes_a_key_and_its_entry() -> None:
    result = CliRunner().invoke(cli, ["keys", "ci", "--scope", "diagnose", "--gpu-seconds", "60", "--json"])
    assert result.exit_code == 0
    made = json.loads(result.stdout)
    ring = Keyring(made["entry"])
    assert ring.find(made["key"]) == Caller("ci", frozenset({Scope.DIAGNOSE}), 60.0)


def test_the_key_itself_is_not_on_standard_output() -> None:
    result = CliRunner().invoke(cli, ["keys", "ci"])
    assert [item.caller.name for item in parse(result.stdout)] == ["ci"]
    assert "fbk_" not in result.stdout
    assert "fbk_" in result.stderr


def test_a_key_of_ones_own_is_only_hashed() -> None:
    key = "x" * 40
    result = CliRunner().invoke(cli, ["keys", "ci", "--hash"], input=key + "\n")
    assert Keyring(result.stdout).find(key) is not None
    assert CliRunner().invoke(cli, ["keys", "ci", "--hash"], input="short\n").exit_code == 2
    assert CliRunner().invoke(cli, ["keys", "a:b"]).exit_code == 2
