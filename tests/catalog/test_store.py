"""The catalog as it is served: look-ups, criteria, pages, and a version that follows the content."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from catalog.load import WRITTEN_ON, Curated, load, on_demand
from catalog.match.user_regex import BadPattern
from catalog.sources import digest
from catalog.store import Catalog, Filters, load_catalog
from kernels.registry import operations

SCALES = "3018da578aab5d5a"


@pytest.fixture(scope="module")
def records() -> tuple[Curated, ...]:
    return load(strict=False)


@pytest.fixture(scope="module")
def catalog(records: tuple[Curated, ...]) -> Catalog:
    return Catalog(records)


def ids(found: list[Curated]) -> list[str]:
    return [item.record.id for item in found]


def test_by_id_and_slug(catalog: Catalog) -> None:
    found = catalog.get(SCALES)
    assert found is not None
    assert catalog.by_slug(found.record.slug) is found
    assert catalog.by_slug(found.record.slug, found.record.repo) is found
    assert catalog.by_slug(found.record.slug, "faultbook") is None
    assert catalog.get(SCALES.upper()) is None
    assert catalog.by_slug("nothing") is None


def test_a_slug_of_two_repositories_means_upstreams(records: tuple[Curated, ...]) -> None:
    upstream = next(found for found in records if not found.fault.own)
    own = next(found for found in records if found.fault.own)
    namesake = replace(own, record=replace(own.record, slug=upstream.record.slug))
    assert Catalog([namesake, upstream]).by_slug(upstream.record.slug) is upstream


def test_every_check_has_its_record(catalog: Catalog) -> None:
    for operation in operations().values():
        for check in operation.checks:
            found = catalog.get(str(catalog.record_id_of(operation, check)))
            assert found is not None
            assert found.record.error_message == check.error_message()
    other, *_ = (
        operation for operation in operations().values() if operation.name != "per_token_group_quant"
    )
    assert catalog.record_id_of(other, operations()["per_token_group_quant"].checks[0]) is None


def test_no_criterion_is_every_record(catalog: Catalog) -> None:
    assert catalog.select(Filters()) == list(catalog.records)


@pytest.mark.parametrize(
    "filters",
    [
        Filters(repo="sgl-project/sglang", operation="sparse_attn_v4_paged_decode"),
        Filters(error_class="RuntimeError", q="kv_scales fp32"),
        Filters(regex=r"fp32, got \{"),
        Filters(family="tensor-dtype-mismatch", package="sglang"),
        Filters(error_type="validation", severity="error", tag="kv-cache"),
        Filters(q="SCALES Must"),
    ],
)
def test_a_record_is_found_by_each_criterion(catalog: Catalog, filters: Filters) -> None:
    found = ids(catalog.select(filters))
    assert SCALES in found
    assert len(found) < len(catalog.records)
    order = ids(list(catalog.records))
    assert found == sorted(found, key=order.index)


@pytest.mark.parametrize(
    "filters",
    [
        Filters(repo="sglang"),
        Filters(operation="sparse"),
        Filters(error_class="Runtime"),
        Filters(error_type="panic"),
        Filters(severity="info"),
        Filters(tag="kv"),
        Filters(family="tensor"),
        Filters(package="vllm"),
        Filters(q="fp32 zebra"),
        Filters(regex="KV_SCALES MUST"),
    ],
)
def test_criteria_take_whole_names(catalog: Catalog, filters: Filters) -> None:
    assert catalog.select(filters) == []


def test_a_class_is_found_by_its_last_name(records: tuple[Curated, ...]) -> None:
    dotted = replace(records[0], record=replace(records[0].record, error_class="torch.OutOfMemoryError"))
    catalog = Catalog([dotted])
    assert catalog.select(Filters(error_class="OutOfMemoryError")) == [dotted]
    assert catalog.select(Filters(error_class="torch.OutOfMemoryError")) == [dotted]


def test_a_bad_pattern_is_refused(catalog: Catalog) -> None:
    with pytest.raises(BadPattern):
        catalog.select(Filters(regex="("))


def test_pages_follow_each_other_without_gap_or_repeat(catalog: Catalog) -> None:
    everything = catalog.select(Filters())
    seen: list[str] = []
    after = None
    while True:
        shown, after = catalog.page(everything, after, 7)
        seen += ids(shown)
        if after is None:
            break
        assert len(shown) == 7
    assert seen == ids(everything)


def test_a_page_goes_on_where_its_last_record_no_longer_fulfils_the_criteria(catalog: Catalog) -> None:
    everything = catalog.select(Filters())
    [_, last], after = catalog.page(everything, None, 2)
    assert after == last.record.id
    rest, _ = catalog.page([found for found in everything if found is not last], after, 2)
    assert rest == everything[2:4]


def test_an_unknown_cursor_is_an_error(catalog: Catalog) -> None:
    with pytest.raises(KeyError):
        catalog.page(list(catalog.records), "0" * 16, 5)


def test_the_version_follows_the_content(records: tuple[Curated, ...], catalog: Catalog) -> None:
    made = Catalog(records).dataset_version
    assert Catalog(load(strict=False)).dataset_version == made
    changed = replace(records[0], record=replace(records[0].record, documentation="other"))
    assert Catalog([changed, *records[1:]]).dataset_version != made
    assert Catalog(records[1:]).dataset_version != made


def test_what_the_records_are_made_of_tells_the_version_without_making_them(tmp_path: Path) -> None:
    catalog = Catalog(on_demand(), lambda: "0123456789abcdef")
    assert catalog.dataset_version == f"{WRITTEN_ON}-0123456789ab"
    assert not [found for found in catalog.records if "record" in vars(found)]
    for name in ("kernels/a/checks.py", "catalog/load.py", "catalog/records/a/b.toml", "kernels/a/README.md"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("one")
    versions = {digest(tmp_path)}
    for name in ("kernels/a/checks.py", "catalog/load.py", "catalog/records/a/b.toml"):
        (tmp_path / name).write_text("two")
        versions.add(digest(tmp_path))
    assert len(versions) == 4
    (tmp_path / "kernels/a/README.md").write_text("two")
    assert digest(tmp_path) in versions


def test_only_what_is_looked_at_is_made(records: tuple[Curated, ...]) -> None:
    catalog = Catalog(on_demand())
    assert catalog.matcher.match("kv_scales must be fp32, got torch.float16").matches[0].record_id == SCALES
    found = catalog.by_slug("kv-scales-must-be-fp32-got-kv-scales-dtype")
    assert found is catalog.get(SCALES)
    assert [each.fault.id for each in catalog.records if "record" in vars(each)] == []
    assert found is not None
    assert found.record.id == SCALES
    assert [each.fault.id for each in catalog.records if "record" in vars(each)] == [SCALES]


def test_records_made_on_demand_are_the_same(records: tuple[Curated, ...]) -> None:
    catalog = Catalog(on_demand())
    catalog.complete()
    assert [(each.record, each.prose, each.related) for each in catalog.records] == [
        (each.record, each.prose, each.related) for each in records
    ]


def test_repositories(catalog: Catalog) -> None:
    found = {item.repo: item for item in catalog.repositories()}
    assert set(found) == {"faultbook", "huggingface/safetensors", "sgl-project/sglang"}
    assert sum(item.error_count for item in found.values()) == len(catalog.records)
    assert (found["sgl-project/sglang"].package, found["sgl-project/sglang"].package_version) == (
        "sglang",
        "0.5.23",
    )


def test_the_matcher_leaves_pythons_own_texts_alone(catalog: Catalog) -> None:
    report = catalog.matcher.match("ZeroDivisionError: integer division or modulo by zero")
    assert not report.has_match
    assert catalog.matcher.match("kv_scales must be fp32, got torch.float16").matches[0].record_id == SCALES


def test_the_process_has_one_catalog() -> None:
    assert load_catalog() is load_catalog()
