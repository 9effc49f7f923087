"""Every refusal of an inspection: exact text, what else fails, what cannot be evaluated, and the fixes."""

from __future__ import annotations

import pickle
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernels.call import arguments_json
from kernels.checking import Check, Origin, Severity, Status
from kernels.checkpoint import Checkpoint, Header, NameMapper
from kernels.dtypes import DType
from kernels.examining import Examination, guard
from kernels.quanto_int8_checkpoint.checks import OPERATIONS, STAGES
from kernels.quanto_int8_checkpoint.signature import VALID, Layer, QuantoCall, fill, fit
from kernels.rendering import reproduction
from kernels.spec import TensorSpec
from kernels.values import Full, Listed
from tests.kernels.quanto_int8_checkpoint.files import ENTRY, GOLDEN, MAP, P, encoded, file, layer, p

[OPERATION] = OPERATIONS


def failed(examination: Examination) -> list[str]:
    return [outcome.check.id() for outcome in examination.failed()]


def unreached(examination: Examination) -> list[str]:
    return [outcome.check.id() for outcome in examination.outcomes if outcome.status is Status.NOT_REACHED]


def occurrences(examination: Examination, check: str) -> list[Check[Any]]:
    [outcome] = [outcome for outcome in examination.outcomes if outcome.check.id() == check]
    return [occurrence.violation for occurrence in outcome.occurrences]


def fixes(call: QuantoCall, check: str) -> list[tuple[str, bool, QuantoCall]]:
    """Every fix that the check's violations offer."""
    [outcome] = [outcome for outcome in OPERATION.examine(call).outcomes if outcome.check.id() == check]
    return [
        (fix.title, fix.safe, fix.call)
        for occurrence in outcome.occurrences
        for fix in occurrence.violation.fixes(occurrence.subject)
    ]


# --- what passes

SOUND = b'{"weights": "qint8", "activations": "none"}'
CONV = {"conv.weight": Header("BF16", (3, 2, 1, 1)), "norm.weight": Header("BF16", (7,))}

ACCEPTED: dict[str, tuple[QuantoCall, set[str]]] = {
    "golden vector": (GOLDEN, {"model.language_model.layers.0.mlp.up_proj"}),
    "F32 scale": (p(), {P}),
    "F16 scales": (p(scale=Header("F16", (3, 1)), input=Header("F16", ()), output=Header("F16", ())), {P}),
    "mapped name": (p().replace(name_mapper=NameMapper({P: f"model.{P}"})), {f"model.{P}"}),
    "a mapper of other names": (p().replace(name_mapper=NameMapper({"x": "y"})), {P}),
    "extra keys in an entry": (file({P: {**ENTRY, "group": [1, {"a": None}]}}), {P}),
    "unrelated tensors": (file(tensors={**layer(P), **CONV}), {P}),
    "a bias of any type": (p(bias=Header("F64", (3,))), {P}),
    "two layers, the map in another order": (
        file({"z": ENTRY, P: ENTRY}, {**layer(P), **layer("z")}),
        {P, "z"},
    ),
    "NaN in an ignored key": (file(b'{"blk.0.proj": {"x": NaN, ' + SOUND[1:] + b"}"), {P}),
}


@pytest.mark.parametrize("name", ACCEPTED)
def test_accepted(name: str) -> None:
    call, prefixes = ACCEPTED[name]
    examination = OPERATION.examine(call)
    assert {outcome.status for outcome in examination.outcomes} == {Status.PASSED}
    assert {found.mapped for found in call.layers} == prefixes
    guard(STAGES, call)


# --- what upstream takes and we do not

HAZARDS: dict[str, tuple[QuantoCall, str]] = {
    "a bias of another length": (p(bias=Header("F64", (9,))), "bias_shape"),
    "no columns": (p(data=Header("I8", (3, 0))), "weight_empty"),
    "no rows": (p(data=Header("I8", (0, 2)), scale=Header("F32", (0, 1))), "weight_empty"),
    "repeated key, the last counts": (
        file(b'{"blk.0.proj": {"weights": "qint4"}, "blk.0.proj": ' + SOUND + b"}"),
        "map_keys_repeated",
    ),
    "repeated key in an entry": (
        file(b'{"blk.0.proj": {"weights": "qint4", ' + SOUND[1:] + b"}"),
        "map_keys_repeated",
    ),
    "a zero point": (
        file(tensors={**layer(P), f"{P}.weight._zeropoint": Header("I8", (3, 1))}),
        "tensors_ignored",
    ),
    "an empty prefix": (file({"": ENTRY}, layer("")), "prefix_empty"),
    "an auxiliary scale of 0.5": (p(output=Header("F32", (), Full(0.5))), "aux_scale_not_one"),
    "a scale of NaN": (p(scale=Header("F32", (3, 1), Full(float("nan")))), "scale_not_finite"),
    "a scale of 0": (p(scale=Header("F32", (3, 1), Listed((1.0, 0.0, 2.0)))), "scale_not_positive"),
    "a scale that makes infinite weights": (
        p(scale=Header("F32", (3, 1), Full(2.0**122))),
        "scale_overflows_weights",
    ),
    "a scale that bfloat16 rounds": (p(scale=Header("F32", (3, 1), Full(0.3))), "scale_loses_precision"),
}


