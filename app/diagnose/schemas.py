"""A diagnosis as the API answers it, and the request's envelope."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StrictInt
from pydantic.alias_generators import to_camel
from pydantic_core import PydanticCustomError

from kernels.target import Target

Verdict = Literal[
    "passed", "rejected", "wrong-result", "crashed", "out-of-memory", "timed-out", "unsupported"
]
Level = Literal["checks", "run"]


def _target(text: str) -> str:
    """An architecture by any of its names."""
    try:
        return str(Target.parse(text))
    except ValueError as error:
        raise PydanticCustomError("architecture", "{detail}", {"detail": str(error)}) from None


TargetName = Annotated[str, Field(max_length=100, examples=["sm90", "gfx942"]), AfterValidator(_target)]


class DiagnoseRequest(BaseModel):
    """What to diagnose.

    `arguments` holds the operation's own arguments; its form is the `callSchema` of `/api/operations/{name}`.
    """

    model_config = ConfigDict(extra="forbid", strict=True)

    operation: Annotated[str, Field(max_length=200)]
    arguments: dict[str, Any] = Field(default_factory=dict)
    level: Level | None = Field(None, description="default: run where the service has a worker")
    device: Literal["auto", "cpu", "cuda"] = Field("auto", description="where to run")
    target: TargetName | None = Field(
        None,
        description="architecture whose rules to apply, sm90 or gfx942, or a GPU such as H100; "
        "default: that of the GPU that runs it",
    )
    seed: Annotated[StrictInt, Field(ge=0, lt=2**63)] = Field(0, description="draws the values left open")


class _Answer(BaseModel):
    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, ser_json_inf_nan="null")


class RaisedModel(_Answer):
    """What a user of upstream sees first, its message to the letter."""

    error_class: str
    message: str
    record_id: str | None
    at_check: str | None


class OccurrenceModel(_Answer):
    """One place where a check fails."""

    message: str
    reason: str
    expected: str
    actual: str


class CheckModel(_Answer):
    """One check's outcome; texts are those of its first occurrence."""

    id: str
    status: Literal["passed", "failed", "not-reached"]
    origin: Literal["upstream", "beyond"]
    severity: Literal["error", "warning"]
    category: str
    message: str | None
    reason: str | None
    record_id: str | None
    arguments: list[str]
    expected: str
    actual: str | None
    occurrences: list[OccurrenceModel] = Field(description="the first 200")
    occurrence_count: int


class EditModel(_Answer):
    """One change of the call."""

    argument: str
    attribute: str
    before: Any = Field(alias="from")
    after: Any = Field(alias="to")


class DeviceModel(_Answer):
    """Where it ran; emulated when that is not the kind of device the call names."""

    name: str
    capability: str | None
    emulated: bool


class ToleranceModel(_Answer):
    """|a - b| <= atol + rtol·|b|, except for a share of the elements."""

    atol: float
    rtol: float
    share: float


class OutputModel(_Answer):
    """One written tensor beside its reference."""

    name: str
    shape: list[int]
    dtype: str
    max_abs_error: float | None
    max_rel_error: float | None
    mismatches: int
    elements: int
    within: bool
    tolerance: ToleranceModel


class RunModel(_Answer):
    """A run of the real operation; errors are the largest over all outputs."""

    device: DeviceModel
    implementation: Literal["triton", "reference", "library"]
    milliseconds: float | None
    max_abs_error: float | None
    max_rel_error: float | None
    tolerance: ToleranceModel | None
    outputs: list[OutputModel]
    detail: str | None = None


class FixModel(_Answer):
    """A change after which the call passes, and how far that was proved."""

    title: str
    edits: list[EditModel]
    safe: bool
    note: str = Field(description="what it costs in memory and numbers")
    warnings: list[str] = Field(description="checks of warning severity that fail after it")
    level: Literal["checks-pass", "ran", "matches-reference"]
    run: RunModel | None
    arguments: dict[str, Any]
    code: str


class CompilationModel(_Answer):
    """A kernel of ours, compiled for an architecture that no worker of this service is."""

    kernel: str
    target: str
    kind: Literal["cubin", "hsaco"] | None = Field(description="null where the compiler refuses")
    refusal: str | None = Field(description="the compiler's own words")
    shared_bytes: int | None = Field(description="shared memory that a program needs")
    shared_limit: int = Field(description="what a program may have on this architecture")
    fits: bool | None


class EnvironmentModel(_Answer):
    """Versions of what answered."""

    torch: str | None
    triton: str | None
    cuda: str | None
    driver: str | None
    faultbook: str


class UpstreamHostModel(_Answer):
    """Who answered; without a device no kernel was run, and upstream's checks looked at stated tensors."""

    python: str
    torch: str
    cuda: str | None
    device: str | None
    packages: dict[str, str]


class UpstreamOutputModel(_Answer):
    """A tensor that upstream returned."""

    shape: list[int]
    dtype: str
    not_finite: int
    zeros: int


class UpstreamModel(_Answer):
    """The same call on upstream's own function."""

    function: str
    outcome: Literal[
        "returned", "raised", "unlaunched", "crashed", "timed-out", "out-of-memory", "unavailable", "not-run"
    ] = Field(
        description="unlaunched: its checks pass, no kernel ran; unavailable: its interpreter lacks something"
    )
    raised: RaisedModel | None
    agrees: bool | None = Field(description="whether the checks predict this; null where nothing was said")
    differences: list[str] = Field(description="of class, text or the check that speaks first")
    detail: str | None
    milliseconds: float | None
    outputs: list[UpstreamOutputModel]
    outside: list[str] = Field(description="memory that it wrote and must not have")
    host: UpstreamHostModel | None


class CachedModel(_Answer):
    """An answer that was made before, for the same call on the same device with the same versions."""

    at: str = Field(description="when it was made, ISO 8601 in UTC")


class DiagnosisModel(_Answer):
    """Everything found about one call."""

    id: str
    operation: str
    level: Level
    verdict: Verdict
    raised: RaisedModel | None
    checks: list[CheckModel]
    fixes: list[FixModel]
    advice: list[str] = Field(
        description="where editing the call does not help: no value does, the library is at fault, what else"
    )
    run: RunModel | None
    compilations: list[CompilationModel] | None = Field(
        None, description="at level run for an architecture without a worker: what its kernels need there"
    )
    disagreement: str | None = Field(description="where the run and the checks say different things")
    detail: str | None = Field(description="why there was no run, where one was asked for")
    upstream: UpstreamModel | None
    assumed: list[str]
    reproduction: str
    environment: EnvironmentModel
    dataset_version: str
    cached: CachedModel | None = Field(
        None,
        description="an equal call's stored answer, nothing was run; `Cache-Control: no-cache` asks anew",
    )


class OperationCheckModel(_Answer):
    """One check of an operation; `example` breaks it, and is null where `unreachable` says why."""

    id: str
    order: int
    origin: Literal["upstream", "beyond"]
    severity: Literal["error", "warning"]
    category: str
    error_class: str
    message: str
    reason: str
    record_id: str | None
    example: dict[str, Any] | None
    unreachable: str | None


class OperationSummary(_Answer):
    """An operation in the list."""

    name: str
    title: str
    summary: str
    checks: int
    url: str


class OperationModel(_Answer):
    """An operation: how to describe a call of it, one that passes, and every check."""

    name: str
    title: str
    summary: str
    call_schema: dict[str, Any]
    valid: dict[str, Any]
    checks: list[OperationCheckModel]
    devices: list[DeviceModel]
