"""A component in several files: read in order, merged as upstream merges them, repaired where they lie."""

from __future__ import annotations

import json
from typing import Any

import pytest
from safetensors import safe_open

from kernels.call import plain
from kernels.checking import Status
from kernels.checkpoint import Checkpoint, FaultyMembers, Header
from kernels.checkpoint_file import read_header
from kernels.comfy_checkpoint.checks import OPERATIONS
from kernels.comfy_checkpoint.layouts import file
from kernels.comfy_checkpoint.op import RUNNERS
from kernels.comfy_checkpoint.signature import ComfyCall
from kernels.shards import Shards
from kernels.values import Text, seeded
from tests.kernels.comfy_checkpoint.files import FP8, MX, NVFP4, X64, P, nv

[OPERATION] = OPERATIONS
RUNNER = RUNNERS[OPERATION.name]
MARKER = {"format": "nvfp4", "full_precision_matrix_mult": True}
SECOND = "model-00002.safetensors"
NORM = Checkpoint({}, {"norm.weight": Header("BF16", (64,))})


def named(prefix: str, tensors: dict[str, Header]) -> dict[str, Header]:
    return {f"{prefix}.{suffix}": header for suffix, header in tensors.items()}


def apart(first: Checkpoint, second: Checkpoint, **more: Any) -> ComfyCall:
    return ComfyCall(first, path="model-00001.safetensors", others=Shards({SECOND: second}), **more)


def declared(layers: Any) -> dict[str, str]:
    return {"_quantization_metadata": json.dumps({"layers": layers})}


def failed(call: ComfyCall) -> list[str]:
    return [outcome.check.id() for outcome in OPERATION.examine(call).failed()]


SPLIT = apart(
    Checkpoint(declared({P: MARKER}), {f"{P}.weight": NVFP4["weight"]}),
    Checkpoint({}, named(P, {name: header for name, header in NVFP4.items() if name != "weight"})),
)
"""A layer whose weight, scales and marker lie in two files."""


def test_a_layer_may_lie_in_several_files() -> None:
    assert failed(SPLIT) == []
    assert failed(SPLIT.replace(others=None)) == ["tensors_missing"]
    assert SPLIT.to_call("inspect") == "inspect([checkpoint, *others])"


def broken_marker(text: str) -> Checkpoint:
    return nv().checkpoint.with_tensor(f"{P}.comfy_quant", Header("U8", (len(text),), Text(text)))


BROKEN = Checkpoint({"_quantization_metadata": "{bad"}, NORM.tensors)

REFUSED = {
    "metadata of the second file": (
        apart(nv().checkpoint, BROKEN),
        f"Invalid _quantization_metadata in {SECOND}",
    ),
    "the first file's marker before the second's metadata": (
        apart(broken_marker("[1]"), BROKEN),
        f"Comfy quantization marker '{P}.comfy_quant' must contain a JSON object",
    ),
    "a marker of the second file, by its file": (
        apart(NORM, broken_marker("{bad")),
        f"Invalid Comfy quantization marker '{P}.comfy_quant' in {SECOND}",
    ),
    "metadata of two files": (
        apart(
            Checkpoint(declared({P: {"format": "nvfp4"}}), named(P, NVFP4)),
            Checkpoint(declared({P: {"format": "int8_tensorwise"}}), {}),
        ),
        f"Conflicting Comfy quantization markers for '{P}'",
    ),
    "metadata of one file, a tensor of the other": (
        apart(Checkpoint(declared({P: {"format": "int8_tensorwise"}}), {}), nv().checkpoint),
        f"Conflicting Comfy quantization markers for '{P}'",
    ),
    "entries in their order: a conflict, then one that is no object": (
        apart(
            Checkpoint(declared({P: {"format": "nvfp4"}}), named(P, NVFP4)),
            Checkpoint(declared({P: {"format": "mxfp8"}, "z": "nvfp4"}), {}),
        ),
        f"Conflicting Comfy quantization markers for '{P}'",
    ),
    "a weight without a marker in the second file": (
        apart(nv().checkpoint, Checkpoint({}, named("z", NVFP4))),
        "Quantized weights are missing comfy_quant metadata: ['z']",
    ),
    "declarations of two files": (
        apart(
            Checkpoint({"quant_format": "mxfp8"}, named("a", MX)),
            Checkpoint({"quant_format": "fp8"}, NORM.tensors),
        ),
        "Quantized weights are missing comfy_quant metadata: ['a']",
    ),
    "formats of two files": (
        apart(nv().checkpoint, file({"z": ({"format": "float8_e4m3fn"}, FP8)})),
        "Unsupported Comfy quantization format(s): float8_e4m3fn, nvfp4",
    ),
}


@pytest.mark.parametrize("row", REFUSED)
def test_refused_in_upstreams_words_and_repaired(row: str) -> None:
    call, text = REFUSED[row]
    examination = OPERATION.examine(call)
    assert examination.raised is not None
    assert examination.raised.text == text
    for outcome in examination.failed():
        for occurrence in outcome.occurrences:
            for fix in occurrence.violation.fixes(occurrence.subject):
                assert fix.edits(call), fix.title
                [own] = [o for o in OPERATION.examine(fix.call).outcomes if o.check is outcome.check]
                assert own.status is Status.PASSED, fix.title


@pytest.mark.parametrize("row", REFUSED)
def test_the_real_function_refuses_the_files_in_the_same_words(row: str) -> None:
    call, text = REFUSED[row]
    assert RUNNER.build is not None
    arguments = RUNNER.build(call, seeded(OPERATION.fill(call), 7), "cpu")
    with pytest.raises((ValueError, NotImplementedError)) as raised:
        RUNNER.function(**arguments)
    assert str(raised.value) == text


