"""`hazard(x, kind)`: returns x doubled, or does to its process what `kind` says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kernels.call import Call, argument
from kernels.dtypes import DType
from kernels.registry import Operation
from kernels.spec import TensorSpec
from kernels.upstream import SGLANG, File
from kernels.values import Ones, Values


@dataclass(frozen=True)
class HazardCall(Call):
    """Arguments of hazard."""

    x: TensorSpec = argument("any float32 tensor")
    kind: str = argument("what to do to the process", default="none")


VALID = HazardCall(TensorSpec((4,), DType.F32))


def fit(given: Mapping[str, Any]) -> HazardCall:
    return HazardCall(**{"x": VALID.x, **given})


def fill(_: HazardCall) -> Mapping[str, Values]:
    return {"x": Ones()}


OPERATIONS = (
    Operation(
        name="hazard",
        title="Hazard",
        summary="Ends its process in the way asked for.",
        call=HazardCall,
        stages=(),
        valid=VALID,
        fit=fit,
        fill=fill,
        outputs=(),
        source=File(SGLANG, "none.py"),
        module="none",
    ),
)
