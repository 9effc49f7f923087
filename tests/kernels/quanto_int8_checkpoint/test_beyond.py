"""Checks of our own: where each begins and where it ends."""

from __future__ import annotations

from math import inf, isnan, nan

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kernels.checking import Check, Status
from kernels.checkpoint import Header, NameMapper
from kernels.checkpoint_file import elements
from kernels.dtypes import DType
from kernels.live import torch_dtype
from kernels.quanto_int8_checkpoint.checks import OPERATIONS
from kernels.quanto_int8_checkpoint.op import RUNNERS
from kernels.quanto_int8_checkpoint.quantization_map import Repeated, encode, repeated
from kernels.quanto_int8_checkpoint.signature import QuantoCall
from kernels.running import build_tensor
from kernels.spec import TensorSpec
from kernels.stored import ROUNDED, proved, stored
from kernels.values import Arange, Full, Listed, Ones, Randint, Randn, Values, Zeros
from tests.kernels.quanto_int8_checkpoint.files import ENTRY, P, file, layer, p

[OPERATION] = OPERATIONS


def found(call: QuantoCall, check: str) -> list[Check[object]]:
    [outcome] = [outcome for outcome in OPERATION.examine(call).outcomes if outcome.check.id() == check]
    assert outcome.status is not Status.NOT_REACHED
    return [occurrence.violation for occurrence in outcome.occurrences]


def fails(call: QuantoCall, check: str) -> bool:
    return bool(found(call, check))


# --- names of the map


def test_repeated_keys_are_counted_where_they_count() -> None:
    text = '{"a": {"w": 1, "w": 1}, "a": {"w": 1, "v": {"x": 1, "x": 2}}, "b": {"w": 1, "w": 2, "w": 3}}'
    assert repeated(encode(text)) == [Repeated(None, "a", 2), Repeated("b", "w", 3)]
    assert repeated(encode('["a", "a"]')) == []
    assert repeated(encode({P: ENTRY})) == []


def test_equal_entries_repeated_are_repeated_still() -> None:
    entry = '{"weights": "qint8", "activations": "none"}'
    [violation] = found(file(f'{{"{P}": {entry}, "{P}": {entry}}}'.encode()), "map_keys_repeated")
    assert violation.text == f"Quanto quantization map repeats keys: ['{P}']"
    assert violation.explain().startswith(f"'{P}' stands 2 times: ")


# --- names of tensors


@pytest.mark.parametrize(
    ("name", "ignored"),
    [
        (f"{P}.weight._shift", True),
        (f"{P}.weight._data._scale", True),
        (f"{P}.weight_scale", True),
        (f"{P}.qzeros", True),
        (f"{P}.bias", False),
        (f"{P}.lora.weight", False),
        (f"{P}x.weight._shift", False),
        ("blk.0.weight", False),
        ("other.weight._zeropoint", False),
    ],
)
def test_tensors_that_a_layer_has_no_use_for(name: str, ignored: bool) -> None:
    call = file(tensors={**layer(P), name: Header("F32", (3,))})
    assert fails(call, "tensors_ignored") == ignored
    if ignored:
        [violation] = found(call, "tensors_ignored")
        assert violation.text == f"Quanto layer '{P}' has tensors that are ignored: ['{name}']"
        assert violation.describe_actual(call.layers[0]) == f"'{name}' F32 [3]"


def test_a_layer_beside_a_weight_is_no_leftover() -> None:
    names = [P, f"{P}.weight"]
    tensors = {key: header for name in names for key, header in layer(name).items()}
    assert not fails(file(dict.fromkeys(names, ENTRY), tensors), "tensors_ignored")


def test_a_name_is_given_where_a_mapper_tells_one() -> None:
    call = file({"": ENTRY}, layer("", bias=Header("F32", (3,))))
    [violation] = found(call, "prefix_empty")
    assert list(violation.fixes(call.layers[0])) == []
    named = call.replace(name_mapper=NameMapper({"": "model.proj"}))
    [violation] = found(named, "prefix_empty")
    [fix] = violation.fixes(named.layers[0])
    assert (
        fix.call.checkpoint
        == file({"model.proj": ENTRY}, layer("model.proj", bias=Header("F32", (3,)))).checkpoint
    )
    for mapper in ({"": "m", "m": "n"}, {"": ""}):
        other = call.replace(name_mapper=NameMapper(mapper))
        assert list(found(other, "prefix_empty")[0].fixes(other.layers[0])) == []


# --- shapes


