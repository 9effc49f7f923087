"""The commit this project was built from, which records of our own checks refer to."""

from __future__ import annotations

import os
import re
from functools import cache
from pathlib import Path
from typing import Final

VARIABLE: Final = "FAULTBOOK_COMMIT"
"""Set where the image or package was built without its history."""
UNKNOWN: Final = "0" * 40
ROOT: Final = Path(__file__).parent.parent

_SHA: Final = re.compile(r"[0-9a-f]{40}")


@cache
def built_from() -> str:
    """From VARIABLE, else the checkout's HEAD, else zeros."""
    for candidate in (os.environ.get(VARIABLE, "").strip().lower(), head(ROOT / ".git")):
        if _SHA.fullmatch(candidate):
            return candidate
    return UNKNOWN


def head(git: Path) -> str:
    """The commit that HEAD names, read from the files of a repository; empty where there is none."""
    try:
        if git.is_file():  # a linked worktree: the file names its folder
            git = (git.parent / git.read_text("utf-8").removeprefix("gitdir:").strip()).resolve()
        name = (git / "HEAD").read_text("utf-8").strip()
        if not name.startswith("ref:"):
            return name
        name = name.removeprefix("ref:").strip()
        shared = git / "commondir"
        folder = (git / shared.read_text("utf-8").strip()).resolve() if shared.is_file() else git
        for place in (git, folder):
            if (place / name).is_file():
                return (place / name).read_text("utf-8").strip()
        packed = (folder / "packed-refs").read_text("utf-8").splitlines()
    except OSError:
        return ""
    return next((line.partition(" ")[0] for line in packed if line.endswith(f" {name}")), "")
