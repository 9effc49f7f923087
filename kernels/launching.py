"""What upstream's compiled launchers share: how they print tensors, and the causes of a failed tensor
match.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Self, TypeVar

from kernels.call import Call
from kernels.checking import LauncherCheck, aside
from kernels.dtypes import DType
from kernels.spec import TensorSpec
from kernels.upstream import Site

C = TypeVar("C", bound=Call)

MATCH_FAILED = (
    "Tensor match failed for Tensor<{shape}>[strides=<{strides}>, dtype={dtype}, device={device}] "
    "at {file}:{line}\n- Root cause: "
)


class MatchFailed(LauncherCheck[C]):
    """One requirement of a launcher on one tensor; the message describes the tensor, then names the cause.

    A subclass declares `tensor` (the argument), its sites, and `causes`, which yields the holes of the cause.
    """

    tensor: ClassVar[str]
    found: TensorSpec
    which: int

    @classmethod
    def causes(cls, call: C, tensor: TensorSpec, /) -> Iterator[tuple[Any, ...]]:
        """Holes of the cause, for each way in which the tensor does not match."""
        raise NotImplementedError(cls.__name__)

    @classmethod
    def variant(cls, call: C, /) -> int:
        """Index of the site that reports for this call."""
        return 0

    @classmethod
    def find(cls, call: C, /) -> Iterator[Self]:
        tensor = getattr(call, cls.tensor)
        if tensor is not None:
            for holes in cls.causes(call, tensor):
                yield cls(*holes, tensor, cls.variant(call))  # type: ignore[call-arg]
                return

    @property
    def site(self) -> Site:
        return self.sites[self.which]

    @property
    def text(self) -> str:
        return super(LauncherCheck, self).text

    def printed(self) -> list[object]:
        tensor = self.found
        return [
            joined(tensor.shape),
            joined(tensor.strides),
            tensor.dtype,
            tensor.device_index,
            self.site.file.path,
            self.site.lines[0],
            *super().printed(),
        ]


def joined(sizes: tuple[int, ...]) -> str:
    """Sizes as launchers print them: `4, 256`."""
    return ", ".join(map(str, sizes))


@dataclass(frozen=True)
class WrongDims(MatchFailed[C]):
    """Number of dimensions."""

    message = MATCH_FAILED + "Tensor dimension mismatch: expected {expected} but got {got}"
    reason = "the tensor has {got} dimensions where the launcher takes {expected}"
    category = "shape"
    expected: int
    got: int
    found: TensorSpec = aside()
    which: int = aside()


@dataclass(frozen=True)
class WrongSize(MatchFailed[C]):
    """A size that must equal another tensor's; `name` is the launcher's name of that size."""

    message = MATCH_FAILED + "Size mismatch for shape#{dim}({name!r}): expected {expected} but got {got}"
    reason = "size {dim} is {got} where {name} is {expected}"
    category = "shape"
    dim: int
    name: str
    expected: int
    got: int
    found: TensorSpec = aside()
    which: int = aside()


@dataclass(frozen=True)
class WrongStride(MatchFailed[C]):
    """A stride that must have one value."""

    message = MATCH_FAILED + "Size mismatch for stride#{dim}: expected {expected} but got {got}"
    reason = "stride {dim} is {got} where the launcher takes {expected}"
    category = "layout"
    dim: int
    expected: int
    got: int
    found: TensorSpec = aside()
    which: int = aside()


@dataclass(frozen=True)
class WrongDevice(MatchFailed[C]):
    """The first tensor matched sets the device; the others must be on it."""

    message = MATCH_FAILED + "Device mismatch: expected {expected} but got {got}"
    reason = "the tensor is on {got}, the input on {expected}"
    category = "device"
    expected: str
    got: str
    found: TensorSpec = aside()
    which: int = aside()


@dataclass(frozen=True)
class WrongDtype(MatchFailed[C]):
    """An element type outside the compiled ones."""

    message = MATCH_FAILED + "Dtype value [{got}] not in the allowed options: [{allowed}]"
    reason = "the tensor is {got}; allowed are {allowed}"
    category = "dtype"
    got: DType
    allowed: str
    found: TensorSpec = aside()
    which: int = aside()


@dataclass(frozen=True)
class NotContiguous(MatchFailed[C]):
    """A tensor that must be dense."""

    message = MATCH_FAILED + "Tensor is not contiguous as expected"
    reason = "the tensor has gaps or another order of dimensions; the launcher takes it dense"
    category = "layout"
    found: TensorSpec = aside()
    which: int = aside()
