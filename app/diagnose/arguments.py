"""JSON arguments to a call's values, with a pointer for every fault.

Tensors and types must be written in a way that can be read; whatever else is well-formed, such as a scalar
of the wrong
type or an overlapping layout, is the checks' business.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainValidator,
    StrictInt,
    TypeAdapter,
    ValidationError,
)

from app.errors import Fault
from app.http.bodies import pointer, resolve
from app.http.text import scrub
from kernels.call import Argument, Call
from kernels.checkpoint import FaultyMembers
from kernels.dtypes import DType
from kernels.spec import DEVICE, MAX_DIMENSIONS, MAX_SIZE, TensorSpec
from kernels.values import Values, read_values

MAX_SCALAR_TEXT = 500


def _dtype(value: Any) -> DType:
    if not isinstance(value, str):
        raise ValueError("a dtype is a name such as bfloat16")
    return DType.parse(value)


def _values(value: Any) -> Values | None:
    return None if value is None else read_values(value)


Extent = Annotated[StrictInt, Field(ge=0, le=MAX_SIZE)]
Extents = Annotated[list[Extent], Field(max_length=MAX_DIMENSIONS)]


class TensorModel(BaseModel):
    """A tensor as the API takes it; strides and offset in elements, device where the caller has it."""

    model_config = ConfigDict(extra="forbid")

    shape: Extents
    dtype: Annotated[DType, BeforeValidator(_dtype)]
    strides: Extents | None = None
    offset: Extent = 0
    device: Annotated[str, Field(pattern=f"^{DEVICE.pattern}$")] = "cuda"
    values: Annotated[Values | None, PlainValidator(_values)] = None

    def spec(self) -> TensorSpec:
        """The description that checks read; raises ValueError for strides of another length than the
        shape.
        """
        return TensorSpec(
            tuple(self.shape),
            self.dtype,
            tuple(self.strides or ()),
            self.offset,
            self.device,
            self.values,
        )


_TENSOR = TypeAdapter(TensorModel)


def read_arguments(
    call: type[Call], given: Mapping[str, Any], at: tuple[str, ...]
) -> tuple[dict[str, Any], list[Fault]]:
    """The values of the arguments given, and what is wrong with the rest; `at` is where they stand in the
    body.
    """
    signature = {parameter.name: parameter for parameter in call.arguments()}
    values: dict[str, Any] = {}
    faults: list[Fault] = []
    for name, value in given.items():
        place = (*at, name)
        if name not in signature:
            known = ", ".join(signature)
            faults.append(Fault(pointer(place), f"no argument of this name; the arguments are {known}"))
            continue
        try:
            values[name] = _value(signature[name], value)
        except ValidationError as error:
            found = error.errors(include_url=False, include_input=False, include_context=False)
            faults += [
                Fault(pointer([*place, *resolve(item, value)]), _sentence(item["msg"])) for item in found
            ]
        except FaultyMembers as error:
            faults += [Fault(pointer(place) + inside, detail) for inside, detail in error.faults]
        except ValueError as error:
            faults.append(Fault(pointer(place), scrub(str(error))))
    return values, faults


def _value(parameter: Argument, value: Any) -> Any:
    if value is None and parameter.nullable:
        return None
    if parameter.is_tensor:
        return _tensor(value)
    if parameter.kind is DType:
        return _dtype(value)
    from_json = getattr(parameter.kind, "from_json", None)
    if from_json is not None:
        return from_json(value)
    if isinstance(value, (dict, list)):
        got = "an object" if isinstance(value, dict) else "a list"
        article = "an" if parameter.kind is int else "a"
        raise ValueError(f"expected {article} {parameter.kind.__name__}, got {got}")
    if isinstance(value, str) and len(value) > MAX_SCALAR_TEXT:
        raise ValueError(f"longer than {MAX_SCALAR_TEXT} characters")
    return value


def _tensor(value: Any) -> TensorSpec:
    if isinstance(value, str):
        if len(value) > MAX_SCALAR_TEXT:
            raise ValueError(f"longer than {MAX_SCALAR_TEXT} characters")
        spec = TensorSpec.parse(value)
        if spec.ndim > MAX_DIMENSIONS:
            raise ValueError(f"a tensor has at most {MAX_DIMENSIONS} dimensions")
        if max((*spec.shape, *spec.strides, spec.offset), default=0) > MAX_SIZE:
            raise ValueError("a size, stride or offset beyond 64 bits")
        return spec
    if not isinstance(value, dict):
        raise ValueError(
            'a tensor is an object with shape and dtype, or text such as "int32[16,14]:stride(1,16)"'
        )
    return _TENSOR.validate_python(value).spec()


def _sentence(message: str) -> str:
    return scrub(message.removeprefix("Value error, "))


def schema(call: type[Call]) -> dict[str, Any]:
    """JSON Schema of a call's `arguments`."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "title": call.__name__,
        "properties": dict(_properties(call)),
        "additionalProperties": False,
        "$defs": {"Tensor": _tensor_schema()},
    }


def _properties(call: type[Call]) -> Iterator[tuple[str, dict[str, Any]]]:
    scalars = {int: "integer", bool: "boolean", float: "number", str: "string"}
    for parameter in call.arguments():
        if parameter.is_tensor:
            form: dict[str, Any] = {"$ref": "#/$defs/Tensor"}
        elif parameter.kind is DType:
            form = {"type": "string", "enum": [dtype.torch_name for dtype in DType]}
        elif hasattr(parameter.kind, "json_schema"):
            form = parameter.kind.json_schema()
        else:
            form = {"type": scalars[parameter.kind]}
        if parameter.nullable:
            form = {"anyOf": [form, {"type": "null"}]}
        form["description"] = parameter.summary
        if not parameter.required:
            form["default"] = parameter.default
        yield parameter.name, form


def _tensor_schema() -> dict[str, Any]:
    extents = {
        "type": "array",
        "maxItems": MAX_DIMENSIONS,
        "items": {"type": "integer", "minimum": 0, "maximum": MAX_SIZE},
    }
    values = TypeAdapter(Annotated[Values, Field(discriminator="kind")]).json_schema()
    values.pop("discriminator", None)
    kinds = [values["$defs"][option["$ref"].rpartition("/")[2]] for option in values["oneOf"]]
    return {
        "anyOf": [
            {"type": "string", "description": 'compact form: "int32[16,14]:stride(1,16)"'},
            {
                "type": "object",
                "required": ["shape", "dtype"],
                "additionalProperties": False,
                "properties": {
                    "shape": extents,
                    "dtype": {"type": "string"},
                    "strides": {**extents, "description": "elements; row-major when omitted"},
                    "offset": {
                        "type": "integer",
                        "minimum": 0,
                        "description": "elements from an aligned base",
                    },
                    "device": {"type": "string", "default": "cuda"},
                    "values": {"oneOf": kinds},
                },
            },
        ]
    }
