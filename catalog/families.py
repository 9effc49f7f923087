"""Families of errors: what a record's `backgroundTag` may say."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Family:
    """Errors with one kind of cause; `title` and one line on what they have in common."""

    title: str
    summary: str


FAMILIES: Final = {
    "tensor-dtype-mismatch": Family(
        "Element types",
        "A tensor's element type is not one the kernel computes with, or contradicts another.",
    ),
    "tensor-shape-mismatch": Family(
        "Shapes", "Sizes or the number of dimensions do not fit each other or the kernel's layout."
    ),
    "tensor-layout": Family(
        "Strides",
        "The elements are in the right type and shape, but not where the kernel expects them in memory.",
    ),
    "memory-alignment": Family(
        "Alignment", "An address or a stride is not a multiple of the bytes that one vector access moves."
    ),
    "missing-argument": Family(
        "Missing arguments", "An argument or a buffer that others depend on was not passed."
    ),
    "conflicting-arguments": Family(
        "Conflicting arguments", "Each argument is fine alone; together they contradict."
    ),
    "unsupported-value": Family(
        "Unsupported values", "A plain argument is outside the values that are compiled."
    ),
    "divisibility": Family("Divisibility", "A size is not a multiple of a group, page or tile size."),
    "device-placement": Family(
        "Devices", "Tensors are on the host, or on different devices, where one GPU is needed."
    ),
    "scale-format": Family(
        "Scale formats", "Quantisation scales are stored in a form other than the one announced."
    ),
    "checkpoint-metadata": Family(
        "Checkpoint metadata", "What a checkpoint's header says of itself cannot be used."
    ),
    "checkpoint-tensors": Family(
        "Checkpoint tensors", "Tensors are missing from a checkpoint, or not as described."
    ),
    "checkpoint-format": Family("Checkpoint formats", "The file is not of the format that its reader takes."),
    "name-mapping": Family(
        "Name mapping", "Renaming a checkpoint's layers to the model's loses or merges some."
    ),
    "argument-type": Family(
        "Argument types", "A Python value of the wrong type, such as a float for a count."
    ),
    "compiler-limit": Family(
        "Compiler limits", "The combination asked for does not compile for this kernel or GPU."
    ),
    "index-range": Family("Index ranges", "Indices, counts or offsets point outside what they index."),
    "buffer-overlap": Family(
        "Overlapping buffers", "Two places that are written, or read while written, share memory."
    ),
}
