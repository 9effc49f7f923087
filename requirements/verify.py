"""Refuse an environment whose torch cannot use this host's GPU, and say when a smaller torch would do."""

from __future__ import annotations

import shutil
import subprocess
import sys

import torch


def has_nvidia_gpu() -> bool:
    tool = shutil.which("nvidia-smi")
    return tool is not None and subprocess.run([tool, "-L"], capture_output=True, check=False).returncode == 0


def main() -> None:
    gpu, cuda = has_nvidia_gpu(), torch.version.cuda
    if gpu and cuda is None:
        sys.exit(
            f"This host has an NVIDIA GPU, but torch {torch.__version__} is built without CUDA: "
            "run `make distclean setup TORCH_INDEX=<an index of torch's CUDA builds>`."
        )
    if not gpu and cuda is not None:
        sys.stderr.write(
            f"Note: torch {torch.__version__} brought CUDA {cuda} to a host without an NVIDIA GPU. It works; "
            "`make distclean setup TORCH_INDEX=<the index of torch's CPU builds>` is several GB smaller.\n"
        )


if __name__ == "__main__":
    main()
