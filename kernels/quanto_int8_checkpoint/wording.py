"""What violations say of a file in words."""

from __future__ import annotations

from collections.abc import Iterator

from kernels.quanto_int8_checkpoint.quantization_map import FORMAT, FORMAT_KEY
from kernels.quanto_int8_checkpoint.repairs import renaming
from kernels.quanto_int8_checkpoint.signature import DATA, DENSE, REQUIRED, QuantoCall
from kernels.wording import short

SHOWN = 5
"""Names that upstream prints of each side."""

SHARDED = "a map with more layers than the file is often the whole model's, and the file one shard of it"


def why_differ(untold: list[str], absent: list[str]) -> str:
    """What usually makes names differ so, as the end of a sentence; the map lacks some, the file others."""
    if renaming(untold, absent):
        return f"; the names differ by a leading part alone, {absent[0]!r} in the map"
    return f"; one file is inspected, and {SHARDED}" if absent and not untold else ""


def why_not_quanto(call: QuantoCall, declared: str | None) -> Iterator[str]:
    """Sentences: what the metadata says, what the tensors say, and what follows."""
    if declared is None:
        yield f"The metadata has no {FORMAT_KEY}, so the file counts as unquantized."
    elif FORMAT in declared.lower():
        yield f"{FORMAT_KEY} is {short(declared)}, not {FORMAT!r} to the letter: it counts as unquantized."
    else:
        yield f"{FORMAT_KEY} is {short(declared)}: the file is of another format."
    if not call.packed:
        yield from _otherwise_packed(call)
        return
    first = call.layer(call.packed[0])
    more = f" and {len(call.packed) - 1} more tensors" if len(call.packed) > 1 else ""
    yield (
        f"Yet it has {first.name(DATA)!r}{more}, named .{DATA} as Quanto names packed weights; "
        f"a loader will look for {first.name(DENSE)!r} and miss it."
    )
    if call.encoded_map is None:
        yield "Quanto keeps its map in a file, such as quantization_map.json; here it goes into the metadata."
    if not call.all_qint8:
        other = next(layer for prefix in call.packed if not (layer := call.layer(prefix)).is_qint8)
        yield f"Only qint8 exports are accepted, and the layer has {other.describe(*REQUIRED)}."


def _otherwise_packed(call: QuantoCall) -> Iterator[str]:
    """A weight of bytes with scales beside it is no Quanto weight, and no plain one either."""
    tensors = call.checkpoint.tensors
    for name, header in tensors.items():
        scale = tensors.get(f"{name}_scale")
        if name.endswith(f".{DENSE}") and header.dtype in ("U8", "I8") and scale is not None:
            yield (
                f"{name!r} {header} has scales {scale} beside it: codes of another format whose metadata "
                "is missing; a loader that knows of none takes the bytes for the weight. comfy_checkpoint "
                "inspects such files."
            )
            return
