"""Upstream's files whose raise statements are declared here, with their lines in the release."""

from __future__ import annotations

from kernels.upstream import SGLANG, File, Site

RUNTIME = "python/sglang/multimodal_gen/runtime"
LAYERS = f"{RUNTIME}/layers/quantization"

INSPECTION = File(SGLANG, f"{RUNTIME}/utils/quantization_utils.py")
NVFP4_FILE = File(SGLANG, f"{LAYERS}/comfy_nvfp4.py")
FP8_FILE = File(SGLANG, f"{LAYERS}/comfy_fp8.py")
INT8_FILE = File(SGLANG, f"{LAYERS}/comfy_int8.py")
CONVROT_FILE = File(SGLANG, f"{LAYERS}/configs/convrot_int8_config.py")
KITCHEN_FILE = File(SGLANG, f"{LAYERS}/convrot_int8_comfy_kitchen.py")
JIT_FILE = File(SGLANG, f"{LAYERS}/convrot_int8_jit.py")
W4A8_CONFIG = File(SGLANG, f"{LAYERS}/configs/kitchen_w4a8_config.py")
W4A4_CONFIG = File(SGLANG, f"{LAYERS}/configs/kitchen_w4a4_config.py")
W4A8_FILE = File(SGLANG, f"{LAYERS}/kitchen_w4a8.py")
W4A4_FILE = File(SGLANG, f"{LAYERS}/kitchen_w4a4.py")

MODULE = "sglang.multimodal_gen.runtime.utils.quantization_utils"
INSPECT = "inspect_comfy_quant_markers"


def at(line: int, function: str = INSPECT, file: File = INSPECTION) -> tuple[Site, ...]:
    """Where upstream raises; the pinned commit's lines of these files are not known."""
    return (file.at(function, None, line),)
