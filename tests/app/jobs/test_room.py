"""A store takes no more than it may: what goes for what comes, what never goes, and what is then free."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from app.jobs.file_store import FILE, FileStore
from app.jobs.store import EACH, Admission, Ending, Room, Status, Store
from tests.app.redis_server import RedisServer, server

NOW = 1_800_000_000.0
LIMIT = 400_000
ROOM = Room(LIMIT)

Make = Callable[[Room], Store]


@pytest.fixture(scope="module")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    if server() is None:
        pytest.skip("no redis-server on this host")
    made = RedisServer(tmp_path_factory.mktemp("redis"))
    yield made
    made.client.close()
    made.stop()


@pytest.fixture(params=["file", "redis"])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Make]:
    """Opens the same store again and again, as several services do."""
    made: list[Store] = []
    if request.param == "redis":
        from app.cluster.store import RedisStore

        broker: RedisServer = request.getfixturevalue("redis")
        broker.client.flushall()
        opened: Make = lambda room: RedisStore(broker.url, 1000.0, room)  # noqa: E731
    else:
        opened = lambda room: FileStore(tmp_path, room)  # noqa: E731

    def one(room: Room) -> Store:
        made.append(opened(room))
        return made[-1]

    yield one
    for store in made:
        store.close()


@pytest.fixture
def store(make: Make) -> Store:
    return make(ROOM)


def answer(size: int, key: str = "") -> Ending:
    return Ending(Status.DONE, 200, "x" * size, key)


def add(store: Store, job: str, owner: str = "", size: int = 10) -> Admission:
    return store.add(job, owner, "x" * size, most=1000, share=1000, now=NOW)


def kept(store: Store, names: list[str]) -> list[str]:
    return [name for name in names if store.get(name, since=0) is not None]


def test_the_oldest_answers_go_and_open_jobs_stay(store: Store) -> None:
    assert add(store, "open") is Admission.ACCEPTED
    names = [f"job{number}" for number in range(20)]
    for number, name in enumerate(names):
        add(store, name)
        store.report(name, "checks", {})
        store.end(name, answer(50_000, key=name), now=NOW + number)
        assert store.kept() <= LIMIT
    assert kept(store, names) == names[-7:]
    assert store.find("job12", since=0) is None
    assert store.find("job13", since=0) is not None
    assert list(store.events("job12", 0)) == []
    assert len(store.events("job13", 0)) == 3
    claim = store.claim("s", now=NOW + 99, until=NOW + 100)
    assert claim is not None
    assert (claim.id, claim.request) == ("open", "x" * 10)


def test_what_is_accepted_takes_room_too(store: Store) -> None:
    for name in "abc":
        store.keep(name, "", answer(120_000), now=NOW + ord(name))
    assert add(store, "open", size=60_000) is Admission.ACCEPTED
    assert kept(store, ["a", "b", "c", "open"]) == ["b", "c", "open"]


def test_one_owner_does_not_push_out_others(store: Store) -> None:
    store.keep("first", "ann", answer(10_000), now=NOW)
    store.keep("anybody", "", answer(10_000), now=NOW)
    names = [f"job{number}" for number in range(20)]
    for number, name in enumerate(names):
        store.keep(name, "bob", answer(30_000), now=NOW + 1 + number)
    assert kept(store, names) == names[-3:], "a fourth of all is one owner's"
    assert kept(store, ["first", "anybody"]) == ["first", "anybody"]
    for number, name in enumerate(names):
        store.keep(f"n{name}", "", answer(30_000), now=NOW + 50 + number)
    assert kept(store, ["first", "anybody"]) == [], "nobody's key: nobody's share"
    assert store.kept() <= LIMIT


def test_what_is_written_last_stays_however_large(store: Store) -> None:
    store.keep("a", "", answer(1000), now=NOW)
    add(store, "open")
    store.keep("large", "", answer(2 * LIMIT), now=NOW - 5)
    assert kept(store, ["a", "open", "large"]) == ["open", "large"]
    store.keep("next", "", answer(1000), now=NOW + 1)
    assert kept(store, ["open", "large", "next"]) == ["open", "next"]


def test_open_jobs_leave_room_for_answers(store: Store) -> None:
    size = LIMIT // 8 - EACH
    assert [add(store, name, size=size) for name in "abcd"] == [Admission.ACCEPTED] * 4
    assert add(store, "e", size=0) is Admission.FULL
    assert store.get("e", since=0) is None
    assert store.end("a", answer(LIMIT // 4), now=NOW)
    assert add(store, "e", size=size) is Admission.ACCEPTED
    assert kept(store, ["a", "b", "c", "d", "e"]) == ["a", "b", "c", "d", "e"]


def test_one_owner_leaves_room_for_others_open_jobs(store: Store) -> None:
    size = LIMIT // 16 - EACH
    assert [add(store, name, "bob", size) for name in "abc"] == [Admission.ACCEPTED] * 2 + [Admission.FULL]
    assert add(store, "d", "ann", size) is Admission.ACCEPTED
    assert [add(store, name, "", size) for name in "efghi"] == [Admission.ACCEPTED] * 5


def test_nothing_is_counted_of_what_is_gone(store: Store) -> None:
    assert store.kept() == 0
    for name in "abc":
        add(store, name, name)
        store.end(name, answer(1000), now=NOW)
    store.keep("d", "ann", answer(1000), now=NOW + 5)
    assert store.kept() > 4 * 1000
    assert store.purge(NOW + 1) == 3
    assert kept(store, ["a", "d"]) == ["d"]
    assert store.purge(NOW + 6) == 1
    assert store.kept() == 0


def test_a_smaller_room_holds_for_what_is_there_already(make: Make) -> None:
    store = make(ROOM)
    names = [f"job{number}" for number in range(600)]
    for number, name in enumerate(names):
        store.keep(name, "ann", answer(10), now=NOW + number)
    before = kept(store, names)
    smaller = make(Room(10_000))
    assert smaller.purge(NOW) == len(before) - 4
    assert kept(smaller, names) == names[-4:]


def test_services_that_write_at_once_keep_to_it_and_count_right(make: Make) -> None:
    stores = [make(ROOM) for _ in range(3)]
    opened = [f"open{number}" for number in range(8)]
    for name in opened:
        assert add(stores[0], name, "ann") is Admission.ACCEPTED

    def work(seed: int) -> int:
        draw, store, most = random.Random(seed), stores[seed % 3], 0
        for number in range(30):
            name, owner = f"{seed}-{number}", draw.choice(["", "ann", "bob"])
            at = NOW + draw.random()
            if draw.random() < 0.5:
                store.keep(name, owner, answer(draw.randrange(40_000)), now=at)
            elif add(store, name, owner, draw.randrange(2000)) is Admission.ACCEPTED:
                store.report(name, "checks", {"failed": 1})
                assert store.end(name, answer(draw.randrange(40_000)), now=at)
            most = max(most, store.kept())
        return most

    with ThreadPoolExecutor(6) as threads:
        assert max(threads.map(work, range(6))) <= LIMIT
    assert kept(stores[1], opened) == opened
    assert sum(stores[2].open().values()) == len(opened)
    for name in opened:
        assert stores[0].end(name, answer(10), now=NOW)
    stores[1].purge(NOW + 10)
    assert stores[2].kept() == 0


def test_the_file_grows_no_more_and_gives_back_what_is_free(tmp_path: Path) -> None:
    limit = 4 << 20
    store = FileStore(tmp_path, Room(limit))
    assert store._read("PRAGMA auto_vacuum") == [(2,)]
    draw = random.Random(1)

    def written(count: int) -> int:
        for number in range(count):
            store.keep(f"{draw.random()}", "", answer(draw.choice([500, 9_000, 300_000])), now=NOW + number)
        return size(store, tmp_path)

    first = written(100)
    assert limit / 2 < first < limit * 1.1
    assert written(200) < limit * 1.1, "free pages are used again"
    store.purge(NOW + 1000)
    assert store.kept() == 0
    assert size(store, tmp_path) < limit / 50
    store.close()


def size(store: FileStore, folder: Path) -> int:
    """Bytes of the file once everything is in it."""
    store._base.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    return (folder / FILE).stat().st_size


FIRST = """
CREATE TABLE IF NOT EXISTS jobs (
    id TEXT PRIMARY KEY, owner TEXT NOT NULL, request TEXT NOT NULL, status TEXT NOT NULL,
    created REAL NOT NULL, service TEXT NOT NULL DEFAULT '', lease REAL NOT NULL DEFAULT 0,
    attempts INTEGER NOT NULL DEFAULT 0, cancelled INTEGER NOT NULL DEFAULT 0,
    ended REAL, code INTEGER, body TEXT, key TEXT NOT NULL DEFAULT ''
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS jobs_open ON jobs (created) WHERE ended IS NULL;
CREATE INDEX IF NOT EXISTS jobs_ended ON jobs (ended) WHERE ended IS NOT NULL;
CREATE INDEX IF NOT EXISTS jobs_key ON jobs (key, ended) WHERE key <> '';
CREATE TABLE IF NOT EXISTS turns (owner TEXT PRIMARY KEY, at REAL NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS events (
    job TEXT NOT NULL, number INTEGER NOT NULL, kind TEXT NOT NULL, data TEXT NOT NULL,
    PRIMARY KEY (job, number)
) WITHOUT ROWID;
INSERT INTO jobs (id, owner, request, status, created) VALUES ('open', 'ann', 'call {}', 'queued', 1);
INSERT INTO jobs (id, owner, request, status, created, ended, code, body, key)
    VALUES ('done', 'bob', '', 'done', 1, 1800000000, 200, '{"ü":1}', 'key');
INSERT INTO jobs (id, owner, request, status, created, ended, code, body)
    SELECT value, '', '', 'done', 1, value, 200, printf('%.*c', 300000, 'x')
    FROM json_each('[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]');
INSERT INTO events VALUES ('open', 1, 'queued', '{}'), ('done', 1, 'done', '{}');
"""
"""What version 1 made."""


@pytest.mark.parametrize("version", [1, 0], ids=["whole", "interrupted-before-its-version-was-written"])
def test_a_file_of_the_first_version_is_taken_over(tmp_path: Path, version: int) -> None:
    base = sqlite3.connect(tmp_path / FILE)
    base.execute("PRAGMA journal_mode=WAL")
    base.executescript(FIRST)
    base.execute(f"PRAGMA user_version={version}")
    base.close()
    before = (tmp_path / FILE).stat().st_size
    with ThreadPoolExecutor(4) as threads:
        stores = list(threads.map(lambda _: FileStore(tmp_path, Room(1_000_000)), range(4)))
    store = stores[0]
    claim = store.claim("s", now=NOW, until=NOW + 10)
    assert claim is not None
    assert (claim.id, claim.owner, claim.request) == ("open", "ann", "call {}")
    found = store.find("key", since=0)
    assert found is not None
    assert (found.body, found.id, found.owner) == ('{"ü":1}', "done", "bob")
    assert [event.kind for event in store.events("done", 0)] == ["done"]
    assert kept(store, [str(number) for number in range(13)]) == ["10", "11", "12"]
    assert store._read("SELECT sum(size) FROM jobs") == [(store.kept(),)]
    for other in stores:
        other.close()
    assert (tmp_path / FILE).stat().st_size < before / 3
    again = FileStore(tmp_path)
    assert again._read("PRAGMA auto_vacuum") == [(2,)]
    again.close()
