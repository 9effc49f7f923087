"""Curated records and snapshots as one: who wins, which version is meant, what is listed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from time import monotonic, sleep

import pytest

from catalog import current
from catalog.library import Enriched, Library
from catalog.record import Record
from catalog.snapshots.index import index
from catalog.snapshots.record import FromSource, version_order
from catalog.snapshots.shelf import Shelf
from catalog.store import Filters, load_catalog

SCALES = "3018da578aab5d5a"
PATH = "python/sglang/kernels/ops/attention/dsv4/unified_kv_kernels/paged_decode.py"
OWN = """
def sparse(kv_scales):
    if kv_scales.dtype != torch.float32:
        raise RuntimeError(f"kv_scales must be fp32, got {kv_scales.dtype}")
def other(x, y):
    if x < 0:
        raise ValueError("negative sizes are not for this function")
    if y:
        raise ValueError(f"the flux capacitor of {x} is not charged to {y} gigawatts")
"""


def package(folder: Path, version: str, code: str = OWN) -> str:
    """A folder that is sglang's repository at a version."""
    place = folder / f"sglang-{version}"
    (place / PATH).parent.mkdir(parents=True)
    (place / PATH).write_text(code)
    (place / "pyproject.toml").write_text(f'[project]\nname = "sglang"\nversion = "{version}"\n')
    return str(place)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder with two versions, the older with another wording and place."""
    folder = tmp_path_factory.mktemp("library")
    older = "\n\n\n" + OWN.replace("gigawatts", "megawatts")
    for version, code in (("0.5.9", older), ("0.5.10", OWN)):
        index(Shelf(folder), package(folder, version, code), upstream="sgl-project/sglang", processes=1)
    return folder


@pytest.fixture(scope="module")
def library(data: Path) -> Iterator[Library]:
    yield current.use(data).get()
    current.use(None)


def found(library: Library, text: str, **options: object) -> list[tuple[str, float]]:
    """(version's last known, score) of the matches of a text."""
    report = library.matcher.match(text, **options)  # type: ignore[arg-type]
    return [(match.record_id, match.score) for match in report.matches if match.score >= 0.8]


def test_a_curated_record_wins_and_gains_the_lines(library: Library) -> None:
    record = library.get(SCALES)
    assert isinstance(record, Enriched)
    assert record.record.documentation
    assert record.record.source_code is not None
    assert "kv_scales must be fp32" in record.record.source_code
    Record.from_json(record.record.to_json())
    assert {site["version"] for site in record.x["sites"]} >= {"0.5.9", "0.5.10"}
    [(identifier, score)] = found(library, "RuntimeError: kv_scales must be fp32, got torch.bfloat16")
    assert (identifier, score >= 0.8) == (SCALES, True)


def test_a_curated_record_stands_for_other_words_of_its_own_place(tmp_path: Path) -> None:
    """A macro prints more around a check's words than its statement has."""
    [curated] = [
        record
        for record in load_catalog().records
        if "ScaleStoreArgs overflow" in record.record.error_message
    ]
    site = next(site for site in curated.x["sites"] if site["version"] == "0.5.23")
    place = tmp_path / "sglang"
    (place / site["path"]).parent.mkdir(parents=True)
    before = "\n" * (site["line"] - 2) + "void ScaleStoreArgs(int n) {\n"
    check = 'CHECK_HOST(n < 9) << "Internal Error: ScaleStoreArgs overflow. Something else";\n}\n'
    (place / site["path"]).write_text(before + check)
    (place / "pyproject.toml").write_text('[project]\nname = "sglang"\nversion = "0.5.23"\n')
    made = index(Shelf(tmp_path / "data"), str(place), upstream="sgl-project/sglang", processes=1)
    reader = current.Current(tmp_path / "data")
    library = reader.get()
    [snapshot] = library.snapshots
    assert (len(snapshot), snapshot.hidden) == (1, {0})
    shown = library.get(curated.record.id)
    assert shown is not None
    assert shown.record.source_code is not None
    assert "ScaleStoreArgs overflow" in shown.record.source_code
    assert (
        library.select(Filters(package="sglang", q="overflow")).total
        == library.select(Filters(q="ScaleStoreArgs")).total
    )
    report = library.matcher.match("RuntimeError: Internal Error: ScaleStoreArgs overflow. Something else")
    assert snapshot.get(next(iter(snapshot.identifiers()))[0]) is not None
    assert all(match.record_id != next(iter(snapshot.identifiers()))[0] for match in report.matches)
    assert made.held.records == 1


def test_a_scanned_record_is_a_whole_record(library: Library) -> None:
    [(identifier, _)] = found(library, "ValueError: the flux capacitor of 7 is not charged to 3 gigawatts")
    record = library.get(identifier)
    assert isinstance(record, FromSource)
    assert Record.from_json(record.record.to_json()) == record.record
    assert record.record.trigger_scenarios == "In `other`, when `y`."
    assert record.x["condition"] == "y"
    assert [check["message"] for check in record.x["before"]] == ["negative sizes are not for this function"]
    assert record.x["provenance"]["errorMessage"] == "extracted"
    assert "authored" not in record.x["provenance"].values()
    assert library.by_slug(record.record.slug) is not None


def test_a_reworded_message_keeps_what_it_said_before(library: Library) -> None:
    told = {}
    for unit in ("giga", "mega"):
        text = f"ValueError: the flux capacitor of 7 is not charged to 3 {unit}watts"
        [(identifier, _)] = found(library, text)
        record = library.get(identifier)
        assert isinstance(record, FromSource)
        told[unit] = record.x["lifecycle"]
    assert told["giga"] == {
        "status": "active",
        "firstSeen": "0.5.10",
        "lastSeen": "0.5.10",
        "priorWordings": ["the flux capacitor of {x} is not charged to {y} megawatts"],
    }
    assert (told["mega"]["status"], told["mega"]["priorWordings"]) == ("removed", [])


def test_equal_sites_of_versions_are_one_match(library: Library) -> None:
    [(identifier, _)] = found(library, "ValueError: negative sizes are not for this function")
    record = library.get(identifier)
    assert isinstance(record, FromSource)
    assert record.versions == ("0.5.9", "0.5.10")
    assert [(site["version"], site["line"]) for site in record.x["sites"]] == [("0.5.10", 7), ("0.5.9", 10)]


@pytest.mark.parametrize(
    ("text", "packages", "count"),
    [
        ("{}", {}, 1),
        ("{}", {"sglang": "0.5.9"}, 1),
        ("{}", {"sglang": "0.5.10"}, 0),
        ("{}", {"sglang": "0.4.0"}, 1),
        ("{}", {"SGLang": "v0.5.10"}, 0),
        ("{}", {"sglang": "0.5.10+fork.7"}, 0),
        ("sglang 0.5.10+cu129 starts\n{}", {}, 0),
        ("sglang==0.5.10 starts\n{}", {}, 0),
        ("server: SGLang version v0.5.10, torch 2.9\n{}", {}, 0),
        ("/x/sglang-0.5.10.dist-info/METADATA\n{}", {}, 0),
        ("sglang==0.5.9\n{}", {}, 1),
        ("sglang==0.5.10\n{}", {"sglang": "0.5.9"}, 1),
        ("sglang==0.5.101\n{}", {}, 1),
    ],
)
def test_the_version_that_is_said_is_looked_into_alone(
    library: Library, text: str, packages: dict[str, str], count: int
) -> None:
    """Only 0.5.9 has this wording."""
    message = "ValueError: the flux capacitor of 7 is not charged to 3 megawatts"
    assert len(found(library, text.format(message), packages=packages)) == count


def test_versions_are_ordered_as_indexes_order_them() -> None:
    ordered = [
        "no version",
        "0.5.9",
        "0.5.10rc1",
        "0.5.10",
        "0.5.10+cu129",
        "0.5.10.post1",
        "0.6.0.dev1",
        "1!0",
    ]
    assert sorted(set(ordered), key=version_order) == ordered


def test_lists_hold_each_record_once_and_page_through_all(library: Library) -> None:
    everything = library.select(Filters())
    curated = len(load_catalog().records)
    assert everything.total == curated + 3 == library.record_count
    listed: list[str] = []
    after = None
    while True:
        shown, after = library.page(everything, after, 40)
        listed += [item.record.id for item in shown]
        if after is None:
            break
    assert len(listed) == len(set(listed)) == curated + 3
    with pytest.raises(KeyError):
        library.page(everything, "0" * 16, 40)


@pytest.mark.parametrize(
    ("filters", "count"),
    [
        (Filters(q="flux capacitor"), 2),
        (Filters(q="flux_capacitor gigawatts"), 1),
        (Filters(q="paged_decode negative"), 1),
        (Filters(q='"'), 0),
        (Filters(q="gigawatts OR megawatts"), 0),
        (Filters(regex="flux.*(giga|mega)watts"), 2),
        (Filters(regex="^negative sizes", package="sglang", error_class="ValueError"), 1),
        (Filters(q="flux", repo="o/r"), 0),
        (Filters(q="flux", tag="dtype"), 0),
        (Filters(q="flux", error_type="console"), 0),
        (Filters(q="flux", severity="error"), 2),
    ],
)
def test_criteria_narrow_scanned_records_too(library: Library, filters: Filters, count: int) -> None:
    selection = library.select(filters)
    assert sum(len(numbers) for _, numbers in selection.numbers) == count


def test_repositories_count_all_their_records(library: Library) -> None:
    counts = {item.repo: item.error_count for item in library.repositories}
    curated = {item.repo: item.error_count for item in load_catalog().repositories()}
    assert counts["sgl-project/sglang"] == curated["sgl-project/sglang"] + 3


def test_the_data_set_is_another_with_snapshots(library: Library) -> None:
    assert library.dataset_version != load_catalog().dataset_version
    assert library.dataset_version.startswith(load_catalog().dataset_version.rpartition("-")[0])


def test_one_version_stands_for_all_that_is_answered_from(data: Path, library: Library) -> None:
    """Also for a command that diagnoses and never reads a snapshot."""
    unread = current.Current(data)
    assert unread.dataset_version == library.dataset_version
    assert unread._library is None
    assert current.version() == library.dataset_version


def test_a_snapshot_is_picked_up_while_serving(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(current, "EVERY", 0.0)
    reader = current.use(tmp_path)
    called: list[int] = []
    current.listen(lambda: called.append(1))
    try:
        first = reader.get()
        assert first.snapshots == ()
        index(Shelf(tmp_path), package(tmp_path, "1"), processes=1)
        deadline = monotonic() + 20
        while (second := reader.get()) is first and monotonic() < deadline:
            sleep(0.01)
        assert [snapshot.version for snapshot in second.snapshots] == ["1"]
        assert called
        assert first.get(SCALES) is not None, "what is being answered goes on with the old state"
    finally:
        current._LISTENERS.pop()
        current.use(None)


def test_a_broken_snapshot_is_left_out_and_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for version in ("1", "2"):
        made = index(Shelf(tmp_path), package(tmp_path, version), processes=1)
    (Shelf(tmp_path).folder / made.held.path).write_bytes(b"gone")
    reader = current.use(tmp_path)
    try:
        assert [snapshot.version for snapshot in reader.get().snapshots] == ["1"]
        assert len(reader.problems) == 1
        assert made.held.path in caplog.text
    finally:
        current.use(None)
