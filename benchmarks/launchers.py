"""Upstream's compiled launchers, many built at once: its own builds take a minute each and read the headers
each time.

    python -m benchmarks.launchers FOLDER --include UPSTREAM/sglang/kernels/jit

builds the launchers that `FOLDER/wanted.jsonl` lists, in batches, from upstream's sources with upstream's
flags, and lists them in `FOLDER/index.json`. In upstream's process `prepare` takes upstream's calls of
`load_jit`: those built are loaded, any other one is added to the wanted. Only the standard library is
imported, and tvm-ffi there.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

A_BATCH = 12
FLAGS = ("-std=c++20", "-O3", "--expt-relaxed-constexpr", "-gencode=arch=compute_90a,code=sm_90a")
HEADERS = ("container/tensor.h", "dtype.h", "error.h", "extra/c_env_api.h", "function.h")


class Loaded:
    """A module of upstream's, of functions that lie in a batch."""

    def __init__(self, functions: dict[str, Any]) -> None:
        self.__dict__.update(functions)


def named(function: Any, symbol: str, export: str) -> Any:
    """The function, its messages naming it as upstream exports it."""

    def call(*args: Any) -> Any:
        try:
            return function(*args)
        except TypeError as error:
            raise TypeError(str(error).replace(f"`{symbol}(", f"`{export}(")) from None

    return call


def prepare(folder: str) -> None:
    """Have upstream load its launchers from this folder; ImportError for one that was not built."""
    import sglang.kernels.jit.utils as utils  # type: ignore[import-not-found]
    import tvm_ffi  # type: ignore[import-not-found]

    _register_for_gpus()
    index: dict[str, list[str]] = {}
    listed = Path(folder, "index.json")
    if listed.exists():
        index = json.loads(listed.read_text(encoding="utf-8"))
    modules: dict[str, Any] = {}
    asked: set[str] = set()

    def load_jit(*_: str, cuda_files: list[str], cuda_wrappers: list[tuple[str, str]], **options: Any) -> Any:
        missing = [kernel for _, kernel in cuda_wrappers if kernel not in index]
        if missing:
            if missing[0] not in asked:
                asked.add(missing[0])
                wanted = {
                    "file": cuda_files[0],
                    "kernels": [kernel for _, kernel in cuda_wrappers],
                    "flags": options.get("extra_cuda_cflags") or [],
                }
                with Path(folder, "wanted.jsonl").open("a", encoding="utf-8") as file:
                    file.write(json.dumps(wanted) + "\n")
            raise ImportError(f"{missing[0]} was not built")
        functions = {}
        for export, kernel in cuda_wrappers:
            library, symbol = index[kernel]
            if library not in modules:
                modules[library] = tvm_ffi.load_module(str(Path(folder, library)))
            functions[export] = named(getattr(modules[library], symbol), symbol, export)
        return Loaded(functions)

    utils.load_jit = load_jit


def _register_for_gpus() -> None:
    """Have custom operators registered for CUDA alone, as sglang itself does, where a stand-in does not."""
    import torch
    from sglang.srt.utils import common  # type: ignore[import-not-found]

    library = getattr(common, "_library", None)
    if library is None:
        return

    def register(op_name: str, op_func: Any, mutates_args: Any = (), fake_impl: Any = None, **_: Any) -> None:
        schema = torch.library.infer_schema(op_func, mutates_args=list(mutates_args or ()))
        library.define(op_name + schema)
        library.impl(op_name, op_func, dispatch_key="CUDA")
        if fake_impl is not None:
            library._register_fake(op_name, fake_impl)

    common.direct_register_custom_op = register


def symbol_of(kernel: str) -> str:
    """A C++ expression's exported name."""
    return "k" + hashlib.sha256(kernel.encode()).hexdigest()[:16]


def build(folder: Path, include: Path, python: Path) -> int:
    """Build what is wanted and was not built yet; exit status 1 where a batch failed."""
    listed = folder / "index.json"
    index: dict[str, list[str]] = json.loads(listed.read_text(encoding="utf-8")) if listed.exists() else {}
    groups: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    for line in (folder / "wanted.jsonl").read_text(encoding="utf-8").splitlines():
        wanted = json.loads(line)
        kernels = groups.setdefault((wanted["file"], tuple(wanted["flags"])), [])
        kernels += [each for each in wanted["kernels"] if each not in index and each not in kernels]
    failed = 0
    for (source, flags), kernels in groups.items():
        for start in range(0, len(kernels), A_BATCH):
            batch = kernels[start : start + A_BATCH]
            name = "b" + hashlib.sha256("".join(batch).encode()).hexdigest()[:12]
            if _compile(folder / name, include, python, source, flags, batch):
                index |= {kernel: [name + ".so", symbol_of(kernel)] for kernel in batch}
                listed.write_text(json.dumps(index, indent=1), encoding="utf-8")
            else:
                failed += 1
            print(f"{name}: {len(batch)} launchers of {source}", flush=True)
    return 1 if failed else 0


def _compile(
    path: Path, include: Path, python: Path, source: str, flags: tuple[str, ...], batch: list[str]
) -> bool:
    exports = [f"TVM_FFI_DLL_EXPORT_TYPED_FUNC({symbol_of(kernel)}, ({kernel}));" for kernel in batch]
    includes = [f"#include <tvm/ffi/{header}>" for header in HEADERS]
    lines = [
        *includes,
        f'#include "{include.resolve()}/csrc/{source}"',
        "namespace sglang {",
        *exports,
        "}",
        "",
    ]
    path.with_suffix(".cu").write_text("\n".join(lines), encoding="utf-8")
    ffi = python / "tvm_ffi"
    command = [
        *("nvcc", *FLAGS, "-DSGL_CUDA_ARCH=900", *flags, "-Xcompiler", "-fPIC", "-shared"),
        *(str(path.with_suffix(".cu")), "-o", str(path.with_suffix(".so"))),
        *(f"-I{include}/include", f"-I{include}/csrc", f"-I{ffi}/include", f"-L{ffi}/lib", "-ltvm_ffi"),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    path.with_suffix(".log").write_text(done.stdout + done.stderr, encoding="utf-8")
    return done.returncode == 0


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--include", type=Path, required=True, help="upstream's sglang/kernels/jit")
    parser.add_argument("--packages", type=Path, default=Path(sysconfig.get_paths()["purelib"]))
    args = parser.parse_args()
    return build(args.folder, args.include, args.packages)


if __name__ == "__main__":
    sys.exit(main())