@pytest.mark.parametrize("name", HAZARDS)
def test_what_upstream_takes_is_named(name: str) -> None:
    call, check = HAZARDS[name]
    examination = OPERATION.examine(call)
    assert examination.raised is None
    assert failed(examination) == [check]
    [violation] = occurrences(examination, check)
    assert examination.rejected == (violation.severity is Severity.ERROR)
    for index, (title, _, fixed) in enumerate(fixes(call, check)):
        after = failed(OPERATION.examine(fixed))
        assert check not in after, title
        assert index or not after, title


# --- what upstream refuses, to the letter

PREFIXES = "Quanto tensor/map prefixes do not match: missing metadata={}, missing tensors={}"
INVALID = "Invalid Quanto quantization_map_base64"
NOT_OBJECT = "Quanto quantization map must be a non-empty object"
NO_ACTIVATIONS = "Quanto activation quantization is not supported for 'blk.0.proj'"

REFUSED: dict[str, tuple[QuantoCall, str, list[str]]] = {
    "no map": (
        file(**{MAP: None}),
        "Quanto checkpoint is missing quantization_map_base64",
        ["map_missing"],
    ),
    "no base64": (file(**{MAP: "!!!!"}), INVALID, ["map_invalid"]),
    "empty": (file(**{MAP: ""}), INVALID, ["map_invalid"]),
    "wrapped": (
        file(**{MAP: encoded({P: ENTRY})[:40] + "\n" + encoded({P: ENTRY})[40:]}),
        INVALID,
        ["map_invalid"],
    ),
    "not UTF-8": (file(b'{"\xff": {}}'), INVALID, ["map_invalid"]),
    "not JSON": (file(b"hello"), INVALID, ["map_invalid"]),
    "byte order mark": (file(b"\xef\xbb\xbf{}"), INVALID, ["map_invalid"]),
    "a list": (file([1]), NOT_OBJECT, ["map_not_object"]),
    "a text": (file("x"), NOT_OBJECT, ["map_not_object"]),
    "null": (file(b"null"), NOT_OBJECT, ["map_not_object"]),
    "an empty object": (file({}), NOT_OBJECT, ["map_not_object", "prefixes_differ"]),
    "entry is a text": (
        file({P: "qint8"}),
        "Quanto quantization map entries must be named objects",
        ["map_entry_not_object"],
    ),
    "map has more": (
        file({P: ENTRY, "a.b": ENTRY}),
        PREFIXES.format("[]", "['a.b']"),
        ["prefixes_differ", "tensors_missing"],
    ),
    "file has more": (
        file(tensors={**layer(P), **layer("z.y")}),
        PREFIXES.format("['z.y']", "[]"),
        ["prefixes_differ"],
    ),
    "five are shown": (
        file({f"m{index}": ENTRY for index in range(7)}, {**layer(P), **layer("z.y")}),
        PREFIXES.format("['blk.0.proj', 'z.y']", "['m0', 'm1', 'm2', 'm3', 'm4']"),
        ["prefixes_differ", "tensors_missing"],
    ),
    "weights qint4": (
        file({P: {**ENTRY, "weights": "qint4"}}),
        "Unsupported Quanto weight type for 'blk.0.proj': 'qint4'",
        ["weight_type_unsupported"],
    ),
    "weights absent": (
        file({P: {"activations": "none"}}),
        "Unsupported Quanto weight type for 'blk.0.proj': None",
        ["weight_type_unsupported"],
    ),
    "weights of another JSON type": (
        file(b'{"blk.0.proj": {"weights": {"q": [8, 1.5, true, null]}, "activations": "none"}}'),
        "Unsupported Quanto weight type for 'blk.0.proj': {'q': [8, 1.5, True, None]}",
        ["weight_type_unsupported"],
    ),
    "activations qint8": (
        file({P: {**ENTRY, "activations": "qint8"}}),
        NO_ACTIVATIONS,
        ["activations_quantized"],
    ),
    "activations null": (
        file({P: {**ENTRY, "activations": None}}),
        NO_ACTIVATIONS,
        ["activations_quantized"],
    ),
    "activations absent": (file({P: {"weights": "qint8"}}), NO_ACTIVATIONS, ["activations_quantized"]),
    "neither": (
        file({P: {}}),
        "Unsupported Quanto weight type for 'blk.0.proj': None",
        ["weight_type_unsupported", "activations_quantized"],
    ),
    "no scale": (
        p(scale=None),
        "Quanto layer 'blk.0.proj' is missing tensors: ['blk.0.proj.weight._scale']",
        ["tensors_missing"],
    ),
    "no auxiliary scales": (
        p(input=None, output=None),
        "Quanto layer 'blk.0.proj' is missing tensors: ['blk.0.proj.input_scale', 'blk.0.proj.output_scale']",
        ["tensors_missing"],
    ),
    "dense too": (
        p(dense=Header("BF16", (3, 2))),
        "Quanto layer 'blk.0.proj' contains both packed and dense weights",
        ["dense_weight_too"],
    ),
    "data U8": (
        p(data=Header("U8", (3, 2))),
        "Quanto layer 'blk.0.proj' needs a 2D I8 weight, got U8 (3, 2)",
        ["weight_not_int8_matrix"],
    ),
    "data 1-D": (
        p(data=Header("I8", (6,))),
        "Quanto layer 'blk.0.proj' needs a 2D I8 weight, got I8 (6,)",
        ["weight_not_int8_matrix"],
    ),
    "data 0-d": (
        p(data=Header("I8", ())),
        "Quanto layer 'blk.0.proj' needs a 2D I8 weight, got I8 ()",
        ["weight_not_int8_matrix"],
    ),
    "scale flat": (
        p(scale=Header("F32", (3,))),
        "Quanto layer 'blk.0.proj' has incompatible scale F32 (3,)",
        ["scale_incompatible"],
    ),
    "scale F64": (
        p(scale=Header("F64", (3, 1))),
        "Quanto layer 'blk.0.proj' has incompatible scale F64 (3, 1)",
        ["scale_incompatible"],
    ),
    "scale 0-d": (
        p(scale=Header("F32", ())),
        "Quanto layer 'blk.0.proj' has incompatible scale F32 ()",
        ["scale_incompatible"],
    ),
    "input_scale [1]": (
        p(input=Header("F32", (1,))),
        "Quanto auxiliary scale 'blk.0.proj.input_scale' must be a float scalar",
        ["aux_scale_not_scalar"],
    ),
    "output_scale F64": (
        p(output=Header("F64", ())),
        "Quanto auxiliary scale 'blk.0.proj.output_scale' must be a float scalar",
        ["aux_scale_not_scalar"],
    ),
    "input_scale FP8": (
        p(input=Header("F8_E4M3", ())),
        "Quanto auxiliary scale 'blk.0.proj.input_scale' must be a float scalar",
        ["aux_scale_not_scalar"],
    ),
    "mapped to one name": (
        file({"a.q": ENTRY, "a.k": ENTRY}, {**layer("a.q"), **layer("a.k")}).replace(
            name_mapper=NameMapper({"a.q": "a.qkv", "a.k": "a.qkv"})
        ),
        "Quanto layers collide after parameter mapping at 'a.qkv'",
        ["layers_collide"],
    ),
    "mapped onto another's own name": (
        file({"a": ENTRY, "b": ENTRY}, {**layer("a"), **layer("b")}).replace(
            name_mapper=NameMapper({"a": "b"})
        ),
        "Quanto layers collide after parameter mapping at 'b'",
        ["layers_collide"],
    ),
    "the map's order decides": (
        file(
            {"z": ENTRY, P: ENTRY},
            {**layer(P, scale=Header("F32", (3,))), **layer("z", data=Header("U8", (3, 2)))},
        ),
        "Quanto layer 'z' needs a 2D I8 weight, got U8 (3, 2)",
        ["weight_not_int8_matrix", "scale_incompatible"],
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_with_upstreams_text(name: str) -> None:
    call, text, checks = REFUSED[name]
    examination = OPERATION.examine(call)
    assert examination.raised is not None
    assert examination.raised.text == text
    assert failed(examination) == checks
    with pytest.raises(ValueError, match=f"^{re.escape(text)}$") as raised:
        guard(STAGES, call)
    assert type(raised.value) is ValueError


@pytest.mark.parametrize("name", REFUSED)
def test_the_first_fix_passes_its_check_and_edits_are_pointers(name: str) -> None:
    call, _, checks = REFUSED[name]
    [outcome] = [o for o in OPERATION.examine(call).outcomes if o.check.id() == checks[0]]
    first = outcome.occurrences[0]
    offered = list(first.violation.fixes(first.subject))
    if name == "data 0-d":  # three scales, one element: no shape fits
        assert offered == []
        return
    assert checks[0] not in failed(OPERATION.examine(offered[0].call))
    for edit in offered[0].edits(call):
        if edit.argument == "checkpoint":
            assert edit.attribute.startswith(("/metadata/", "/tensors/"))


def test_all_upstream_checks_have_the_pinned_lines() -> None:
    lines = [check.sites[0].lines for check in OPERATION.checks if check.sites]
    assert lines == [(line,) for line in (63, 95, 101, 103, 108, 121, 130, 135, 147, 151, 160, 168, 178, 186)]


def test_links_end_with_the_file() -> None:
    [collision] = [check for check in OPERATION.checks if check.id() == "layers_collide"]
    assert collision.sites[0].url is not None
    assert collision.sites[0].url.endswith("quanto_int8_config.py#L168-L194")


# --- what cannot be evaluated

AFTER_MAP = [
    "map_entry_not_object",
    "prefixes_differ",
    "weight_type_unsupported",
    "activations_quantized",
    "tensors_missing",
    "dense_weight_too",
    "weight_not_int8_matrix",
    "scale_incompatible",
    "aux_scale_not_scalar",
    "layers_collide",
    "map_keys_repeated",
    "weight_empty",
    "tensors_ignored",
    "prefix_empty",
    "bias_shape",
    "aux_scale_not_one",
    "scale_not_finite",
    "scale_not_positive",
    "scale_overflows_weights",
    "scale_loses_precision",
]


@pytest.mark.parametrize(
    ("call", "rows"),
    [
        (
            file(quantization_format=None),
            ["map_missing", "map_invalid", "map_not_object", *AFTER_MAP],
        ),
        (
            file(**{MAP: None}),
            ["map_invalid", "map_not_object", *AFTER_MAP],
        ),
        (file(**{MAP: "!"}), ["map_not_object", *AFTER_MAP]),
        (file([1]), AFTER_MAP),
        (file({P: "qint8"}), ["weight_type_unsupported", "activations_quantized"]),
        (file({P: "qint8", "z": {}}, {**layer(P), **layer("z")}), []),
        (p(data=None), ["weight_not_int8_matrix", "scale_incompatible", "weight_empty"]),
        (p(scale=None), ["scale_incompatible"]),
        (p(input=None, output=None), ["aux_scale_not_scalar"]),
        (p(input=None), []),
        (p(data=Header("I8", (6,))), ["scale_incompatible", "weight_empty"]),
        (p(data=Header("I8", (6,)), scale=Header("F32", (3,))), ["weight_empty"]),
        (
            p(data=Header("I8", (6,)), bias=Header("F32", (3,))),
            ["scale_incompatible", "weight_empty", "bias_shape"],
        ),
        (p(data=Header("U8", (3, 2))), []),
    ],
)
def test_rows_are_not_reached_only_where_they_cannot_be_evaluated(call: QuantoCall, rows: list[str]) -> None:
    assert unreached(OPERATION.examine(call)) == rows


def test_a_bad_entry_hides_no_other_layer() -> None:
    call = file({P: "qint8", "z": {"weights": "qint4", "activations": "none"}}, {**layer(P), **layer("z")})
    examination = OPERATION.examine(call)
    assert failed(examination) == ["map_entry_not_object", "weight_type_unsupported"]
    assert [one.text for one in occurrences(examination, "weight_type_unsupported")] == [
        "Unsupported Quanto weight type for 'z': 'qint4'"
    ]


def test_every_layer_is_gone_through() -> None:
    names = ["a", "b", "c"]
    tensors: dict[str, Header] = {}
    for name in names:
        tensors |= layer(name, input=Header("BF16", (1,)), output=Header("BF16", (1,)))
    examination = OPERATION.examine(file(dict.fromkeys(names, ENTRY), tensors))
    assert [one.text.split("'")[1] for one in occurrences(examination, "aux_scale_not_scalar")] == [
        f"{name}.{suffix}" for name in names for suffix in ("input_scale", "output_scale")
    ]


# --- a file that is not Quanto


@pytest.mark.parametrize("declared", [None, "Quanto", "optimum-quanto", "quanto ", "gptq"])
def test_another_format_is_rejected_though_upstream_raises_nothing(declared: str | None) -> None:
    call = file(quantization_format=declared)
    examination = OPERATION.examine(call)
    assert examination.raised is None
    assert examination.rejected
    assert failed(examination) == ["not_quanto"]
    [violation] = occurrences(examination, "not_quanto")
    assert type(violation).origin() is Origin.BEYOND
    assert violation.text == f"not a Quanto checkpoint: quantization_format is {declared!r}"
    near = declared is not None and "quanto" in declared.lower()
    assert ("to the letter" in violation.explain()) == near
    assert "'blk.0.proj.weight._data'" in violation.explain()
    [(_, safe, fixed)] = fixes(call, "not_quanto")
    assert safe
    assert failed(OPERATION.examine(fixed)) == []


def test_a_sidecar_map_is_noticed() -> None:
    """From a public report: qfloat8 weights, their map in a JSON file beside the safetensors file."""
    call = QuantoCall(
        Checkpoint({}, {"l.weight._data": Header("U8", (64, 32)), "l.weight._scale": Header("F32", (64, 1))})
    )
    [violation] = occurrences(OPERATION.examine(call), "not_quanto")
    reason = violation.explain()
    assert "'l.weight._data', named .weight._data as Quanto names packed weights" in reason
    assert "quantization_map.json" in reason
    assert "Only qint8 exports are accepted" in reason
    assert "'l.weight._data' U8 [64, 32]" in reason
    [(title, safe, fixed)] = fixes(call, "not_quanto")
    assert title == "Set quantization_format to quanto and embed a map of every packed layer"
    assert not safe
    assert failed(OPERATION.examine(fixed)) == ["tensors_missing", "weight_not_int8_matrix"]


def test_a_file_without_packed_tensors_has_nothing_to_fix() -> None:
    call = QuantoCall(Checkpoint({}, {"l.weight": Header("BF16", (64, 32))}))
    [violation] = occurrences(OPERATION.examine(call), "not_quanto")
    assert ".weight._data" not in violation.explain()
    assert fixes(call, "not_quanto") == []


# --- fixes


def headers(call: QuantoCall) -> dict[str, str]:
    return {name: str(header) for name, header in call.checkpoint.tensors.items()}


def test_both_auxiliary_scales_are_squeezed_at_once_and_each_alone() -> None:
    call = p(input=Header("BF16", (1,)), output=Header("BF16", (1,)))
    (both, one, other) = fixes(call, "aux_scale_not_scalar")
    squeezes = [f"queeze '{P}.{name}' from [1] to []" for name in ("input_scale", "output_scale")]
    assert both[:2] == (f"S{squeezes[0]} and s{squeezes[1]}", True)
    edits = [(edit.attribute, edit.before, edit.after) for edit in call.edits_to(both[2])]
    assert edits == [
        ("/tensors/blk.0.proj.input_scale/shape", [1], []),
        ("/tensors/blk.0.proj.output_scale/shape", [1], []),
    ]
    assert failed(OPERATION.examine(both[2])) == []
    assert headers(one[2])[f"{P}.input_scale"] == "BF16 []"
    assert headers(one[2])[f"{P}.output_scale"] == "BF16 [1]"
    assert headers(other[2])[f"{P}.input_scale"] == "BF16 [1]"
    assert headers(other[2])[f"{P}.output_scale"] == "BF16 []"


def test_a_large_public_case_is_fixed_by_two_edits() -> None:
    tensors = layer(
        "l",
        data=Header("I8", (3072, 3072)),
        scale=Header("BF16", (3072, 1)),
        input=Header("BF16", (1,)),
        output=Header("BF16", (1,)),
    )
    call = file({"l": ENTRY}, tensors)
    assert len(occurrences(OPERATION.examine(call), "aux_scale_not_scalar")) == 2
    fixed = fixes(call, "aux_scale_not_scalar")[0][2]
    assert len(call.edits_to(fixed)) == 2
    assert failed(OPERATION.examine(fixed)) == []


def test_one_fix_repairs_all_layers() -> None:
    names = ["a", "b", "c"]
    tensors: dict[str, Header] = {}
    for name in names:
        tensors |= layer(name, scale=Header("F32", (3,)))
    call = file(dict.fromkeys(names, ENTRY), tensors)
    [(title, safe, fixed)] = fixes(call, "scale_incompatible")
    assert title == "Reshape 'a.weight._scale' from [3] to [3, 1], and so in 2 more layers"
    assert safe
    assert failed(OPERATION.examine(fixed)) == []


@pytest.mark.parametrize(
    ("scale", "title", "safe"),
    [
        (Header("F32", (3,)), "Reshape {} from [3] to [3, 1]", True),
        (Header("F32", (1, 3)), "Reshape {} from [1, 3] to [3, 1]", True),
        (Header("BF16", (3, 1, 1)), "Reshape {} from [3, 1, 1] to [3, 1]", True),
        (Header("F32", ()), "Repeat the one scale {} for each of 3 rows", True),
        (Header("F64", (3, 1)), "Convert {} from F64 to F32", True),
        (Header("F64", (3,)), "Convert {} from F64 to F32; Reshape {} from [3] to [3, 1]", True),
        (Header("I32", (3, 1)), "Convert {} from I32 to F32", False),
    ],
)
def test_scales_are_brought_into_a_column(scale: Header, title: str, safe: bool) -> None:
    call = p(scale=scale)
    name = f"'{P}.weight._scale'"
    [(found, found_safe, fixed)] = fixes(call, "scale_incompatible")
    assert (found, found_safe) == (title.replace("{}", name), safe)
    assert failed(OPERATION.examine(fixed)) == []


@pytest.mark.parametrize(
    ("data", "scale", "reason"),
    [
        ((3, 4), (3, 2), "has 2 values a row, [3, 2]: group-wise scales are not supported, only [3, 1]"),
        ((3, 4), (6, 1), "has 2 values a row, [6, 1]: group-wise scales are not supported, only [3, 1]"),
        ((3, 6), (1, 6), "has one value a column, [1, 6]; only one a row is supported, [3, 1]"),
        ((3, 4), (5, 1), "has 5 values, [5, 1], for 3 rows; [3, 1] is needed"),
    ],
)
def test_other_granularities_are_named_and_not_fixed(
    data: tuple[int, int], scale: tuple[int, int], reason: str
) -> None:
    call = p(data=Header("I8", data), scale=Header("F32", scale))
    [violation] = occurrences(OPERATION.examine(call), "scale_incompatible")
    assert violation.explain() == f"the scale of 'blk.0.proj' {reason}"
    assert fixes(call, "scale_incompatible") == []


def test_a_square_weights_row_of_scales_may_be_of_columns() -> None:
    call = p(data=Header("I8", (3, 3)), scale=Header("F32", (1, 3)))
    [(_, safe, _)] = fixes(call, "scale_incompatible")
    assert not safe


@pytest.mark.parametrize(
    ("data", "scale", "shape", "safe"),
    [
        (Header("I8", (6,)), (3, 1), (3, 2), True),
        (Header("I8", (6,)), (3,), (3, 2), True),
        (Header("I8", (3, 2, 1, 1)), (3, 1), (3, 2), True),
        (Header("I8", (3, 2, 5, 5)), (3, 1, 1, 1), (3, 50), False),
        (Header("U8", (3, 2)), (3, 1), (3, 2), False),
        (Header("F8_E4M3", (3, 2)), (3, 1), (3, 2), False),
    ],
)
def test_a_packed_weight_is_brought_into_a_matrix(
    data: Header, scale: tuple[int, ...], shape: tuple[int, int], safe: bool
) -> None:
    call = p(data=data, scale=Header("F32", scale))
    [(_, found_safe, fixed)] = fixes(call, "weight_not_int8_matrix")
    assert fixed.checkpoint.tensors[f"{P}.weight._data"] == Header("I8", shape)
    assert found_safe == safe


def test_elements_that_no_matrix_holds_are_not_reshaped() -> None:
    assert fixes(p(data=Header("I8", (7,))), "weight_not_int8_matrix") == []
    assert fixes(p(data=Header("I8", (6,)), scale=None), "weight_not_int8_matrix") == []


def test_several_values_of_an_auxiliary_scale_are_not_squeezed() -> None:
    [(title, safe, fixed)] = fixes(p(input=Header("F32", (3,))), "aux_scale_not_scalar")
    assert title == "Replace 'blk.0.proj.input_scale' [3] by one number"
    assert not safe
    assert failed(OPERATION.examine(fixed)) == []


def test_an_auxiliary_scale_takes_the_row_scales_type() -> None:
    call = p(scale=Header("F16", (3, 1)), output=Header("F64", (1, 1)))
    [(title, safe, fixed)] = fixes(call, "aux_scale_not_scalar")
    name = "'blk.0.proj.output_scale'"
    assert title == f"Squeeze {name} from [1, 1] to [] and convert {name} from F64 to F16"
    assert safe
    assert headers(fixed)[f"{P}.output_scale"] == "F16 []"


def test_the_dense_weight_goes_or_the_packed_one() -> None:
    one = p(dense=Header("BF16", (3, 2)))
    [(title, safe, fixed)] = fixes(one, "dense_weight_too")
    assert (title, safe) == ("Remove 'blk.0.proj.weight'", True)
    assert failed(OPERATION.examine(fixed)) == []
    two = file({P: ENTRY, "z": ENTRY}, {**layer(P, dense=Header("BF16", (3, 2))), **layer("z")})
    [_, (title, safe, fixed)] = fixes(two, "dense_weight_too")
    assert (title, safe) == ("Keep 'blk.0.proj.weight', remove the packed one", False)
    assert failed(OPERATION.examine(fixed)) == []
    assert [found.prefix for found in fixed.layers] == ["z"]
    assert f"{P}.weight" in fixed.checkpoint.tensors


def test_a_layer_without_packed_weight_leaves_the_map() -> None:
    call = file({P: ENTRY, "z": ENTRY}, layer("z"))
    [(title, safe, fixed)] = fixes(call, "tensors_missing")
    assert (title, safe) == ("Remove 'blk.0.proj' from the map", False)
    assert failed(OPERATION.examine(fixed)) == []
    assert fixes(file({P: ENTRY}, {}), "tensors_missing") == []


def test_names_that_differ_by_a_leading_part_are_renamed() -> None:
    names = ["blk.0.proj", "blk.1.proj"]
    tensors = {**layer("model.blk.0.proj"), **layer("model.blk.1.proj")}
    call = file(dict.fromkeys(names, ENTRY), tensors)
    (title, safe, fixed), *_ = fixes(call, "prefixes_differ")
    assert title == "Name the map's layers as the tensors are named: 'blk.0.proj' is 'model.blk.0.proj'"
    assert safe
    assert failed(OPERATION.examine(fixed)) == []
    back = file({f"model.{name}": ENTRY for name in names}, {**layer("blk.0.proj"), **layer("blk.1.proj")})
    (_, safe, fixed), *_ = fixes(back, "prefixes_differ")
    assert safe
    assert failed(OPERATION.examine(fixed)) == []


def test_layers_that_the_map_lacks_are_added_and_strangers_removed() -> None:
    call = file({P: ENTRY, "gone": ENTRY}, {**layer(P), **layer("new")})
    [(title, safe, fixed)] = fixes(call, "prefixes_differ")
    assert title == "Add layer 'new' to the map; Remove from the map layer 'gone' without tensors"
    assert not safe
    assert list(fixed.map) == [P, "new"]
    assert failed(OPERATION.examine(fixed)) == []


def test_entries_become_objects_and_other_members_go() -> None:
    call = file({P: "qint8", "version": 1})
    [(title, safe, fixed)] = fixes(call, "map_entry_not_object")
    assert title == "Write entry 'blk.0.proj' as an object; Drop entry 'version' without a layer"
    assert safe
    assert fixed.map == {P: ENTRY}


def test_a_map_encoded_twice_is_encoded_once() -> None:
    call = file(encoded({P: ENTRY}))
    (title, safe, fixed), *_ = fixes(call, "map_not_object")
    assert (title, safe) == ("Encode the map once, not twice", True)
    assert fixed.map == {P: ENTRY}


def test_colliding_layers_get_names_of_their_own() -> None:
    names = ["a.q", "a.k", "a.o"]
    tensors = {key: header for name in names for key, header in layer(name).items()}
    mapper = NameMapper({"a.q": "a.qkv", "a.k": "a.qkv", "a.o": "b.o"})
    call = file(dict.fromkeys(names, ENTRY), tensors).replace(name_mapper=mapper)
    kept, none = fixes(call, "layers_collide")
    assert kept[2].name_mapper == {"a.o": "b.o"}
    assert none[2].name_mapper is None
    for _, safe, fixed in (kept, none):
        assert not safe
        assert failed(OPERATION.examine(fixed)) == []
    [edit] = call.edits_to(kept[2])
    assert (edit.argument, edit.attribute, edit.after) == ("name_mapper", "value", {"a.o": "b.o"})


# --- the activation


@pytest.mark.parametrize(
    "x",
    [
        TensorSpec((1, 3), DType.BF16),
        TensorSpec((), DType.BF16),
        TensorSpec((4, 2), DType.I8),
        TensorSpec((4, 2), DType.F64),
        TensorSpec((2, 0), DType.BF16),
    ],
)
def test_an_activation_that_no_layer_takes(x: TensorSpec) -> None:
    call = p().replace(x=x)
    examination = OPERATION.examine(call)
    assert (examination.raised, failed(examination)) == (None, ["activation_does_not_fit"])
    [(_, _, fixed)] = fixes(call, "activation_does_not_fit")
    assert failed(OPERATION.examine(fixed)) == []


def test_an_activation_needs_a_layer_to_be_judged() -> None:
    call = p(data=Header("I8", (6,))).replace(x=TensorSpec((1, 2), DType.BF16))
    assert "activation_does_not_fit" in unreached(OPERATION.examine(call))


# --- odd names

NAMES = st.text(
    st.one_of(st.sampled_from("~/'\"\\\n\0 .é☃\U0001f600{}%!r"), st.characters(exclude_categories=["Cs"])),
    min_size=1,
    max_size=10,
)


@given(NAMES)
def test_names_are_printed_as_repr_prints_them(prefix: str) -> None:
    call = file({prefix: {**ENTRY, "weights": "qint4"}}, layer(prefix))
    examination = OPERATION.examine(call)
    assert examination.raised is not None
    assert examination.raised.text == f"Unsupported Quanto weight type for {prefix!r}: 'qint4'"
    missing = OPERATION.examine(file({prefix: ENTRY}, layer(prefix, output=None))).raised
    assert missing is not None
    assert missing.text == f"Quanto layer {prefix!r} is missing tensors: {[prefix + '.output_scale']}"


@given(NAMES)
def test_edits_of_odd_names_apply(prefix: str) -> None:
    call = file(
        {prefix: ENTRY}, layer(prefix, input=Header("F32", (1,)), scale=None, dense=Header("F32", ()))
    )
    for check in ("tensors_missing", "dense_weight_too", "aux_scale_not_scalar"):
        [(_, _, fixed), *_] = fixes(call, check)
        document = call.checkpoint.to_json()
        for edit in call.edits_to(fixed):
            _, area, name, *rest = edit.attribute.split("/")
            members = document[area]
            name = name.replace("~1", "/").replace("~0", "~")
            if rest:
                members[name][rest[0]] = edit.after
            elif edit.after is None:
                del members[name]
            else:
                members[name] = edit.after
        assert Checkpoint.from_json(document) == fixed.checkpoint


def test_a_map_may_name_what_no_file_can_hold() -> None:
    """JSON escapes can spell half a surrogate pair; no tensor of that name is ever proposed."""
    call = file(b'{"\\ud800": ' + SOUND + b', "blk.0.proj": ' + SOUND + b"}")
    examination = OPERATION.examine(call)
    assert examination.raised is not None
    assert examination.raised.text == PREFIXES.format("[]", "['\\ud800']")
    for check in failed(examination):
        for _, _, fixed in fixes(call, check):
            assert Checkpoint.from_json(fixed.checkpoint.to_json()) == fixed.checkpoint
            assert failed(OPERATION.examine(fixed)) == []


def test_a_deeply_nested_value_is_printed_as_python_does() -> None:
    levels = 490
    nested = b"[" * levels + b"]" * levels
    call = file(b'{"blk.0.proj": {"activations": "none", "weights": ' + nested + b"}}")
    examination = OPERATION.examine(call)
    assert examination.raised is not None
    assert examination.raised.text == f"Unsupported Quanto weight type for 'blk.0.proj': {nested.decode()}"
    assert failed(OPERATION.examine(fixes(call, "weight_type_unsupported")[0][2])) == []
    assert pickle.loads(pickle.dumps(call)) == call  # noqa: S301 (our own bytes)


# --- the call


def test_missing_arguments_are_sized_to_those_given() -> None:
    assert fit({}) == QuantoCall(VALID.checkpoint)
    sized = fit({"x": TensorSpec((4, 64), DType.F16), "name_mapper": NameMapper({"a": "b", "c": "d"})})
    assert [(found.prefix, found.columns) for found in sized.layers] == [("a", 64), ("c", 64)]
    assert failed(OPERATION.examine(sized)) == []


def test_the_valid_call_fills_its_activation_only_where_there_is_one() -> None:
    assert set(fill(VALID)) == {"checkpoint", "x"}
    assert set(fill(VALID.without("x"))) == {"checkpoint"}


def test_a_call_is_its_json() -> None:
    document = arguments_json(VALID)
    assert (
        QuantoCall(
            Checkpoint.from_json(document["checkpoint"]),
            NameMapper.from_json(document["name_mapper"]),
            TensorSpec(tuple(document["x"]["shape"]), DType.parse(document["x"]["dtype"])),
        )
        == VALID
    )


def test_the_reproduction_calls_upstreams_own_function() -> None:
    script = reproduction(OPERATION, VALID)
    assert "quanto_int8_config import inspect_quanto_int8_checkpoint" in script
    assert script.rstrip().endswith(
        "inspect_quanto_int8_checkpoint(\n    checkpoint,\n    lambda prefix: {\n        "
        '"language_model.layers.0.mlp.up_proj": "model.language_model.layers.0.mlp.up_proj",\n'
        "    }.get(prefix, prefix),\n)"
    )
    compile(script, "reproduction", "exec")


# --- cost


def big(count: int, **changed: Header | None) -> QuantoCall:
    names = [f"language_model.layers.{index}.mlp.up_proj" for index in range(count)]
    return file(
        dict.fromkeys(names, ENTRY),
        {key: header for name in names for key, header in layer(name, **changed).items()},
    )


@pytest.mark.parametrize(
    "changed",
    [
        {},
        {"input": Header("F32", (1,)), "output": Header("F64", ())},
        {"scale": Header("F32", (3,))},
        {"scale": None},
    ],
)
def test_cost_grows_with_the_layers_not_with_their_square(
    changed: dict[str, Header | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counted in look-ups of a layer's tensors, over the checks and every fix of every occurrence."""
    looked_up: list[str] = []
    original = Layer.tensor

    def counting(layer: Layer, suffix: str) -> Header | None:
        looked_up.append(suffix)
        return original(layer, suffix)

    def cost(count: int) -> int:
        looked_up.clear()
        for outcome in OPERATION.examine(big(count, **changed)).failed():
            for occurrence in outcome.occurrences:
                list(occurrence.violation.fixes(occurrence.subject))
        return len(looked_up)

    monkeypatch.setattr(Layer, "tensor", counting)
    assert cost(200) <= 10 * cost(20) + 100
