"""Public repositories of well-known packages, and where in them the files lie that are installed."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from packaging.utils import canonicalize_name

from catalog.scan.source import printable


@dataclass(frozen=True, slots=True)
class Upstream:
    """A package's repository. `moved`: (beginning of an installed path, what it is in the repository).

    `tags` is the name of a release's tag, with `{}` for the version; empty where it is not known.
    """

    repo: str
    moved: tuple[tuple[str, str], ...] = ()
    tags: str = ""
    description: str = ""

    def path(self, installed: str) -> str:
        """The path in the repository of an installed file."""
        for before, after in self.moved:
            if installed.startswith(before):
                return after + installed.removeprefix(before)
        return installed

    def link(self, version: str, path: str, first: int, last: int) -> str | None:
        """The lines on the public repository; None for a version that has no tag."""
        if not self.tags or re.fullmatch(r"\d+(?:\.\d+)+(?:\.post\d+|rc\d+)?", version) is None:
            return None
        return f"https://github.com/{self.repo}/blob/{self.tags.format(version)}/{path}#L{first}-L{last}"


UPSTREAM: Final = {
    "sglang": Upstream(
        "sgl-project/sglang",
        (("sglang/", "python/sglang/"),),
        "v{}",
        "Serving engine for large language and diffusion models",
    ),
    "sgl-kernel": Upstream("sgl-project/sglang", (("sgl_kernel/", "sgl-kernel/python/sgl_kernel/"),)),
    "vllm": Upstream(
        "vllm-project/vllm", (), "v{}", "Inference and serving engine for large language models"
    ),
    "torch": Upstream(
        "pytorch/pytorch",
        (
            ("torch/include/torch/", "torch/"),
            ("torch/include/ATen/", "aten/src/ATen/"),
            ("torch/include/c10/", "c10/"),
            ("torch/include/", "third_party/"),
            ("torchgen/packaged/", "aten/src/"),
            ("functorch/", "functorch/"),
        ),
        "v{}",
        "Tensors and neural networks",
    ),
    "triton": Upstream(
        "triton-lang/triton",
        (
            ("triton/backends/nvidia/", "third_party/nvidia/backend/"),
            ("triton/backends/amd/", "third_party/amd/backend/"),
            ("triton/profiler/", "third_party/proton/proton/"),
            ("triton/", "python/triton/"),
        ),
        "v{}",
        "Language and compiler for GPU kernels",
    ),
    "flashinfer-python": Upstream(
        "flashinfer-ai/flashinfer", (("flashinfer/data/", ""),), "v{}", "Kernels for serving language models"
    ),
    "transformers": Upstream(
        "huggingface/transformers", (("transformers/", "src/transformers/"),), "v{}", "Models and tokenizers"
    ),
    "safetensors": Upstream(
        "huggingface/safetensors", (("safetensors/", "bindings/python/py_src/safetensors/"),), "v{}"
    ),
    "accelerate": Upstream("huggingface/accelerate", (("accelerate/", "src/accelerate/"),), "v{}"),
    "diffusers": Upstream("huggingface/diffusers", (("diffusers/", "src/diffusers/"),), "v{}"),
    "huggingface-hub": Upstream(
        "huggingface/huggingface_hub", (("huggingface_hub/", "src/huggingface_hub/"),), "v{}"
    ),
    "optimum-quanto": Upstream("huggingface/optimum-quanto"),
    "flash-attn": Upstream("Dao-AILab/flash-attention"),
    "xgrammar": Upstream("mlc-ai/xgrammar", (("xgrammar/", "python/xgrammar/"),), "v{}"),
    "apache-tvm-ffi": Upstream("apache/tvm-ffi", (("tvm_ffi/", "python/tvm_ffi/"),)),
    "ray": Upstream("ray-project/ray", (("ray/", "python/ray/"),)),
}

_CALLED: Final = {
    "flashinfer": "flashinfer-python",
    "optimum": "optimum-quanto",
    "tvm_ffi": "apache-tvm-ffi",
}
"""Importable names of the packages above that are installed under another."""

VERSION: Final = re.compile(r"[\w.!+-]{1,100}", re.ASCII)
"""What a version is written with."""

_GITHUB: Final = re.compile(
    r"https?://github\.com/([\w.-]{1,100}/[\w.-]{1,100}?)(?:\.git)?/?(?:$|[#?/])", re.ASCII
)
_REPO: Final = re.compile(r"[\w.-]{1,100}/[\w.-]{1,100}", re.ASCII)


def normal(name: str) -> str:
    """A distribution's name as indexes compare it."""
    return str(canonicalize_name(name.strip()))


def distribution_of(module: str) -> str:
    """The name that a package is installed under, of the name that it is imported by."""
    return _CALLED.get(module) or normal(module)


def pinned(text: str) -> tuple[str, str]:
    """Name and version of `NAME==VERSION`, as snapshots have them; ValueError for anything else."""
    name, equals, version = (part.strip() for part in text.partition("=="))
    if not equals or not re.fullmatch(r"[\w.-]{1,100}", name, re.ASCII) or not VERSION.fullmatch(version):
        raise ValueError(f"{printable(text)[:80]!r} is not NAME==VERSION")
    return normal(name), version


def upstream_of(name: str, addresses: Iterable[str] = ()) -> Upstream:
    """The repository of a package: known, else the first that its metadata names, else its own name."""
    known = UPSTREAM.get(normal(name))
    if known is not None:
        return known
    for address in addresses:
        found = _GITHUB.search(address)
        if found is not None:
            return Upstream(found[1])
    return Upstream(normal(name))


def is_known(upstream: Upstream) -> bool:
    """Whether the layout of a repository is known."""
    return upstream in UPSTREAM.values()


def fork_of(repo: str) -> Upstream:
    """A repository named by hand; installed paths are those that the package of that name has in it.

    ValueError for what is not OWNER/NAME.
    """
    if _REPO.fullmatch(repo) is None:
        raise ValueError(f"{printable(repo)[:80]!r} is not OWNER/REPO")
    known = next((known for known in UPSTREAM.values() if known.repo == repo), None)
    return known or Upstream(repo)