@pytest.mark.parametrize(
    ("shape", "empty"), [((1, 1), False), ((0, 2), True), ((3, 0), True), ((0, 0), True)]
)
def test_an_empty_weight(shape: tuple[int, int], empty: bool) -> None:
    call = p(data=Header("I8", shape), scale=Header("F32", (shape[0], 1)))
    assert fails(call, "weight_empty") == empty


def test_an_empty_layer_goes_where_others_stay() -> None:
    none = Header("I8", (3, 0))
    alone = p(data=none)
    assert list(found(alone, "weight_empty")[0].fixes(alone.layers[0])) == []
    two = file({P: ENTRY, "z": ENTRY}, {**layer(P, data=none, bias=Header("F32", (3,))), **layer("z")})
    [fix] = found(two, "weight_empty")[0].fixes(two.layers[0])
    assert fix.call.checkpoint == file({"z": ENTRY}, layer("z")).checkpoint


@pytest.mark.parametrize(
    ("shape", "title"),
    [
        ((3,), None),
        ((3, 1), f"Reshape '{P}.bias' from [3, 1] to [3]"),
        ((1, 3), f"Reshape '{P}.bias' from [1, 3] to [3]"),
        ((2,), f"Remove '{P}.bias'"),
        ((), f"Remove '{P}.bias'"),
        ((0,), f"Remove '{P}.bias'"),
    ],
)
def test_a_bias_has_a_number_for_each_row(shape: tuple[int, ...], title: str | None) -> None:
    call = p(bias=Header("F16", shape))
    violations = found(call, "bias_shape")
    assert [fix.title for one in violations for fix in one.fixes(call.layers[0])] == (
        [title] if title else []
    )


# --- what scales hold


@pytest.mark.parametrize(
    ("dtype", "values", "wrong"),
    [
        ("F32", None, False),
        ("F32", Ones(), False),
        ("F32", Full(1), False),
        ("F32", Full(True), False),
        ("F32", Full(1 + 2**-23), True),
        ("F32", Full(1 + 2**-25), False),
        ("BF16", Full(1.003), False),
        ("BF16", Full(1.004), True),
        ("F16", Full(1.0005), True),
        ("F32", Zeros(), True),
        ("F32", Full(nan), True),
        ("F32", Full(10**400), True),
        ("F32", Arange(1, 5), False),
        ("F32", Arange(0, 1), True),
        ("F32", Listed((1, 2, 3)), False),
        ("F32", Listed((2, 1)), True),
        ("F32", Randn(), False),
        ("F32", Randint(1, 2), False),
        ("F32", Randint(0, 2), True),
    ],
)
def test_an_auxiliary_scale_is_one_in_its_own_type(dtype: str, values: Values | None, wrong: bool) -> None:
    for one in ("input", "output"):
        assert fails(p(**{one: Header(dtype, (), values)}), "aux_scale_not_one") == wrong


def test_both_auxiliary_scales_are_set_at_once() -> None:
    call = p(input=Header("F32", (), Full(0.5)), output=Header("F16", (), Zeros()))
    first, second = found(call, "aux_scale_not_one")
    assert [one.text for one in (first, second)] == [
        f"auxiliary scale '{P}.input_scale' of a weight-only layer holds 0.5, not 1",
        f"auxiliary scale '{P}.output_scale' of a weight-only layer holds 0.0, not 1",
    ]
    [fix] = first.fixes(call.layers[0])
    assert list(second.fixes(call.layers[0])) == []
    assert not fails(fix.call, "aux_scale_not_one")


@pytest.mark.parametrize(
    ("dtype", "values", "finite", "positive"),
    [
        ("F32", Full(1e-45), True, True),
        ("F32", Full(1e-46), True, False),
        ("F32", Full(3.4e38), True, True),
        ("F32", Full(3.5e38), False, True),
        ("F32", Full(-(10**400)), False, True),
        ("F16", Full(65_519), True, True),
        ("F16", Full(65_520), False, True),
        ("F16", Full(1e-9), True, False),
        ("BF16", Full(1e-9), True, True),
        ("BF16", Listed((1.0, -1.0, 1.0)), True, False),
        ("BF16", Listed((1.0, inf, -1.0)), False, False),
        ("BF16", Listed((1.0, 1.0, 1.0, nan)), True, True),
        ("BF16", Randn(), True, True),
        ("F8_E4M3", Full(nan), True, True),
    ],
)
def test_row_scales_are_finite_and_positive(dtype: str, values: Values, finite: bool, positive: bool) -> None:
    call = p(scale=Header(dtype, (3, 1), values))
    assert fails(call, "scale_not_finite") != finite
    assert fails(call, "scale_not_positive") != positive


