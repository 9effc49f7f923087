"""Records built from checks and prose: facts of the four best known, and how checks share a record."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Self

import pytest

from catalog import commit, prose
from catalog.errors import CatalogError
from catalog.faults import faults
from catalog.load import Curated, build, load
from kernels.call import Call, argument
from kernels.checking import Check, Fix, LauncherCheck, Severity, aside
from kernels.dtypes import DType, Torch
from kernels.registry import Operation, operations
from kernels.spec import TensorSpec
from kernels.upstream import File, Package

SHA = "0132848349585cfe6aae51c4941cbae872505f8a"
OPS = "python/sglang/kernels/ops"
QUANTO = "python/sglang/multimodal_gen/runtime/layers/quantization/configs/quanto_int8_config.py"

WELL_KNOWN: dict[str, dict[str, Any]] = {
    "402df144293dfbb6": {
        "errorMessage": "int32-packed scale buffers require scale_ue8m0=True",
        "messagePattern": "int32-packed scale buffers require scale_ue8m0=True",
        "errorClass": "ValueError",
        "filePath": f"{OPS}/quantization/per_token_group_quant.py",
        "lineNumber": 75,
        "slug": "int32-packed-scale-buffers-require-scale-ue8m0-tru",
    },
    "423125772347fb99": {
        "errorMessage": "MXFP8 fused decode prologue requires interleaved K/V scale buffers "
        "with shape {sf_shape}, got {tuple(sfk.shape)} and {tuple(sfv.shape)}.",
        "messagePattern": "MXFP8 fused decode prologue requires interleaved K/V scale buffers "
        r"with shape (.+?), got (.+?) and (.+?)\.",
        "errorClass": "ValueError",
        "filePath": f"{OPS}/attention/inkling_attn_prologue.py",
        "lineNumber": 330,
        "slug": "mxfp8-fused-decode-prologue-requires-interleaved-k",
    },
    "3018da578aab5d5a": {
        "errorMessage": "kv_scales must be fp32, got {kv_scales.dtype}",
        "messagePattern": "kv_scales must be fp32, got (.+?)",
        "errorClass": "RuntimeError",
        "filePath": f"{OPS}/attention/dsv4/unified_kv_kernels/paged_decode.py",
        "lineNumber": 668,
        "slug": "kv-scales-must-be-fp32-got-kv-scales-dtype",
        "githubUrl": f"https://github.com/sgl-project/sglang/blob/{SHA}/{OPS}/attention/dsv4/unified_kv_kernels/"
        "paged_decode.py#L650-L686",
        "handlingStrategy": "validation",
        "backgroundTag": "tensor-dtype-mismatch",
    },
    "0416e3d22055e05b": {
        "errorMessage": "Quanto auxiliary scale {scale_name!r} must be a float scalar",
        "messagePattern": "Quanto auxiliary scale (.+?) must be a float scalar",
        "errorClass": "ValueError",
        "filePath": QUANTO,
        "lineNumber": 178,
        "slug": "quanto-auxiliary-scale-scale-name-r-must-be-a-fl",
    },
}

COMMON = {
    "repo": "sgl-project/sglang",
    "errorCode": None,
    "errorType": "validation",
    "httpStatus": None,
    "severity": "error",
    "sourceCode": None,
    "sourceCodeStart": None,
    "sourceCodeEnd": None,
    "analyzedSha": SHA,
    "schemaVersion": 2,
}


@pytest.fixture(scope="module")
def curated() -> dict[str, Curated]:
    return {found.record.id: found for found in load(strict=False)}


@pytest.mark.parametrize("identifier", WELL_KNOWN)
def test_facts_of_well_known_records(curated: dict[str, Curated], identifier: str) -> None:
    record = curated[identifier].record.to_json()
    expected = {"id": identifier, **COMMON, **WELL_KNOWN[identifier]}
    assert {key: record[key] for key in expected} == expected
    assert record["githubUrl"].startswith(
        f"https://github.com/sgl-project/sglang/blob/{SHA}/{record['filePath']}#L"
    )


def test_the_example_fix_shows_a_failing_and_a_passing_call(curated: dict[str, Curated]) -> None:
    assert curated["402df144293dfbb6"].record.example_fix == (
        "# before\n"
        'output_s = torch.empty(4, 1, dtype=torch.int32, device="cuda")\n'
        "per_token_group_quant(input, output_q, output_s)\n"
        "# after\n"
        'output_s = torch.empty(4, 1, dtype=torch.int32, device="cuda")\n'
        "per_token_group_quant(input, output_q, output_s, scale_ue8m0=True)"
    )


def test_additions_of_a_record(curated: dict[str, Curated]) -> None:
    x = json.loads(json.dumps(curated["3018da578aab5d5a"].x))
    path = WELL_KNOWN["3018da578aab5d5a"]["filePath"]
    assert x["match"] == {
        "regex": "kv_scales must be fp32, got (.+?)$",
        "literals": ["kv_scales must be fp32, got "],
        "captures": [{"name": "got", "expr": "kv_scales.dtype", "kind": "dtype"}],
        "literalWeight": len("kv_scalesmustbefp32,got"),
    }
    assert [(site["path"], site["line"], site["version"], site["order"]) for site in x["sites"]] == [
        (path, 668, SHA, 1),
        (path, 739, "0.5.23", 1),
    ]
    assert x["sites"][0]["url"] == WELL_KNOWN["3018da578aab5d5a"]["githubUrl"]
    [check] = x["checks"]
    assert (check["operation"], check["origin"], check["severity"]) == (
        "sparse_attn_v4_paged_decode",
        "upstream",
        "error",
    )
    assert "class " in check["source"]
    assert "def find(" in check["source"]
    [edit] = x["fix"]["edits"]
    assert (edit["argument"], edit["attribute"], edit["to"]) == ("kv_scales", "dtype", "float32")
    assert x["fix"]["safe"] is True
    assert x["repro"]["failing"]["arguments"]["kv_scales"]["dtype"] == edit["from"]
    assert x["repro"]["passing"]["arguments"]["kv_scales"]["dtype"] == "float32"
    assert x["repro"]["renderedMessage"] == f"kv_scales must be fp32, got torch.{edit['from']}"
    assert x["repro"]["lastVerified"]["level"] == "run"
    assert x["lifecycle"] == {"status": "active", "firstSeen": SHA, "lastSeen": "0.5.23", "priorWordings": []}


def test_every_field_has_a_provenance(curated: dict[str, Curated]) -> None:
    optional = {"errorCode", "httpStatus", "sourceCode", "sourceCodeStart", "sourceCodeEnd"}
    for found in curated.values():
        origins = found.x["provenance"]
        assert set(origins) == set(found.record.to_json()) - optional
        assert set(origins.values()) <= {"authored", "derived", "extracted"}
        assert (origins["errorMessage"] == "extracted") == (found.record.repo != "faultbook")


def test_a_launchers_record_knows_its_prefix(curated: dict[str, Curated]) -> None:
    [found] = [
        item
        for item in curated.values()
        if item.record.error_message.startswith("input base pointer must be 32B-aligned")
    ]
    assert found.record.file_path == "python/sglang/kernels/jit/csrc/gemm/per_token_group_quant.cuh"
    assert found.x["match"]["literals"][0] == "Failed at "
    assert found.x["match"]["literalWeight"] > found.fault.template.literal_weight
    assert found.x["repro"]["renderedMessage"].startswith("Failed at python/sglang/")


def test_a_statement_without_a_text_is_known_by_its_source(curated: dict[str, Curated]) -> None:
    [found] = [item for item in curated.values() if item.record.error_message == "assert output_s is None"]
    assert found.record.error_class == "AssertionError"
    assert (found.record.line_number, found.record.github_url) == (None, None)
    assert found.x["match"]["regex"] is None
    assert found.x["repro"]["renderedMessage"] == ""


def test_pythons_own_errors_are_records_of_this_project(curated: dict[str, Curated]) -> None:
    own = [item for item in curated.values() if item.record.repo == "faultbook"]
    assert own
    for found in own:
        path, line = found.record.file_path, found.record.line_number
        assert path == f"kernels/{found.fault.name.partition('/')[0]}/checks.py"
        lines = (Path(__file__).parents[2] / path).read_text("utf-8").splitlines()
        declared = f"class {found.fault.check.__name__}("
        if line is None:
            assert not any(text.startswith(declared) for text in lines)
        else:
            assert lines[line - 1].startswith(declared)
        assert found.record.analyzed_sha == commit.built_from()
        assert found.record.github_url is None


def test_records_come_by_repository_path_and_line(curated: dict[str, Curated]) -> None:
    places = [(item.record.repo, item.record.file_path) for item in curated.values()]
    assert places == sorted(places)


# --- how checks share a record


PACKAGE = Package("pack", "owner/pack", "a" * 40, "1.0", "A package")
FILE = File(PACKAGE, "pack/module.py", 40)


@dataclass(frozen=True)
class SomeCall(Call):
    """One tensor and a number."""

    positional: ClassVar[int] = 1
    x: TensorSpec = argument("a tensor")
    n: int = argument("a number", default=1)


GOOD = SomeCall(TensorSpec((4,), DType.F32))


@dataclass(frozen=True)
class WrongType(Check[SomeCall]):
    """x is float32."""

    raises = ValueError
    message = "x is {x.dtype} at {n}"
    sites = (FILE.at("g", None, 30), FILE.at("f", 20, 25))
    reason = "x is {got}"
    looks_at = ("x.dtype",)
    requires = "x float32"
    category = "dtype"
    got: Torch
    number: int
    note: str = aside()

    @classmethod
    def find(cls, call: SomeCall, /) -> Iterator[Self]:
        if call.x.dtype is not DType.F32:
            yield cls(Torch(call.x.dtype), call.n, "")

    def fixes(self, call: SomeCall, /) -> Iterator[Fix[SomeCall]]:
        yield Fix("Cast x", call.with_dtype("x", DType.F32), safe=True)

    @classmethod
    def example(cls) -> SomeCall:
        return GOOD.with_dtype("x", DType.F16)


@dataclass(frozen=True)
class WrongTypeElsewhere(WrongType):
    """The same text, raised by a variant."""

    sites = (FILE.at("h", 10, 11),)
    severity = Severity.WARNING


@dataclass(frozen=True)
class Unnamed(LauncherCheck[SomeCall]):
    """A launcher's condition without a text."""

    sites = (FILE.at("run", 5, 6, expression="n > 0 {braces}"),)
    reason = "n is not positive"
    looks_at = ("n",)
    requires = "n > 0"
    category = "values"

    @classmethod
    def find(cls, call: SomeCall, /) -> Iterator[Self]:
        if call.n < 1:
            yield cls()

    @classmethod
    def example(cls) -> SomeCall:
        return GOOD.replace(n=0)