def test_unreadable_metadata_of_one_file_leaves_its_layers_unknown() -> None:
    statuses = {o.check.id(): o.status for o in OPERATION.examine(apart(nv().checkpoint, BROKEN)).outcomes}
    assert statuses["metadata_not_object"] is Status.NOT_REACHED
    assert statuses["markers_missing"] is statuses["nvfp4_types"] is Status.NOT_REACHED
    assert statuses["marker_invalid"] is Status.PASSED


def test_a_repair_is_made_in_the_file_that_the_tensor_is_read_from() -> None:
    wide = SPLIT.with_tensors({f"{P}.weight_scale": Header("F8_E4M3", (512,))})
    assert wide.checkpoint == SPLIT.checkpoint
    [outcome] = OPERATION.examine(wide).failed()
    [fix] = outcome.occurrences[0].violation.fixes(outcome.occurrences[0].subject)
    [edit] = fix.edits(wide)
    assert (edit.argument, edit.attribute) == ("others", f"/{SECOND}/tensors/{P}.weight_scale/shape")


def test_a_new_tensor_goes_to_the_first_file_of_its_layer() -> None:
    call = apart(NORM, nv().checkpoint.without_tensors(f"{P}.weight_scale_2"))
    changed = call.with_tensors(
        {f"{P}.weight_scale_2": Header("F32", ()), "other.weight": Header("BF16", (1,))}
    )
    assert list(changed.checkpoint.tensors) == ["norm.weight", "other.weight"]
    assert failed(changed) == []


def test_a_name_in_two_files_is_read_from_the_last() -> None:
    again = apart(SPLIT.checkpoint, nv().checkpoint.with_tensor(f"{P}.weight", Header("U8", (256, 32))))
    assert again.headers[f"{P}.weight"].shape == (256, 32)
    violations = {o.check.id(): o.occurrences[0].violation for o in OPERATION.examine(again).failed()}
    assert list(violations) == ["nvfp4_shapes", "tensor_in_two_files"]
    duplicate = violations["tensor_in_two_files"]
    assert duplicate.text == f"tensors are in more than one file: ['{P}.weight']"
    assert "U8 [256, 32] in 'model-00002.safetensors'" in duplicate.explain()
    [fix] = duplicate.fixes(again)
    assert list(fix.call.checkpoint.tensors) == []
    assert fix.call.headers == again.headers


def test_declarations_that_differ_are_told_beside_the_refusal_that_follows() -> None:
    call, _ = REFUSED["declarations of two files"]
    assert failed(call) == ["markers_missing", "formats_of_files_differ"]
    [outcome] = [o for o in OPERATION.examine(call).failed() if o.check.id() == "formats_of_files_differ"]
    [fix] = outcome.occurrences[0].violation.fixes(call)
    assert failed(fix.call) == []
    assert [shard.metadata["quant_format"] for _, shard in fix.call.files] == ["mxfp8", "mxfp8"]


def test_files_without_a_declaration_leave_it_standing() -> None:
    call = apart(Checkpoint({"quant_format": "MXFP8"}, named("a", MX)), NORM)
    assert call.is_mxfp8
    assert failed(call) == []


def test_a_run_reads_a_layer_from_both_files() -> None:
    call = SPLIT.replace(x=X64)
    fill = seeded(OPERATION.fill(call), 7)
    assert RUNNER.build is not None
    arguments = RUNNER.build(call, fill, "cpu")
    method, markers, y = RUNNER.function(**arguments)
    assert (method, list(markers)) == ("comfy_nvfp4", [P])
    whole = nv().replace(x=X64).with_checkpoint(Checkpoint(SPLIT.checkpoint.metadata, SPLIT.headers))
    _, _, alone = RUNNER.function(**RUNNER.build(whole, fill, "cpu"))
    expected = RUNNER.reference(RUNNER.build(call, fill, "cpu"))["y"]
    assert y.shape == alone.shape == expected.shape == (1, 128)
    assert (y.float() - expected).abs().max() <= RUNNER.tolerance("y", call).atol * 2


def test_shards_travel_as_json() -> None:
    shards = Shards({SECOND: NORM, "c.safetensors": nv().checkpoint})
    assert Shards.from_json(plain(shards)) == shards
    assert next(iter(shards.edits_to(Shards({SECOND: NORM}))))[0] == "/c.safetensors"
    with pytest.raises(FaultyMembers) as raised:
        Shards.from_json({"a/b": {"tensors": {"w": {"dtype": "F9", "shape": [1]}}}, "c": 3})
    assert [where for where, _ in raised.value.faults] == ["/a~1b/tensors/w/dtype", "/c"]
    for wrong in ([], {f"{n}": {"tensors": {}} for n in range(1001)}):
        with pytest.raises(FaultyMembers):
            Shards.from_json(wrong)


def test_a_script_writes_every_file(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec(Shards({SECOND: NORM, "c.safetensors": nv().checkpoint}).to_python("others"), names)  # noqa: S102 (our own)
    assert names["others"] == [SECOND, "c.safetensors"]
    with safe_open(SECOND, framework="pt") as opened:
        assert read_header(opened) == NORM


def test_markers_are_read_by_name() -> None:
    """The library lists a file's tensors sorted, whatever order they are written in."""
    broken = {**NVFP4, "weight": Header("U8", (128, 33))}
    call = ComfyCall(file({"b.fc": ({"format": "nvfp4"}, broken), "a.fc": ({"format": "nvfp4"}, broken)}))
    raised = OPERATION.examine(call).raised
    assert raised is not None
    assert "'a.fc'" in str(raised)
    assert [layer.prefix for layer in call.layers] == ["a.fc", "b.fc"]
