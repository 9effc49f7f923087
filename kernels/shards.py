"""Several safetensors files that hold one component: file name → what its header says."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from kernels import checkpoint_script
from kernels.checkpoint import Checkpoint, FaultyMembers, Frozen, encodable, escaped
from kernels.expressions import literal

MAX_FILES = 1000
"""Files of one component; the largest models have some hundreds."""


class Shards(Frozen[Checkpoint]):
    """Files in the order in which they are read."""

    __slots__ = ()

    @property
    def storage_bytes(self) -> int:
        """Bytes of tensor data in the files."""
        return sum(file.storage_bytes for file in self.values())

    def edits_to(self, other: Shards) -> Iterator[tuple[str, Any, Any]]:
        """(JSON pointer, before, after) of each difference; None before adds a file, after removes it."""
        for name in dict.fromkeys((*self, *other)):
            before, after, at = self.get(name), other.get(name), f"/{escaped(name)}"
            if before is None or after is None:
                yield at, before and before.to_json(), after and after.to_json()
            else:
                yield from ((at + pointer, old, new) for pointer, old, new in before.edits_to(after))

    def to_json(self) -> dict[str, Any]:
        """As the API takes it."""
        return {name: file.to_json() for name, file in self.items()}

    @classmethod
    def from_json(cls, value: Any) -> Shards:
        """Read `{"file name": {"metadata", "tensors"}, …}`; raises FaultyMembers listing every fault."""
        if not isinstance(value, Mapping):
            raise FaultyMembers([("", "expected an object of file name → metadata and tensors")])
        if len(value) > MAX_FILES:
            raise FaultyMembers([("", f"{len(value):,} files; a component has at most {MAX_FILES:,}")])
        files: dict[str, Checkpoint] = {}
        faults: list[tuple[str, str]] = []
        for name, item in value.items():
            at = f"/{escaped(name)}"
            if not encodable(name):
                faults.append((at, "holds half of a surrogate pair, which no file name has"))
                continue
            try:
                files[name] = Checkpoint.from_json(item)
            except FaultyMembers as error:
                faults += [(at + where, what) for where, what in error.faults]
        if faults:
            raise FaultyMembers(faults)
        return cls(files)

    @staticmethod
    def json_schema() -> dict[str, Any]:
        """JSON Schema of what `from_json` takes."""
        return {
            "type": "object",
            "maxProperties": MAX_FILES,
            "additionalProperties": Checkpoint.json_schema(),
        }

    def to_python(self, name: str) -> str:
        """Lines that write such files, after which `name` holds the list of their paths."""
        lines = [f"{name} = []"]
        for path, file in self.items():
            written = checkpoint_script.writing("shard", file).replace(
                'shard = "shard.safetensors"', f"shard = {literal(path)}"
            )
            lines += [written, f"{name}.append(shard)"]
        return "\n".join(lines)
