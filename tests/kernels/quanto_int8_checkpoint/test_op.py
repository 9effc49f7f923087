"""The operation on real files: written and read with safetensors, same verdicts, the linear's numbers."""

from __future__ import annotations

import gc
import re
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file

from kernels.checkpoint import Checkpoint, Header, NameMapper
from kernels.dtypes import DType
from kernels.quanto_int8_checkpoint import reference
from kernels.quanto_int8_checkpoint.checks import OPERATIONS, NotQuanto
from kernels.quanto_int8_checkpoint.op import (
    RUNNERS,
    TOLERANCES,
    WrittenFile,
    linear,
    quanto_int8_checkpoint,
    read_header,
    tolerance,
)
from kernels.quanto_int8_checkpoint.signature import PREFIX, VALID, QuantoCall, quanto
from kernels.running import Arguments, compare
from kernels.spec import TensorSpec
from kernels.values import Full, Listed, Ones, Randn, Zeros, seeded
from tests.kernels.quanto_int8_checkpoint.files import ENTRY, GOLDEN, GOLDEN_PREFIX, P, file, layer, p
from tests.kernels.quanto_int8_checkpoint.test_checks import REFUSED

pytestmark = pytest.mark.usefixtures("triton_mode")

[OPERATION] = OPERATIONS
RUNNER = RUNNERS["quanto_int8_checkpoint"]


def build(call: QuantoCall, seed: int = 7) -> Arguments:
    assert RUNNER.build is not None
    return RUNNER.build(call, seeded(OPERATION.fill(call), seed), "cpu")


def header_of(path: Any) -> Checkpoint:
    with safe_open(path, framework="pt") as opened:
        return read_header(opened)


def contents(call: QuantoCall, seed: int = 7) -> bytes:
    """Bytes of the file that a call's checkpoint is written to."""
    written = build(call, seed)["checkpoint"]
    return Path(written).read_bytes()


# --- the golden vector


def test_the_golden_vector_end_to_end() -> None:
    prefixes, y = RUNNER.function(**build(GOLDEN))
    assert prefixes == {f"model.{GOLDEN_PREFIX}"}
    assert y.dtype is torch.bfloat16
    assert y.tolist() == [[2.0, 0.5, -2.0]]
    assert RUNNER.reference(build(GOLDEN))["y"].tolist() == [[2.0, 0.5, -2.0]]


def test_the_golden_vector_in_the_reference() -> None:
    codes = torch.tensor([[1, -2], [3, 4], [-5, 6]], dtype=torch.int8)
    scale = torch.tensor([[0.5], [0.25], [0.125]], dtype=torch.bfloat16)
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        x = torch.tensor([[2, -1]], dtype=dtype)
        assert reference.linear(x, codes, scale).tolist() == [[2.0, 0.5, -2.0]]
        assert reference.linear_float32(x, codes, scale).tolist() == [[2.0, 0.5, -2.0]]


# --- real files


def test_the_file_is_a_safetensors_file_of_the_described_form() -> None:
    data = contents(GOLDEN)
    (length,) = struct.unpack("<Q", data[:8])
    assert data[8:9] == b"{"
    assert len(data) == 8 + length + GOLDEN.checkpoint.storage_bytes
    described = {name: replace(header, values=None) for name, header in GOLDEN.checkpoint.tensors.items()}
    assert header_of(build(GOLDEN)["checkpoint"]) == Checkpoint(GOLDEN.checkpoint.metadata, described)


def test_a_file_without_metadata_has_none() -> None:
    call = QuantoCall(Checkpoint({}, {"a": Header("F32", (2,))}))
    assert header_of(build(call)["checkpoint"]) == call.checkpoint


@pytest.mark.parametrize("name", REFUSED)
def test_a_real_file_is_refused_as_its_description_is(name: str) -> None:
    call, text, _ = REFUSED[name]
    with pytest.raises(ValueError, match=f"^{re.escape(text)}$") as raised:
        RUNNER.function(**build(call))
    assert raised.value.violation == OPERATION.examine(call).raised  # type: ignore[attr-defined]


def test_a_file_of_another_format_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^not a Quanto checkpoint: quantization_format is None$") as raised:
        RUNNER.function(**build(file(quantization_format=None)))
    assert isinstance(raised.value.violation, NotQuanto)  # type: ignore[attr-defined]
    assert reference.mapped_prefixes(file(quantization_format=None)) is None


def test_inspection_alone_returns_the_mapped_names() -> None:
    call = file({"z": ENTRY, P: ENTRY}, {**layer(P), **layer("z")}).replace(name_mapper=NameMapper({P: "m"}))
    arguments = build(call)
    assert RUNNER.function(**arguments) == ({"m", "z"}, None)
    assert RUNNER.outputs(arguments, RUNNER.function(**arguments)) == {}
    assert RUNNER.reference(arguments) == {}