def test_a_wider_type_keeps_what_a_narrow_one_loses() -> None:
    def titles(scale: Header, check: str) -> list[tuple[str, bool]]:
        call = p(scale=scale)
        return [(fix.title, fix.safe) for fix in found(call, check)[0].fixes(call.layers[0])]

    wider, again = f"Store '{P}.weight._scale' as F32", f"Take '{P}.weight._scale' from the export"
    assert titles(Header("F16", (3, 1), Full(1e5)), "scale_not_finite") == [(wider, True)]
    assert titles(Header("F16", (3, 1), Full(1e-9)), "scale_not_positive") == [(wider, True)]
    assert titles(Header("F16", (3, 1), Full(nan)), "scale_not_finite") == [(again, False)]
    assert titles(Header("F32", (3, 1), Full(0)), "scale_not_positive") == [(again, False)]


@pytest.mark.parametrize(
    ("dtype", "value", "x", "lost"),
    [
        ("F32", 0.1, None, False),  # 0.098 %
        ("F32", 0.3, None, True),
        ("F32", 0.3, DType.BF16, True),
        ("F32", 0.3, DType.F16, False),
        ("F32", 0.3, DType.F32, False),
        ("F16", 0.3, None, False),
        ("F16", 0.3, DType.BF16, True),
        ("BF16", 0.3, DType.BF16, False),
        ("BF16", 1e-6, DType.F16, True),  # a subnormal number of float16
        ("F32", 1e5, DType.F16, False),  # infinite, which is another check's
        ("F32", 0.0, DType.F16, False),
        ("F32", nan, DType.BF16, False),
        ("F32", 0.3, DType.I8, True),  # no model's type
    ],
)
def test_scales_that_the_models_type_changes(dtype: str, value: float, x: DType | None, lost: bool) -> None:
    call = p(scale=Header(dtype, (3, 1), Full(value)))
    if x is not None:
        call = call.replace(x=TensorSpec((1, 2), x))
    assert fails(call, "scale_loses_precision") == lost
    for one in found(call, "scale_loses_precision"):
        for fix in one.fixes(call.layers[0]):
            assert not fails(fix.call, "scale_loses_precision"), fix.title


OPEN = Header("I8", (3, 2))


@pytest.mark.parametrize(
    ("scale", "x", "codes", "code"),
    [
        (Header("F16", (3, 1), Full(515.0)), None, OPEN, None),  # 127 · 515 = 65405
        (Header("F16", (3, 1), Full(516.0)), None, OPEN, 127),
        (Header("F16", (3, 1), Full(516.0)), DType.BF16, OPEN, None),
        (Header("F32", (3, 1), Listed((1.0, 1.0, 516.0))), DType.F16, OPEN, 127),
        (Header("BF16", (3, 1), Full(2.0**121)), DType.BF16, OPEN, None),
        (Header("BF16", (3, 1), Full(2.68e36)), DType.BF16, OPEN, 127),
        (Header("F32", (3, 1), Full(2.67e36)), DType.F32, OPEN, None),
        (Header("F32", (3, 1), Full(2.68e36)), DType.F32, OPEN, 127),
        (Header("F32", (3, 1), Full(inf)), DType.F32, OPEN, None),
        (Header("F32", (3, 1), Full(1e5)), DType.F16, Header("I8", (3, 2), Zeros()), 0),  # infinity times 0
        (Header("F32", (3, 1), Full(600.0)), DType.F16, Header("I8", (3, 2), Full(100)), None),
        (Header("F32", (3, 1), Full(600.0)), DType.F16, Header("I8", (3, 2), Full(-128)), 128),
        (
            Header("F32", (3, 1), Listed((1.0, 600.0, 1.0))),
            DType.F16,
            Header("I8", (3, 2), Listed((127, 127, 1, -2, 127, 127))),
            None,
        ),
        (
            Header("F32", (3, 1), Listed((1.0, 600.0, 1.0))),
            DType.F16,
            Header("I8", (3, 2), Listed((1, 1, 1, -127, 1, 1))),
            127,
        ),
        (
            Header("F32", (3, 1), Listed((1.0, 600.0, 1.0))),
            DType.F16,
            Header("I8", (3, 2), Listed((1, 127, 1))),
            None,
        ),
        (
            Header("F32", (3, 1), Listed((1.0, 600.0, 1.0))),
            DType.F16,
            Header("I8", (3, 2), Listed((1, 1, 127))),
            127,
        ),
        (
            Header("F32", (3, 1), Listed((600.0, 1.0))),
            DType.F16,
            Header("I8", (3, 2), Listed((1, 1, 127))),
            127,
        ),
        (
            Header("F32", (3, 1), Listed((1.0, 600.0))),
            DType.F16,
            Header("I8", (3, 2), Listed((127, 127, 1, 1))),
            None,
        ),
    ],
)
def test_products_of_scales_and_codes_stay_finite(
    scale: Header, x: DType | None, codes: Header, code: int | None
) -> None:
    """As torch says of the weight that upstream unpacks, where the codes are the largest that there are."""
    call = p(data=codes, scale=scale)
    if x is not None:
        call = call.replace(x=TensorSpec((1, 2), x))
    violations = found(call, "scale_overflows_weights")
    assert [getattr(one, "code", None) for one in violations] == ([] if code is None else [code])
    served = torch_dtype(x or DType.parse(scale.dtype))
    held = elements(codes, codes.values or Full(127)).reshape(3, 2).to(served)
    weight = held * elements(scale, scale.values or Zeros()).reshape(3, 1).to(served)
    infinite = not bool(weight.isfinite().all()) and not fails(call, "scale_not_finite")
    assert bool(violations) == infinite


