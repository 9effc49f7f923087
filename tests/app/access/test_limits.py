"""Rates and seconds of runs."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import AsyncExitStack, closing, suppress
from pathlib import Path

import pytest

from app.access.caller import Caller
from app.access.keys import Keyring
from app.access.quotas import DAY, FILE, FileLedger, Ledger, MemoryLedger, Quotas, open_ledger
from app.access.rates import MOST_CALLERS, Limiter, Rate, network_of
from app.errors import Busy, Forbidden, TooManyRequests
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
    assert [limiter.take("a").wait for _ in range(3)] == [0, 0, 0]
    assert limiter.take("a").wait == pytest.approx(20)
    assert limiter.take("b").wait == 0
    now += 20
    assert limiter.take("a").wait == 0
    assert limiter.take("a").wait == pytest.approx(20)
    now += 600
    assert [limiter.take("a").wait for _ in range(3)] == [0, 0, 0]
    assert limiter.take("a").wait > 0


def test_what_is_left_is_told_after_each_request() -> None:
    now = 100.0
    limiter = Limiter(Rate(3, 60), lambda: now)

    def told() -> dict[str, str]:
        return {name.decode(): value.decode() for name, value in limiter.take("a").fields()}

    def fields(left: int, reset: int) -> dict[str, str]:
        policy = {"ratelimit-limit": "3", "ratelimit-policy": "3;w=60"}
        return {**policy, "ratelimit-remaining": str(left), "ratelimit-reset": str(reset)}

    assert told() == fields(2, 20)
    now += 5
    assert told() == fields(1, 15)
    assert told() == fields(0, 15)
    assert told() == fields(0, 15)
    limiter.give_back("a")
    assert told() == fields(0, 15)
    now += 60
    assert told() == fields(2, 20)


def test_callers_do_not_fill_the_memory() -> None:
    limiter = Limiter(Rate(1, 60), lambda: 0.0)
    for number in range(MOST_CALLERS + 10):
        limiter.take(str(number))
    assert len(limiter._free_at) == MOST_CALLERS
    assert limiter.take(str(MOST_CALLERS)).wait > 0


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


def test_however_a_run_ends_its_seconds_count(ledger: Ledger) -> None:
    quotas = Quotas(lambda: ledger, lambda: 1000.0, named=lambda name: Caller(name, gpu_seconds=10.0))

    async def cancelled() -> None:
        async with quotas.run("alice", 4) as turn:
            turn.add(7.0)
            raise asyncio.CancelledError

    for _ in range(2):
        with pytest.raises(asyncio.CancelledError):
            asyncio.run(cancelled())
    with pytest.raises(TooManyRequests, match=r"alice has used 14\.0 of its 10 seconds"):
        asyncio.run(cancelled())


def test_runs_at_once_do_not_exceed_a_quota_together(ledger: Ledger) -> None:
    quotas = Quotas(
        lambda: ledger,
        lambda: 1000.0,
        named=lambda name: Caller(name, gpu_seconds=150.0 if name == "alice" else None),
        longest=60.0,
    )

    async def tried(owner: str, count: int) -> int:
        """How many of `count` runs that are begun at once, and take 60 s each, are admitted."""
        async with AsyncExitStack() as running:
            admitted = 0
            for _ in range(count):
                with suppress(TooManyRequests):
                    (await running.enter_async_context(quotas.run(owner, 100))).add(60.0)
                    admitted += 1
        return admitted

    assert asyncio.run(tried("alice", 9)) == 3
    assert ledger.spent("alice", 0) == 180.0
    assert asyncio.run(tried("alice", 9)) == 0
    assert asyncio.run(tried("bob", 9)) == 9


def test_what_takes_longer_than_a_run_is_granted_that_long(ledger: Ledger) -> None:
    quotas = Quotas(
        lambda: ledger, lambda: 1000.0, named=lambda name: Caller(name, gpu_seconds=200.0), longest=60.0
    )

    async def tried() -> None:
        async with quotas.beside("alice", 180.0) as turn, quotas.run("alice", 4):
            turn.add(20.0)
            with pytest.raises(TooManyRequests, match=r"may take the 200\.0 seconds that are left"):
                async with quotas.run("alice", 4):
                    pass
        async with quotas.run("alice", 4), quotas.run("alice", 4):
            pass

    asyncio.run(tried())
    assert ledger.spent("alice", 0) == 20.0


def test_one_key_does_not_take_every_place(ledger: Ledger) -> None:
    quotas = Quotas(lambda: ledger)

    async def tried() -> None:
        async with AsyncExitStack() as running:
            for owner in ("alice", "alice", "bob", "", "", ""):
                await running.enter_async_context(quotas.run(owner, 2))
            with pytest.raises(Busy, match="2 runs of the key alice are under way"):
                await running.enter_async_context(quotas.run("alice", 2))
            async with quotas.beside("alice", 60.0), quotas.run("alice", 3):
                pass
        async with quotas.run("alice", 2):
            pass

    asyncio.run(tried())


def test_a_key_that_is_gone_runs_nothing_any_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "keys"
    file.write_text(f"alice:diagnose:sha256-{'0' * 64}:9\n")
    keys = Keyring(file=file)
    named = keys.named("alice")
    assert named is not None
    assert named.gpu_seconds == 9.0
    monkeypatch.setattr("app.access.keys.RECHECK", 0.0)
    file.write_text("")

    async def run() -> None:
        async with Quotas(MemoryLedger, named=keys.named).run("alice", 4):
            pass

    with pytest.raises(Forbidden, match="alice is not one of this service any more"):
        asyncio.run(run())
    # Without keys, or without a name, nobody is limited.
    assert keys.named("") == Caller()
    assert Keyring().named("alice") == Caller("alice")


def test_seconds_that_cannot_be_written_are_not_forgotten(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ledger = FileLedger(tmp_path)
    ledger._open = lambda: sqlite3.connect(tmp_path / FILE, timeout=0.01)  # type: ignore[method-assign]
    quotas = Quotas(lambda: ledger, lambda: 1000.0)
    alice = Caller("alice", gpu_seconds=10.0)
    with closing(sqlite3.connect(tmp_path / FILE)) as other:
        other.execute("BEGIN EXCLUSIVE")
        quotas.charge("alice", 6.0)
        quotas.charge("alice", 5.0)
        assert "database is locked" in caplog.text
        with pytest.raises(TooManyRequests, match=r"11\.0"):
            quotas.admit(alice)
    quotas.charge("alice", 1.0)
    assert ledger.spent("alice", 0) == 12.0


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