def operation(*checks: type[Check[Any]], name: str = "some_operation") -> Operation:
    return Operation(
        name=name,
        title="",
        summary="",
        call=SomeCall,
        stages=checks,
        valid=GOOD,
        fit=lambda given: SomeCall(**given),
        fill=lambda call: {},
        outputs=(),
        source=FILE,
        module="pack.module",
    )


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch) -> None:
    """Operations made here have no folder in `kernels`."""
    monkeypatch.setattr("catalog.faults.folder_of", lambda operation: "folder")


@pytest.mark.usefixtures("folder")
def test_checks_of_one_text_in_one_file_are_one_record() -> None:
    first, second = operation(WrongType, WrongTypeElsewhere, Unnamed), operation(WrongType, name="other")
    shared, unnamed = faults([first, second])
    assert [(case.operation.name, case.check) for case in shared.cases] == [
        ("some_operation", WrongType),
        ("some_operation", WrongTypeElsewhere),
        ("other", WrongType),
    ]
    assert shared.name == "folder/wrong_type"
    assert [(site.function, site.lines) for site in shared.sites] == [
        ("h", (10, 11)),
        ("f", (20, 25)),
        ("g", (30,)),
    ]
    records = build([shared, unnamed], {})
    assert [record.line_number for record in records.values()] == [5, 10]
    assert records[shared.id].severity == "error", "the worst of its checks"
    assert (
        records[shared.id].github_url
        == f"https://github.com/owner/pack/blob/{'a' * 40}/pack/module.py#L1-L28"
    )
    assert records[unnamed.id].message_pattern == r"n > 0 \{braces\}"
    assert records[unnamed.id].example_fix == (
        "# before\nsome_operation(x, n=0)\n# after\nsome_operation(x)"
    ), "without a declared fix, the valid call"


