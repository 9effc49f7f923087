"""What every store of jobs does: the file's, and Redis's."""

from __future__ import annotations

import json
import sqlite3
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from app.jobs.file_store import FILE, FileStore
from app.jobs.store import Admission, Claim, Ending, Kept, Status, Store, StoreUnavailable
from tests.app.nobody import as_nobody
from tests.app.redis_server import RedisServer, server

DONE = Ending(Status.DONE, 200, '{"a":1}', "key", "passed")
NOW = 1_800_000_000.0
RETENTION = 1000.0

Make = Callable[[], Store]


@pytest.fixture(scope="module")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    if server() is None:
        pytest.skip("no redis-server on this host")
    made = RedisServer(tmp_path_factory.mktemp("redis"))
    yield made
    made.client.close()
    made.stop()


@pytest.fixture(params=["file", "memory", "redis"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    if request.param == "redis":
        from app.cluster.store import RedisStore

        broker: RedisServer = request.getfixturevalue("redis")
        broker.client.flushall()
        made: Store = RedisStore(broker.url, RETENTION)
    else:
        made = FileStore(tmp_path if request.param == "file" else None)
    yield made
    made.close()


def add(store: Store, job: str, now: float = NOW) -> None:
    added = store.add(job, "ann", f"call {job}", most=10, share=10, now=now)
    assert added is Admission.ACCEPTED


def claim(store: Store, service: str = "s", now: float = NOW, only: str = "") -> Claim | None:
    return store.claim(service, now=now, until=now + 10, only=only)


def kinds(store: Store, job: str) -> list[str]:
    return [event.kind for event in store.events(job, 0)]


def test_jobs_are_taken_in_their_order_and_once(store: Store) -> None:
    add(store, "b", NOW)
    add(store, "a", NOW + 1)
    assert store.get("b", since=0) == Kept("b", "ann", Status.QUEUED, None, None)
    assert claim(store) == Claim("b", "ann", "call b", 1, False)
    assert store.get("b", since=0) == Kept("b", "ann", Status.RUNNING, None, None)
    assert claim(store, only="a") == Claim("a", "ann", "call a", 1, False)
    assert claim(store) is None
    assert store.open() == {"queued": 0, "running": 2}


def test_no_more_are_accepted_than_may_be_open(store: Store) -> None:
    add(store, "a")
    assert store.add("b", "", "call", most=1, share=1, now=NOW) is Admission.MANY
    assert store.get("b", since=0) is None
    store.end("a", DONE, now=NOW)
    assert store.add("b", "", "call", most=1, share=1, now=NOW) is Admission.ACCEPTED


def test_one_owner_has_no_more_than_a_share(store: Store) -> None:
    def accepted(job: str, owner: str) -> bool:
        return store.add(job, owner, "call", most=10, share=2, now=NOW) is Admission.ACCEPTED

    assert [accepted(job, "bob") for job in "abc"] == [True, True, False]
    assert accepted("d", "ann")
    assert [accepted(job, "") for job in "efg"] == [True, True, True]  # nobody's key: nobody's share
    store.end("a", DONE, now=NOW)
    assert accepted("h", "bob")


def test_owners_take_turns(store: Store) -> None:
    jobs = [("b1", "bob"), ("b2", "bob"), ("b3", "bob"), ("a1", "ann"), ("n1", ""), ("a2", "ann")]
    for number, (job, owner) in enumerate(jobs):
        store.add(job, owner, "call", most=10, share=10, now=NOW + number)
    taken = [claim(store, now=NOW + 10 + number / 10) for number in range(len(jobs))]
    assert [found.id for found in taken if found] == ["b1", "a1", "n1", "b2", "a2", "b3"]


def test_a_lease_that_ran_out_is_taken_over_and_a_renewed_one_is_not(store: Store) -> None:
    add(store, "a")
    assert claim(store, "first") is not None
    assert store.renew("first", ["a", "unknown"], until=NOW + 20) == {"a": False}
    assert claim(store, "second", NOW + 15) is None
    taken = claim(store, "second", NOW + 21)
    assert taken is not None
    assert taken.attempts == 2
    assert store.renew("first", ["a"], until=NOW + 99) == {}


def test_what_is_given_back_counts_as_never_begun(store: Store) -> None:
    add(store, "a")
    claim(store, "first")
    store.release("second", "a")
    assert claim(store, "second") is None
    store.release("first", "a")
    assert store.get("a", since=0) == Kept("a", "ann", Status.QUEUED, None, None)
    assert claim(store, "second") == Claim("a", "ann", "call a", 1, False)


def test_a_wish_to_cancel_reaches_whoever_holds_or_takes_the_job(store: Store) -> None:
    add(store, "a")
    add(store, "b", NOW + 1)
    claim(store, only="a")
    store.cancel("a")
    store.cancel("b")
    store.cancel("unknown")
    assert store.renew("s", ["a"], until=NOW + 20) == {"a": True}
    assert claim(store) == Claim("b", "ann", "call b", 1, True)
    assert store.get("unknown", since=0) is None


def test_a_job_ends_once_and_stays_as_it_ended(store: Store) -> None:
    add(store, "a")
    claim(store)
    assert store.end("a", DONE, now=NOW)
    assert not store.end("a", Ending(Status.CANCELLED, 200, "{}"), now=NOW)
    assert not store.end("unknown", DONE, now=NOW)
    store.cancel("a")
    store.release("s", "a")
    assert store.get("a", since=0) == Kept("a", "ann", Status.DONE, 200, '{"a":1}')
    assert claim(store, now=NOW + 99) is None
    assert store.open() == {"queued": 0, "running": 0}
    assert kinds(store, "a") == ["queued", "done"]


def test_services_that_take_at_once_take_different_jobs(store: Store) -> None:
    for number in range(10):
        add(store, f"j{number}", NOW + number)
    with ThreadPoolExecutor(5) as threads:
        taken = list(threads.map(lambda number: claim(store, f"s{number}"), range(12)))
    assert sorted(found.id for found in taken if found) == [f"j{number}" for number in range(10)]


def test_events_are_numbered_and_end_with_the_job(store: Store) -> None:
    add(store, "a")
    add(store, "b", NOW + 1)
    store.report("a", "checks", {"failed": 1})
    store.report("unknown", "checks", {})
    store.end("a", DONE, now=NOW)
    store.report("a", "late", {})
    events = store.events("a", 0)
    assert [(event.number, event.kind) for event in events] == [(1, "queued"), (2, "checks"), (3, "done")]
    facts = [json.loads(event.data) for event in events]
    assert all(fact.pop("at") > 0 for fact in facts)
    assert facts == [{"ahead": 0}, {"failed": 1}, {"status": "done", "verdict": "passed"}]
    assert list(store.events("a", 2)) == list(events[2:])
    assert list(store.events("unknown", 0)) == []
    assert json.loads(store.events("b", 0)[0].data)["ahead"] == 1


def test_equal_questions_find_the_newest_answer(store: Store) -> None:
    assert store.find("key", since=0) is None
    store.keep("x", "bob", DONE, now=NOW)
    add(store, "a")
    store.end("a", Ending(Status.DONE, 200, '{"a":2}', "key"), now=NOW + 5)
    add(store, "b")
    store.end("b", Ending(Status.CANCELLED, 200, "{}"), now=NOW + 6)
    found = store.find("key", since=0)
    assert found is not None
    assert (found.body, found.at, found.id, found.owner) == ('{"a":2}', NOW + 5, "a", "ann")
    assert store.find("key", since=NOW + 6) is None
    assert store.find("", since=0) is None
    assert store.get("x", since=0) == Kept("x", "bob", Status.DONE, 200, '{"a":1}')
    assert kinds(store, "x") == ["done"]


def test_what_ended_before_is_not_shown(store: Store) -> None:
    add(store, "a")
    store.end("a", DONE, now=NOW)
    assert store.get("a", since=NOW) is not None
    assert store.get("a", since=NOW + 1) is None


def test_the_file_forgets_what_ended_and_keeps_what_is_open(tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    for job in "abc":
        add(store, job)
    store.end("a", DONE, now=NOW)
    store.end("b", DONE, now=NOW + 10)
    assert store.purge(NOW + 5) == 1
    assert store.get("a", since=0) is None
    assert list(store.events("a", 0)) == []
    assert kinds(store, "b") == ["queued", "done"]
    store.close()
    again = FileStore(tmp_path)
    assert sum(again.open().values()) == 1
    assert again.get("b", since=0) is not None
    again.close()


def test_redis_forgets_by_itself(redis: RedisServer) -> None:
    from app.cluster.store import RedisStore

    redis.client.flushall()
    store = RedisStore(redis.url, RETENTION)
    add(store, "a")
    store.report("a", "checks", {})
    assert {redis.client.ttl(key) for key in redis.client.keys("*")} == {-1}
    store.end("a", DONE, now=NOW)
    counts = {"faultbook:bytes", "faultbook:ended:ann"}
    lasting = {key for key in redis.client.keys("*") if redis.client.ttl(key) == -1}
    assert lasting == counts
    assert all(redis.client.ttl(key) <= RETENTION for key in redis.client.keys("*"))
    for key in set(redis.client.keys("*")) - counts:
        redis.client.delete(key)  # as it does when their time has come
    assert store.purge(NOW + 1) == 1
    assert redis.client.keys("*") == []
    store.close()


def test_a_file_of_another_version_is_left_alone(tmp_path: Path) -> None:
    base = sqlite3.connect(tmp_path / FILE)
    base.execute("PRAGMA user_version=99")
    base.close()
    with pytest.raises(StoreUnavailable, match="version 99"):
        FileStore(tmp_path)


def test_a_redis_that_is_not_there_is_said() -> None:
    from app.cluster.store import RedisStore

    store = RedisStore("redis://127.0.0.1:1/0", RETENTION)
    with pytest.raises(StoreUnavailable):
        store.open()
    assert "the broker does not answer" in store.trouble()
    assert "127.0.0.1" not in store.trouble(), "whoever asks /readyz need not know where it is"
    store.close()


def test_a_store_in_use_is_in_no_trouble(store: Store) -> None:
    add(store, "a")
    assert claim(store) is not None
    store.end("a", DONE, now=NOW)
    assert store.trouble() == ""


@pytest.mark.parametrize("way", ["removed", "replaced"])
def test_a_file_that_went_away_under_it_is_said(tmp_path: Path, way: str) -> None:
    store = FileStore(tmp_path)
    add(store, "a")
    (tmp_path / FILE).unlink()
    assert store.get("a", since=0) is not None, "it still answers"
    if way == "replaced":
        FileStore(tmp_path).close()
    assert f"was {way} while it was in use" in store.trouble()
    store.close()


@pytest.mark.parametrize(("folder", "file", "named"), [(0o777, 0o444, FILE), (0o555, 0o666, "data")])
def test_a_file_that_can_no_longer_be_written_is_said(folder: int, file: int, named: str) -> None:
    with tempfile.TemporaryDirectory() as above:
        Path(above).chmod(0o755)
        data = Path(above) / "data"
        store = FileStore(data)
        data.chmod(folder)
        (data / FILE).chmod(file)
        with as_nobody():
            assert store.trouble().startswith(f"{named} cannot be written any more")
        data.chmod(0o777)
        (data / FILE).chmod(0o666)
        with as_nobody():
            assert store.trouble() == ""
        store.close()


def test_a_full_disk_is_said_until_something_is_written_again(tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    [(pages,)] = store._read("PRAGMA page_count")
    store._base.execute(f"PRAGMA max_page_count={pages}")
    with pytest.raises(StoreUnavailable, match="full"):
        store.add("a", "ann", "x" * 100_000, most=10, share=10, now=NOW)
    assert claim(store) is None, "to change nothing is possible"
    assert store.trouble() == "the last that came was not kept: database or disk is full"
    store._base.execute(f"PRAGMA max_page_count={pages + 1000}")
    add(store, "a")
    assert store.trouble() == ""
    store.close()


def test_a_lock_is_trouble_as_long_as_it_lasts(tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    store._base.execute("PRAGMA busy_timeout=1")
    other = sqlite3.connect(tmp_path / FILE, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreUnavailable, match="locked"):
        claim(store)
    assert "locked" in store.trouble()
    other.execute("ROLLBACK")
    other.close()
    assert claim(store) is None
    assert store.trouble() == ""
    store.close()


def test_a_copy_made_while_it_serves_has_results_and_open_jobs(tmp_path: Path) -> None:
    """As deploy/image/backup makes it, and a service finds it after it was put back."""
    store = FileStore(tmp_path / "data")
    for job in "ab":
        add(store, job)
    assert store.claim("first", now=NOW, until=NOW + 60, only="a") is not None
    store.end("a", DONE, now=NOW)
    (tmp_path / "restored").mkdir()
    source, copy = (sqlite3.connect(tmp_path / folder / FILE) for folder in ("data", "restored"))
    source.backup(copy)
    source.close()
    copy.close()
    before = store.get("a", since=0)
    store.close()
    restored = FileStore(tmp_path / "restored")
    assert restored.get("a", since=0) == before is not None
    assert kinds(restored, "a") == ["queued", "done"]
    claim = restored.claim("second", now=NOW, until=NOW + 60)
    assert claim is not None
    assert claim.id == "b"
    restored.close()


def test_a_service_does_not_take_what_it_is_at(store: Store) -> None:
    """Where the clock jumps ahead, every lease has ended."""
    add(store, "a")
    add(store, "b")
    assert claim(store, only="a") is not None
    later = NOW + 86_400
    found = store.claim("s", now=later, until=later + 10, but=["a"])
    assert found is not None
    assert found.id == "b"
    assert store.claim("s", now=later, until=later + 10, but=["a", "b"]) is None


def test_a_clock_that_is_set_back_holds_up_no_job(store: Store) -> None:
    """A service with a wrong clock that is gone has left a lease of next year, and its owner's turn."""
    add(store, "a", NOW)
    add(store, "b", NOW + 1)
    ahead = NOW + 365 * 86_400
    assert claim(store, "gone", ahead, only="b") is not None
    assert store.add("other", "bob", "call", most=10, share=10, now=NOW + 2) is Admission.ACCEPTED
    taken = [claim(store, "s", NOW + 3 + number) for number in range(3)]
    assert [found.id for found in taken if found] == ["other", "a", "b"]
    assert claim(store, "s", NOW + 9) is None


def test_what_is_read_does_not_wait_for_another_process_that_writes(tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    add(store, "a")
    other = sqlite3.connect(tmp_path / FILE, isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    with ThreadPoolExecutor(1) as threads:
        store._base.execute("PRAGMA busy_timeout=2000")
        writing = threads.submit(claim, store)
        began = time.monotonic()
        while time.monotonic() < began + 1:
            assert store.get("a", since=0) is not None
            assert kinds(store, "a") == ["queued"]
        assert not writing.done()
        other.execute("ROLLBACK")
        found = writing.result(10)
    assert found is not None
    other.close()
    store.close()
