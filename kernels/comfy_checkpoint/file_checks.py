"""What only we say of a component's files as a whole: names in two of them, declarations that differ."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Self

from kernels.checking import Check, Fix, Severity, aside
from kernels.checkpoint import Checkpoint, Header
from kernels.comfy_checkpoint.layouts import file
from kernels.comfy_checkpoint.markers import ENDING, GLOBAL_KEY, MXFP8
from kernels.comfy_checkpoint.signature import PREFIX, VALID, ComfyCall
from kernels.shards import Shards
from kernels.wording import Listing

SHOWN = 5


@dataclass(frozen=True)
class TensorInTwoFiles(Check[ComfyCall]):
    """Files are read one after another into one table of names: the last of two overwrites the first."""

    raises = ValueError
    message = "tensors are in more than one file: {names}"
    reason = (
        "{first!r} is {told} in {earlier!r} and {read} in {last!r}: the last one is loaded, the other lost"
    )
    looks_at = ("checkpoint.tensors", "others")
    requires = "every tensor in one file only"
    category = "format"
    severity = Severity.WARNING
    names: Listing
    first: str = aside()
    told: Header = aside()
    earlier: str = aside()
    read: Header = aside()
    last: str = aside()

    @classmethod
    def find(cls, call: ComfyCall, /) -> Iterator[Self]:
        held = places(call)
        names = [name for name, files in held.items() if len(files) > 1]
        if names:
            *_, earlier, last = held[names[0]]
            told, read = (dict(call.files)[path].tensors[names[0]] for path in (earlier, last))
            yield cls(Listing(names[:SHOWN]), names[0], told, earlier, read, last)

    def describe_actual(self, call: ComfyCall, /) -> str:
        held = places(call)
        return "; ".join(f"{name!r} in {', '.join(map(repr, held[name]))}" for name in self.names)

    def fixes(self, call: ComfyCall, /) -> Iterator[Fix[ComfyCall]]:
        held = places(call)
        changed = call
        for index, (path, shard) in enumerate(call.files):
            lost = [name for name in shard.tensors if name in held and held[name][-1] != path]
            if lost:
                changed = changed.with_file(index, shard.without_tensors(*lost))
        note = "what is loaded today stays: compare it with the copies that go"
        yield Fix("Keep each tensor in the last file that has it", changed, safe=True, note=note)

    @classmethod
    def example(cls) -> ComfyCall:
        name = f"{PREFIX}.weight"
        return VALID.replace(
            others=Shards({"second.safetensors": Checkpoint({}, {name: VALID.headers[name]})})
        )


def places(call: ComfyCall) -> dict[str, list[str]]:
    """Tensor → files that have it, in the order in which they are read; markers are merged, and left out."""
    held: dict[str, list[str]] = {}
    for path, shard in call.files if call.others is not None else ():
        for name in shard.tensors:
            if not name.endswith(ENDING):
                held.setdefault(name, []).append(path)
    return held


@dataclass(frozen=True)
class FormatsOfFilesDiffer(Check[ComfyCall]):
    """The checkpoint counts as MXFP8 where all declarations say so; one that says otherwise undoes them."""

    raises = ValueError
    message = "quant_format differs between files: {names}"
    reason = (
        "one file is declared mxfp8 and another {other}: the checkpoint then counts as neither, no MXFP8 "
        "layer is looked at, and weights without a marker of their own are refused for lacking one"
    )
    looks_at = ("checkpoint.metadata", "others")
    requires = "the same quant_format in every file that declares one"
    category = "format"
    severity = Severity.WARNING
    names: Listing
    other: str = aside()

    @classmethod
    def find(cls, call: ComfyCall, /) -> Iterator[Self]:
        found = call.quant_formats
        others = [name for name in found if name != MXFP8]
        if MXFP8 in found and others:
            yield cls(Listing(sorted(found)), others[0])

    def describe_actual(self, call: ComfyCall, /) -> str:
        return ", ".join(
            f"{GLOBAL_KEY} = {shard.metadata[GLOBAL_KEY]!r} in {path!r}"
            for path, shard in call.files
            if GLOBAL_KEY in shard.metadata
        )

    def fixes(self, call: ComfyCall, /) -> Iterator[Fix[ComfyCall]]:
        note = "right only where every file holds MXFP8 layers; else the files belong to two checkpoints"
        yield Fix(f"Set {GLOBAL_KEY} to {MXFP8} in each file", call.with_format(MXFP8), safe=False, note=note)

    @classmethod
    def example(cls) -> ComfyCall:
        tensors = {"weight": Header("F8_E4M3", (32, 64)), "weight_scale": Header("U8", (32, 2))}
        first = file({PREFIX: ({"format": MXFP8}, tensors)}, {GLOBAL_KEY: MXFP8})
        second = Checkpoint({GLOBAL_KEY: "fp8"}, {"norm.weight": Header("BF16", (64,))})
        return ComfyCall(first, others=Shards({"second.safetensors": second}))


FILE_CHECKS = (TensorInTwoFiles, FormatsOfFilesDiffer)