@pytest.mark.usefixtures("folder")
def test_fields_name_the_holes() -> None:
    [fault] = faults([operation(WrongType)])
    assert [(hole.name, hole.expr, hole.kind) for hole in fault.captures] == [
        ("got", "x.dtype", "dtype"),
        ("number", "n", "int"),
    ]


@pytest.mark.usefixtures("folder")
def test_repeated_slugs_are_numbered_within_a_repository() -> None:
    elsewhere = type(
        "Elsewhere",
        (WrongType,),
        {
            "sites": (File(PACKAGE, "pack/another.py").at("f", 1),),
            "__doc__": "The same text in another file.",
        },
    )
    records = build(faults([operation(WrongType, elsewhere)]), {}).values()
    assert [(record.file_path, record.slug) for record in records] == [
        ("pack/another.py", "x-is-x-dtype-at-n"),
        ("pack/module.py", "x-is-x-dtype-at-n-2"),
    ]


@pytest.mark.usefixtures("folder")
def test_two_records_cannot_have_one_file() -> None:
    namesake = type("WrongType", (WrongType,), {"message": "another text {a} {b}", "__doc__": "A namesake."})
    with pytest.raises(CatalogError, match="two records are called folder/wrong_type"):
        faults([operation(WrongType), operation(namesake, name="other")])


