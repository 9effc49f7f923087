"""Rates and seconds of runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.access.caller import Caller
from app.access.quotas import DAY, FileLedger, Ledger, MemoryLedger, Quotas, open_ledger
from app.access.rates import MOST_CALLERS, Limiter, Rate, network_of
from app.errors import TooManyRequests
from app.settings import SettingsError, load


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        ("600/minute", Rate(600, 60)),
        ("600", Rate(600, 60)),
        ("10/s", Rate(10, 1)),
        ("5 per hour", Rate(5, 3600)),
        ("7/days", Rate(7, 86400)),
        ("0", None),
        ("", None),
    ],
)
def test_rates_as_they_are_written(text: str, rate: Rate | None) -> None:
    assert Rate.parse(text) == rate


def test_any_other_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAULTBOOK_RATE_LIMIT", "many")
    with pytest.raises(SettingsError, match=r"^FAULTBOOK_RATE_LIMIT: .*600/minute"):
        load()


def test_as_many_at_once_as_the_period_allows_then_one_each_share() -> None:
    now = 100.0
    limiter = Limiter(Rate(3, 60), lambda: now)
    assert [limiter.wait("a") for _ in range(3)] == [0, 0, 0]
    assert limiter.wait("a") == pytest.approx(20)
    assert limiter.wait("b") == 0
    now += 20
    assert limiter.wait("a") == 0
    assert limiter.wait("a") == pytest.approx(20)
    now += 600
    assert [limiter.wait("a") for _ in range(3)] == [0, 0, 0]
    assert limiter.wait("a") > 0


def test_callers_do_not_fill_the_memory() -> None:
    limiter = Limiter(Rate(1, 60), lambda: 0.0)
    for number in range(MOST_CALLERS + 10):
        limiter.wait(str(number))
    assert len(limiter._free_at) == MOST_CALLERS
    assert limiter.wait(str(MOST_CALLERS)) > 0


def test_one_ipv6_host_is_one_caller() -> None:
    assert network_of("2001:db8::1") == network_of("2001:db8::ffff:1") != network_of("2001:db8:0:1::1")
    assert network_of("10.0.0.1") != network_of("10.0.0.2")
    assert network_of("::ffff:10.0.0.1") == "10.0.0.1"
    assert network_of("fe80::1%eth0") == "fe80::/64"
    assert network_of("testclient") == "testclient"


@pytest.fixture(params=["memory", "file"])
def ledger(request: pytest.FixtureRequest, tmp_path: Path) -> Ledger:
    return MemoryLedger() if request.param == "memory" else FileLedger(tmp_path / "data")


def test_seconds_of_runs_are_limited_by_day(ledger: Ledger) -> None:
    now = 10 * DAY + DAY / 4
    quotas = Quotas(lambda: ledger, lambda: now)
    alice, bob = Caller("alice", gpu_seconds=10.0), Caller("bob")
    quotas.charge("alice", 6.0)
    quotas.charge("bob", 1e6)
    quotas.admit(alice)
    quotas.charge("alice", 6.0)
    with pytest.raises(TooManyRequests, match=r"alice has used 12\.0 of its 10 seconds") as caught:
        quotas.admit(alice)
    assert caught.value.headers == {"Retry-After": str(DAY * 3 // 4)}
    quotas.admit(bob)
    now += DAY
    quotas.admit(alice)


def test_no_seconds_at_all_are_no_runs(ledger: Ledger) -> None:
    with pytest.raises(TooManyRequests):
        Quotas(lambda: ledger).admit(Caller("alice", gpu_seconds=0.0))


def test_a_restart_keeps_what_was_spent_and_old_days_go(tmp_path: Path) -> None:
    FileLedger(tmp_path).add("a", 100, 1.5)
    again = FileLedger(tmp_path)
    again.add("a", 100, 1.0)
    assert again.spent("a", 100) == 2.5
    again.add("a", 300, 1.0)
    assert again.spent("a", 100) == 0.0


def test_a_folder_that_cannot_be_written_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    assert isinstance(open_ledger(blocked / "data"), MemoryLedger)
    assert "a restart forgets them" in caplog.text