def test_a_plain_path_and_a_plain_mapping_will_do(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(contents(GOLDEN))
    assert quanto_int8_checkpoint(path) == ({GOLDEN_PREFIX}, None)
    assert quanto_int8_checkpoint(str(path), {GOLDEN_PREFIX: "a"})[0] == {"a"}


def test_what_is_no_safetensors_file_is_the_librarys_to_refuse(tmp_path: Path) -> None:
    path = tmp_path / "page.safetensors"
    path.write_text("<!DOCTYPE html><html></html>")
    with pytest.raises(SafetensorError, match="header too large"):
        quanto_int8_checkpoint(path)
    with pytest.raises(FileNotFoundError):
        quanto_int8_checkpoint(tmp_path / "absent.safetensors")


@pytest.mark.parametrize("dtype", [dtype for dtype in DType if dtype.safetensors])
def test_tensors_of_every_type_are_written(dtype: DType) -> None:
    other = Header(str(dtype.safetensors), (4, 8))
    call = file(tensors={**layer(P), "other": other})
    if dtype in (DType.F6_E2M3, DType.F6_E3M2):
        with pytest.raises(SafetensorError, match="Unknown dtype"):
            build(call)
    else:
        assert header_of(build(call)["checkpoint"]).tensors["other"] == other


NAMES = st.text(
    st.one_of(st.sampled_from("~/'\"\\\n\0 .é☃\U0001f600{}"), st.characters(exclude_categories=["Cs"])),
    min_size=1,
    max_size=10,
)


@settings(max_examples=30)
@given(NAMES, NAMES)
def test_odd_names_survive_the_file(prefix: str, mapped: str) -> None:
    call = file({prefix: ENTRY}, layer(prefix)).replace(name_mapper=NameMapper({prefix: mapped}))
    assert RUNNER.function(**build(call))[0] == {mapped}
    bad = file({prefix: ENTRY}, layer(prefix, data=Header("U8", (3, 2))))
    with pytest.raises(ValueError, match="needs a 2D I8 weight") as raised:
        RUNNER.function(**build(bad))
    assert str(raised.value) == f"Quanto layer {prefix!r} needs a 2D I8 weight, got U8 (3, 2)"


def test_the_folder_goes_with_the_file() -> None:
    written = WrittenFile(
        VALID.checkpoint, {name: (header, Zeros()) for name, header in VALID.checkpoint.tensors.items()}
    )
    folder = written.path.parent
    assert written.path.is_file()
    del written
    gc.collect()
    assert not folder.exists()


def test_equal_seeds_write_equal_tensors_and_layers_differ() -> None:
    """Tensors, not bytes: the library writes metadata in any order."""
    call = QuantoCall(quanto(["a", "b"], 8, 16))

    def tensors(seed: int) -> dict[str, torch.Tensor]:
        written = build(call, seed)["checkpoint"]
        return load_file(written)

    one, again, other = tensors(1), tensors(1), tensors(2)
    codes = [f"{name}.weight._data" for name in "ab"]
    assert all(torch.equal(one[name], again[name]) for name in one)
    assert not torch.equal(one[codes[0]], other[codes[0]])
    assert not torch.equal(one[codes[0]], one[codes[1]])
    assert min(int(one[name].min()) for name in codes) >= -127
    assert bool((one["a.weight._scale"] > 0).all())
    assert one["a.input_scale"].item() == 1


# --- the linear


def run(call: QuantoCall) -> tuple[torch.Tensor, torch.Tensor]:
    arguments = build(call)
    y = RUNNER.outputs(arguments, RUNNER.function(**arguments))["y"]
    return y, RUNNER.reference(build(call))["y"]


def activation(dtype: DType, *shape: int, **values: Any) -> TensorSpec:
    return TensorSpec(shape, dtype, device="cpu", **values)


@pytest.mark.parametrize("dtype", [DType.BF16, DType.F16, DType.F32])
@pytest.mark.parametrize(("rows", "columns"), [(3, 2), (1, 1), (63, 64), (100, 1000)])
def test_it_agrees_with_the_float32_product(dtype: DType, rows: int, columns: int) -> None:
    call = QuantoCall(quanto([PREFIX], rows, columns, "F32"), x=activation(dtype, 5, columns))
    y, expected = run(call)
    allowed = tolerance("y", call)
    assert (allowed.atol, allowed.rtol) == (TOLERANCES[dtype], TOLERANCES[dtype])
    found = compare("y", y, expected, allowed)
    assert found.within
    if dtype is not DType.F32:
        assert found.max_abs_error > 0, "the comparison sees the roundings"


@pytest.mark.parametrize("dtype", [DType.BF16, DType.F16])
def test_the_tolerance_is_tight(dtype: DType) -> None:
    """A fiftieth of it is exceeded: what passes is not far from what must fail."""
    call = QuantoCall(quanto([PREFIX], 64, 64, "F32"), x=activation(dtype, 32, 64))
    y, expected = run(call)
    allowed = tolerance("y", call)
    tenth = replace(allowed, atol=allowed.atol / 50, rtol=allowed.rtol / 50)
    assert not compare("y", y, expected, tenth).within
    wrong = y.clone()
    wrong[0, 0] += 0.5
    assert not compare("y", wrong, expected, allowed).within


def test_the_tolerance_grows_with_the_described_numbers() -> None:
    call = QuantoCall(quanto([PREFIX], 64, 64), x=activation(DType.BF16, 8, 64, values=Full(1000)))
    allowed = tolerance("y", call)
    assert allowed.rtol == TOLERANCES[DType.BF16]
    assert allowed.atol > 100 * TOLERANCES[DType.BF16]
    y, expected = run(call)
    assert compare("y", y, expected, allowed).within


def test_numbers_whose_squares_overflow_have_a_tolerance() -> None:
    for values in (Randn(mean=1e300, std=1e300), Listed((1e300, -1e300))):
        call = QuantoCall(quanto([PREFIX], 4, 4), x=activation(DType.BF16, 1, 4, values=values))
        assert tolerance("y", call).atol >= TOLERANCES[DType.BF16]


def test_unlimited_numbers_do_not_make_everything_pass() -> None:
    call = QuantoCall(quanto([PREFIX], 4, 4), x=activation(DType.BF16, 1, 4, values=Full(float("inf"))))
    assert tolerance("y", call).atol == TOLERANCES[DType.BF16]


@pytest.mark.parametrize("shape", [(2,), (4, 2), (2, 3, 2), (0, 2)])
def test_any_number_of_leading_dimensions(shape: tuple[int, ...]) -> None:
    y, expected = run(GOLDEN.replace(x=activation(DType.F32, *shape)))
    assert y.shape == (*shape[:-1], 3)
    torch.testing.assert_close(y, expected)


def test_the_first_layer_of_that_width_takes_the_activation() -> None:
    tensors = {
        **layer("wide", data=Header("I8", (5, 4)), scale=Header("F32", (5, 1))),
        **layer("first"),
        **layer("second", data=Header("I8", (7, 2)), scale=Header("F32", (7, 1))),
    }
    call = file({"wide": ENTRY, "first": ENTRY, "second": ENTRY}, tensors)
    assert run(call.replace(x=activation(DType.BF16, 1, 2)))[0].shape == (1, 3)
    assert run(call.replace(x=activation(DType.BF16, 1, 4)))[0].shape == (1, 5)


def test_a_bias_is_added_and_one_of_another_length_refused() -> None:
    data = Header("I8", (3, 2), Zeros())
    fitting = p(data=data, bias=Header("BF16", (3,), Listed((1, 2, 3)))).replace(
        x=activation(DType.F32, 1, 2)
    )
    assert [tensor.tolist() for tensor in run(fitting)] == [[[1.0, 2.0, 3.0]], [[1.0, 2.0, 3.0]]]
    longer = p(data=data, bias=Header("BF16", (4,), Ones())).replace(x=activation(DType.F32, 1, 2))
    with pytest.raises(ValueError, match=r"has a bias \(4,\) for 3 rows"):
        run(longer)


def test_a_layer_without_columns_is_refused() -> None:
    call = QuantoCall(quanto([PREFIX], 3, 0), x=activation(DType.BF16, 2, 0))
    with pytest.raises(ValueError, match=r"has an empty weight \(3, 0\)"):
        run(call)


def test_a_large_scale_overflows_float16_alone() -> None:
    codes = torch.tensor([[127, 127]], dtype=torch.int8)
    scale = torch.tensor([[516.0]])
    x = torch.tensor([[1.0, 0.0]])
    assert (
        reference.linear(x.half(), codes, scale).isinf().any()
        or reference.linear(x.half(), codes, scale).isnan().any()
    )
    assert torch.isfinite(reference.linear(x.bfloat16(), codes, scale)).all()
    assert torch.isfinite(reference.linear(x.half(), codes, torch.tensor([[515.0]]))).all()


def test_every_code_is_exact_in_every_activation_type() -> None:
    codes = torch.arange(-128, 128, dtype=torch.int16).to(torch.int8).unsqueeze(1)
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        y = reference.linear(torch.ones(1, 1, dtype=dtype), codes, torch.ones(256, 1))
        assert y.flatten().tolist() == list(range(-128, 128))


def test_the_codes_are_left_as_they_are() -> None:
    codes = torch.tensor([[1, -2]], dtype=torch.int8)
    reference.linear(torch.ones(1, 2), codes, torch.tensor([[0.5]]))
    assert codes.tolist() == [[1, -2]]


def test_a_process_that_runs_no_kernels_multiplies_as_upstream_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("kernels.quanto_int8_checkpoint.op.runs_kernels", lambda device: False)
    x = torch.tensor([[1.0, 0.0]], dtype=torch.float16)
    codes = torch.tensor([[127, 127]], dtype=torch.int8)
    assert not torch.isfinite(linear(x, codes, torch.tensor([[516.0]]))).any()


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [DType.BF16, DType.F16, DType.F32])
def test_on_the_gpu(compiled: None, dtype: DType) -> None:
    call = QuantoCall(quanto([PREFIX], 1024, 3072, "BF16"), x=TensorSpec((33, 3072), dtype))
    assert RUNNER.build is not None
    fill = seeded(OPERATION.fill(call), 7)
    arguments = RUNNER.build(call, fill, "cuda")
    y = RUNNER.function(**arguments)[1]
    assert y.device.type == "cuda"
    assert compare("y", y, RUNNER.reference(arguments)["y"], tolerance("y", call)).within
