"""Tensors that state a device this host need not have, and that hold nothing: upstream's checks run on them.

A host without a GPU can thereby ask upstream's own code, Python and compiled launcher, what it refuses.
Each wraps one on torch's `meta` device: operations run there, so shapes, strides and error texts are torch's
own, and results state the device of their inputs. A compiled launcher gets a descriptor with a made-up
address that is aligned as described. Nothing can be launched on them: the process must see no GPU.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from .tensors import ALIGNMENT, dtype_of

SPACE = 1 << 44
"""Made-up addresses between two storages, bytes."""

MULTIPROCESSORS = 132
"""Of a stated GPU: an H100's or H200's."""

CODES = {"int": 0, "uint": 1, "float": 2, "bfloat": 4, "complex": 5, "bool": 6}
"""DLPack's type codes."""

FLOAT8 = {
    "float8_e4m3fn": 10,
    "float8_e4m3fnuz": 11,
    "float8_e5m2": 12,
    "float8_e5m2fnuz": 13,
    "float8_e8m0fnu": 14,
}
DEVICES = {"cpu": 1, "cuda": 2}

_addresses: dict[int, int] = {}
_functions: dict[tuple[str, str], Callable[..., Any]] = {}


class Stated(torch.Tensor):
    """A tensor of the `meta` device that says it is elsewhere."""

    held: torch.Tensor

    @staticmethod
    def __new__(cls, held: torch.Tensor, device: torch.device) -> Stated:
        made: Stated = torch.Tensor._make_wrapper_subclass(
            cls,
            held.size(),
            strides=held.stride(),
            storage_offset=held.storage_offset(),
            dtype=held.dtype,
            device=device,
        )
        made.held = held
        return made

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        return dispatch(func, args, kwargs or {})

    # Indexing and copying set a guard of the device, which a build without CUDA has not.
    def __getitem__(self, index: Any) -> Stated:
        return Stated(self.held[index], self.device)

    def copy_(self, src: torch.Tensor, non_blocking: bool = False) -> Stated:
        return self

    def data_ptr(self) -> int:
        """Its made-up address; 0 for one without elements, as torch has it."""
        return address(self)


