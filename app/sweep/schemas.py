"""A sweep as the API takes and answers it."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from app.diagnose.schemas import RaisedModel, TargetName, _Answer

MAX_POINTS = 10_000
"""Calls of one sweep: all combinations of the values given."""

MAX_AXES = 2


class Range(BaseModel):
    """Whole numbers from `from` to `to`, both included where `step` meets them."""

    model_config = ConfigDict(extra="forbid", strict=True)

    start: int = Field(alias="from")
    stop: int = Field(alias="to")
    step: Annotated[int, Field(gt=0)] = 1


class SweepRequest(BaseModel):
    """A call as for POST /api/diagnose, and what to vary in it."""

    model_config = ConfigDict(extra="forbid", strict=True)

    operation: Annotated[str, Field(max_length=200)]
    arguments: dict[str, Any] = Field(default_factory=dict)
    vary: dict[str, Annotated[list[Any], Field(min_length=1, max_length=MAX_POINTS)] | Range] = Field(
        min_length=1,
        max_length=MAX_AXES,
        description="an argument (`group_size`), an attribute of a tensor (`output_s.dtype`) or one of its "
        "sizes or strides (`input.shape.1`) → its values, or a range of whole numbers",
    )
    target: TargetName | None = Field(
        None, description="architecture whose rules to apply, or a GPU such as H100"
    )


class PointModel(_Answer):
    """One call. `ruled_by` is the check that rules it out: the one that raises, else our first of error
    severity. `warnings` are checks that fail besides, told where nothing is raised.
    """

    values: dict[str, Any]
    passes: bool
    raised: RaisedModel | None
    ruled_by: str | None
    warnings: list[str]


class ExtentModel(_Answer):
    """Neighbouring values of one argument, in the order given."""

    first: Any = Field(alias="from")
    last: Any = Field(alias="to")
    count: int


class RegionModel(_Answer):
    """Neighbouring points with one outcome: a stretch of one argument, a rectangle of two."""

    passes: bool
    ruled_by: str | None
    points: int
    values: dict[str, ExtentModel]


class SweepModel(_Answer):
    """Every point, the first argument varying slowest, and the regions that they form."""

    operation: str
    points: list[PointModel]
    regions: list[RegionModel]
    passing: int
    assumed: list[str]
    dataset_version: str
