"""What upstream refuses of a Comfy quantized file, in its order: inspection, choice of a method, building of
layers.
"""

from __future__ import annotations

from operator import attrgetter

from kernels.checking import Each
from kernels.checkpoint import Checkpoint
from kernels.comfy_checkpoint.beyond_checks import (
    BEYOND_LAYER_CHECKS,
    ActivationDoesNotFit,
    NotComfy,
    PackedTensorsOverlooked,
)
from kernels.comfy_checkpoint.build_checks import BUILD_CHECKS
from kernels.comfy_checkpoint.contents import fill
from kernels.comfy_checkpoint.file_checks import FILE_CHECKS
from kernels.comfy_checkpoint.handler_checks import FormatsUnsupported, W4a4Capability, W4a8Capability
from kernels.comfy_checkpoint.header_checks import MARKER_TENSOR_CHECKS, MarkersConflict
from kernels.comfy_checkpoint.int8_checks import INT8_CHECKS, MarkersCollide
from kernels.comfy_checkpoint.layer_check import LayerCheck, of_formats
from kernels.comfy_checkpoint.layers import Declaration, Entry, Layer, MarkerTensor, tensors_of
from kernels.comfy_checkpoint.markers import NVFP4
from kernels.comfy_checkpoint.metadata_checks import DECLARATION_CHECKS, MetadataEntryNotObject
from kernels.comfy_checkpoint.method_checks import CONVROT_CHECKS, METHOD_CHECKS, BackendUnknown
from kernels.comfy_checkpoint.nvfp4_checks import NVFP4_CHECKS, TensorsMissing
from kernels.comfy_checkpoint.shard_checks import SHARD_CHECKS
from kernels.comfy_checkpoint.signature import FUNCTION, VALID, ComfyCall, fit
from kernels.comfy_checkpoint.sites import INSPECTION, MODULE
from kernels.comfy_checkpoint.unmarked_checks import MarkersMissing, Mxfp8Incompatible
from kernels.comfy_checkpoint.use_checks import APPLIED, METHOD_USES
from kernels.comfy_checkpoint.value_checks import VALUE_CHECKS
from kernels.comfy_checkpoint.w4a4_checks import W4A4_CHECKS
from kernels.comfy_checkpoint.w4a8_checks import W4A8_CHECKS
from kernels.registry import Operation

DECLARED = DECLARATION_CHECKS
"""Without which the layers are not known."""

CHECKS_OF_PART = {
    Declaration: DECLARATION_CHECKS,
    Entry: (MetadataEntryNotObject, MarkersConflict),
    MarkerTensor: MARKER_TENSOR_CHECKS,
}
"""Checks of whatever says how layers are quantized; all of one file's come before the next file's."""

LAYER_CHECKS = (
    TensorsMissing,
    *W4A8_CHECKS,
    *W4A4_CHECKS,
    *NVFP4_CHECKS,
    *INT8_CHECKS,
)

layers = attrgetter("layers")


def _each_of_format(checks: tuple[type[LayerCheck], ...]) -> Each:
    """Checks of the layers of a file whose formats have a method, each of its own formats."""
    premises = (*DECLARED, FormatsUnsupported)
    return Each(layers, checks, premises=premises, select=of_formats(*checks))


STAGES = (
    Each(
        attrgetter("parts"),
        (*DECLARATION_CHECKS, MetadataEntryNotObject, *MARKER_TENSOR_CHECKS),
        select=lambda part: CHECKS_OF_PART[type(part)],
        blocks=True,
    ),
    Each(attrgetter("mxfp8_layers"), (Mxfp8Incompatible,)),
    MarkersMissing,
    Each(layers, LAYER_CHECKS, premises=DECLARED, select=of_formats(*LAYER_CHECKS)),
    Each(layers, (MarkersCollide,), premises=DECLARED),
    FormatsUnsupported,
    W4a8Capability,
    W4a4Capability,
    BackendUnknown,
    _each_of_format(CONVROT_CHECKS),
    _each_of_format(METHOD_CHECKS),
    _each_of_format((*METHOD_USES, *BUILD_CHECKS, *SHARD_CHECKS, *APPLIED)),
    NotComfy,
    PackedTensorsOverlooked,
    *FILE_CHECKS,
    _each_of_format((*BEYOND_LAYER_CHECKS, *VALUE_CHECKS)),
    ActivationDoesNotFit,
)


def _claims(checkpoint: Checkpoint) -> bool:
    """Whether anything in the file is a marker, or a weight packed with block scales and a scalar; other
    weights that look quantized may be another format's.
    """
    call = ComfyCall(checkpoint)
    marked = call.declarations or call.marker_tensors or call.is_mxfp8
    return bool(marked) or any(is_packed(tensors_of(call, prefix)) for prefix in call.quantized)


def is_packed(layer: Layer) -> bool:
    """Whether the tensors are NVFP4's, of which nothing can be loaded as it stands."""
    scale = layer.tensor("weight_scale_2")
    return layer.inferred == {"format": NVFP4} and scale is not None and scale.numel == 1


OPERATIONS = (
    Operation(
        name="comfy_checkpoint",
        title="Comfy quantized checkpoint",
        summary="Inspect a safetensors file of NVFP4, FP8, INT8 or 4-bit layers by its header; run one",
        call=ComfyCall,
        stages=STAGES,
        valid=VALID,
        fit=fit,
        fill=fill,
        outputs=(),
        source=INSPECTION,
        module=MODULE,
        function=FUNCTION,
        claims=_claims,
    ),
)