@pytest.mark.usefixtures("folder")
def test_an_example_that_passes_is_refused() -> None:
    idle = type("Idle", (WrongType,), {"example": classmethod(lambda cls: GOOD), "__doc__": "Never fails."})
    [fault] = faults([operation(idle)])
    with pytest.raises(CatalogError, match="its example does not break it"):
        _ = fault.demonstrations


@pytest.mark.usefixtures("folder")
def test_a_check_with_neither_text_nor_site_is_refused() -> None:
    nothing = type("Nothing", (Check,), {"__doc__": "Says nothing."})
    with pytest.raises(CatalogError, match="neither a message nor a site"):
        faults([operation(nothing)])


# --- prose and checks agree


@pytest.fixture
def shelf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of prose in place of the project's, for one operation whose file is there."""
    first = faults(operations().values())[0]
    monkeypatch.setattr(prose, "RECORDS", tmp_path)
    monkeypatch.setattr("catalog.load.faults", lambda _: (replace(first),))
    path = prose.path_of(first.name)
    path.parent.mkdir()
    path.write_text(
        'family = "tensor-layout"\ntags = ["t"]\nhandling = "validation"\ndocumentation = "d"\n'
        'triggers = "t"\nsituations = "s"\nsolutions = ["s"]\ntips = ["t"]\n',
        "utf-8",
    )
    return path


def test_prose_becomes_the_record(shelf: Path) -> None:
    [found] = load()
    assert (found.record.background_tag, found.record.documentation, found.record.tags) == (
        "tensor-layout",
        "d",
        ("t",),
    )


def test_missing_prose_is_refused_when_strict(shelf: Path) -> None:
    shelf.unlink()
    [found] = load(strict=False)
    assert (found.record.documentation, found.record.background_tag) == ("", None)
    with pytest.raises(CatalogError, match=f"records without prose: {shelf.parent.name}/{shelf.stem}"):
        load()


def test_prose_of_no_record_is_refused(shelf: Path) -> None:
    (shelf.parent / "nobody.toml").write_bytes(shelf.read_bytes())
    with pytest.raises(CatalogError, match=f"prose of no record: {shelf.parent.name}/nobody"):
        load()


@pytest.mark.parametrize("target", ["nowhere/nothing", "itself"])
def test_a_link_goes_to_another_record(shelf: Path, target: str) -> None:
    name = f"{shelf.parent.name}/{shelf.stem}" if target == "itself" else target
    with shelf.open("a", encoding="utf-8") as file:
        file.write(f'\n[[related]]\ncheck = "{name}"\nreason = "r"\n')
    assert load(strict=False)[0].related == ()
    with pytest.raises(CatalogError, match=f"related check '{name}' is no other record's"):
        load()