class Stating(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Within it, new tensors are stated ones too."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return dispatch(func, args, kwargs or {})


def stated(name: str, spec: dict[str, Any]) -> Stated:
    """The described tensor, without memory."""
    dtype = dtype_of(spec["dtype"])
    raw = torch.empty(spec["bytes"] // dtype.itemsize, dtype=dtype, device="meta")
    held = raw.as_strided(spec["shape"], spec["strides"], spec["offset"])
    device = torch.device("cuda:0" if spec["device"] == "cuda" else spec["device"])
    return Stated(held, device)


def dispatch(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Run an operator on the wrapped tensors; one of a library of its own by the function it registered."""
    tensors = [each for each in _tensors((args, kwargs)) if isinstance(each, Stated)]
    if func.namespace not in ("aten", "prim", "prims"):
        return _registered(func, tensors)(*args, **kwargs)
    device = kwargs.get("device")
    place = torch.device(device) if device is not None else next((t.device for t in tensors), None)
    if place is None or place.type == "meta":
        return func(*args, **kwargs)
    if place.type == "cuda" and place.index is None:
        place = torch.device("cuda:0")
    if device is not None:
        kwargs = {**kwargs, "device": torch.device("meta")}
    bare = tree_map(lambda each: each.held if isinstance(each, Stated) else each, (args, kwargs))
    result = func(*bare[0], **bare[1])
    by_held = {id(tensor.held): tensor for tensor in tensors}

    def wrapped(each: Any) -> Any:
        if not isinstance(each, torch.Tensor):
            return each
        return by_held.get(id(each)) or Stated(each, place)

    return tree_map(wrapped, result)


def _registered(func: Any, tensors: Sequence[Stated]) -> Callable[..., Any]:
    """The function of an operator of a library's own for these tensors; without one, what torch says."""
    name = func.name().partition(".")[0]
    kinds = {tensor.device.type for tensor in tensors}
    keys = ("CUDA" if "cuda" in kinds or not kinds else "CPU", "CompositeExplicitAutograd")
    found = next((_functions[name, key] for key in keys if (name, key) in _functions), None)

    def run(*args: Any, **kwargs: Any) -> Any:
        if found is not None:
            with Stating():  # type: ignore[no-untyped-call]
                return found(*args, **kwargs)
        on_cpu = tree_map(lambda each: torch.empty(0) if isinstance(each, Stated) else each, (args, kwargs))
        return func(*on_cpu[0], **on_cpu[1])

    return run


def allow_devices() -> None:
    """Let tensors name GPUs of a host that has none: torch starts no driver for them."""
    torch.cuda._lazy_init = lambda: None
    torch._C._ensureCUDADeviceGuardSet()
    make = torch.tensor

    def tensor(data: Any, *, device: Any = None, **options: Any) -> torch.Tensor:
        made = make(data, **options)
        if device is None:
            return made
        return Stated(torch.empty_like(made, device="meta"), torch.device(device))

    torch.tensor = tensor  # type: ignore[assignment]


def state_gpu(capability: Sequence[int]) -> None:
    """Have torch tell of a GPU of this compute capability where it is asked for the current one."""
    major, minor = capability
    properties: Any = SimpleNamespace(
        name=f"a stated GPU of compute capability {major}.{minor}",
        major=major,
        minor=minor,
        multi_processor_count=MULTIPROCESSORS,
        total_memory=80 << 30,
    )
    torch.cuda.current_device = lambda: 0
    torch.cuda.get_device_capability = lambda device=None: (major, minor)
    torch.cuda.get_device_properties = lambda device=None: properties


def watch_libraries() -> None:
    """Note the functions that libraries register from now on, for the devices that tensors state."""
    register: Any = torch.library.Library.impl

    def impl(self: Any, op_name: Any, fn: Any, dispatch_key: str = "", **options: Any) -> Any:
        name = op_name if isinstance(op_name, str) else op_name.name()
        name = name.partition(".")[0]
        if "::" not in name:
            name = f"{self.ns}::{name}"
        _functions[name, dispatch_key or self.dispatch_key] = fn
        return register(self, op_name, fn, dispatch_key, **options)

    torch.library.Library.impl = impl  # type: ignore[method-assign]


def _tensors(items: Any) -> list[Any]:
    found: list[Any] = []
    tree_map(found.append, items)
    return found


def address(tensor: Stated) -> int:
    """A made-up address: storages far from each other, views at their offsets."""
    if tensor.numel() == 0:
        return 0
    storage = tensor.held.untyped_storage()._cdata
    base = _addresses.setdefault(storage, SPACE * (len(_addresses) + 1))
    assert base % ALIGNMENT == 0
    return int(base + tensor.held.storage_offset() * tensor.held.element_size())


def forget() -> None:
    """Forget the addresses of a call's tensors."""
    _addresses.clear()


class _Device(ctypes.Structure):
    _fields_ = [("kind", ctypes.c_int32), ("index", ctypes.c_int32)]


class _Type(ctypes.Structure):
    _fields_ = [("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16)]


class _Tensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device", _Device),
        ("ndim", ctypes.c_int32),
        ("dtype", _Type),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


class _Managed(ctypes.Structure):
    _fields_ = [("tensor", _Tensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p)]


class Descriptor:
    """A stated tensor as DLPack has it; valid while this object lives."""

    def __init__(self, tensor: Stated) -> None:
        shape, strides = tuple(tensor.shape), tensor.stride()
        count = len(shape)
        self._arrays = (ctypes.c_int64 * count)(*shape), (ctypes.c_int64 * count)(*strides)
        name = str(tensor.dtype)[6:]
        kind = name.rstrip("0123456789")
        code = FLOAT8.get(name, CODES.get(kind, 0))
        device = _Device(DEVICES.get(tensor.device.type, 1), tensor.device.index or 0)
        described = _Tensor(
            address(tensor),
            device,
            count,
            _Type(code, tensor.element_size() * 8, 1),
            ctypes.cast(self._arrays[0], ctypes.POINTER(ctypes.c_int64)),
            ctypes.cast(self._arrays[1], ctypes.POINTER(ctypes.c_int64)),
            0,
        )
        self._managed = _Managed(described, None, None)

    def __dlpack__(self, **_: Any) -> Any:
        make = ctypes.pythonapi.PyCapsule_New
        make.restype, make.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
        return make(ctypes.addressof(self._managed), b"dltensor", None)

    def __dlpack_device__(self) -> tuple[int, int]:
        device = self._managed.tensor.device
        return device.kind, device.index


class _Module:
    """A compiled module whose functions take stated tensors."""

    def __init__(self, module: Any) -> None:
        self._module = module

    def __getattr__(self, name: str) -> Any:
        function = getattr(self._module, name)

        def call(*args: Any) -> Any:
            tvm_ffi = sys.modules["tvm_ffi"]
            kept = [Descriptor(each) if isinstance(each, Stated) else None for each in args]
            passed = [
                each if descriptor is None else tvm_ffi.from_dlpack(descriptor)
                for each, descriptor in zip(args, kept)  # noqa: B905 (3.9)
            ]
            return function(*passed)

        return call


def open_launchers() -> None:
    """Have compiled modules of tvm-ffi, loaded from now on, take stated tensors."""
    try:
        import tvm_ffi  # type: ignore[import-not-found]
    except ImportError:
        return
    load = tvm_ffi.load_module
    tvm_ffi.load_module = lambda *args, **kwargs: _Module(load(*args, **kwargs))