def test_a_wider_type_keeps_weights_finite() -> None:
    def fixes(scale: Header, x: DType | None) -> list[tuple[str, bool]]:
        call = p(scale=scale)
        if x is not None:
            call = call.replace(x=TensorSpec((1, 2), x))
        [violation] = found(call, "scale_overflows_weights")
        offered = list(violation.fixes(call.layers[0]))
        assert not any(fails(fix.call, "scale_overflows_weights") for fix in offered)
        return [(fix.title, fix.safe) for fix in offered]

    name = f"'{P}.weight._scale'"
    wider, narrow = ("Run the model in float32", True), ("Run the model in bfloat16", False)
    exported = (f"Take {name} from the export", False)
    assert fixes(Header("F32", (3, 1), Full(600.0)), DType.F16) == [wider, narrow, exported]
    assert fixes(Header("F16", (3, 1), Full(600.0)), None) == [(f"Store {name} as F32", False), exported]
    assert fixes(Header("F16", (3, 1), Full(600.0)), DType.F16) == [wider, narrow, exported]


def test_how_much_is_lost_is_said() -> None:
    [violation] = found(p(scale=Header("F32", (3, 1), Full(0.3))), "scale_loses_precision")
    assert violation.text == f"scale of Quanto layer '{P}': 0.3 in F32 becomes 0.30078125 in BF16"
    assert "0.26 % off" in violation.explain()


def test_a_live_inspection_reads_no_scale() -> None:
    call = p(input=Header("F32", (), Full(0.5)), scale=Header("F32", (3, 1), Full(nan)))
    runner = RUNNERS[OPERATION.name]
    assert runner.build is not None
    prefixes, _ = runner.function(**runner.build(call, OPERATION.fill(call), "cpu"))
    assert prefixes == {P}


@given(st.floats(), st.sampled_from(ROUNDED))
def test_numbers_are_rounded_as_tensors_are_built(value: float, dtype: str) -> None:
    built = build_tensor(TensorSpec((1,), DType.parse(dtype)), Full(value), "cpu").to(torch.float64).item()
    if dtype == "F64":  # torch builds by way of float32
        built = value
    got = stored(value, dtype)
    assert got == built or (isnan(got) and isnan(built))


def test_only_what_a_description_proves_is_judged() -> None:
    assert list(proved(Header("F32", (2,), Listed(((1.5, 2.5), 3.5))))) == [(1.5, 1.5), (2.5, 2.5)]
    assert list(proved(Header("F16", (4,), Arange(0, 1e5)))) == [(0.0, 0.0), (3e5, inf)]
    for header in (None, Header("F32", (2,)), Header("F32", (2,), Randn()), Header("I8", (2,), Full(2))):
        assert list(proved(header)) == []


# --- what upstream's own checks explain


def test_a_shard_is_suspected_where_the_map_has_more() -> None:
    [violation] = found(file({P: ENTRY, "a.b": ENTRY}), "prefixes_differ")
    assert "the file one shard of it" in violation.explain()
    [violation] = found(file({P: ENTRY, "a.b": ENTRY}), "tensors_missing")
    assert "another shard may have the rest" in violation.explain()
    [violation] = found(p(input=None), "tensors_missing")
    assert "shard" not in violation.explain()
    [violation] = found(file({"x": ENTRY}), "prefixes_differ")
    assert "shard" not in violation.explain()
    [violation] = found(file({P: ENTRY}, layer(f"model.{P}")), "prefixes_differ")
    assert f"the names differ by a leading part alone, '{P}' in the map" in violation.explain()
