"""Print what pyproject.toml requires, one a line, so that an image can install it before the sources.

`python requirements/list.py` prints the service's requirements, each argument adds that extra's.
"""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path


def main(extras: list[str]) -> None:
    project = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text("utf-8"))["project"]
    wanted = [project["dependencies"], *(project["optional-dependencies"][extra] for extra in extras)]
    sys.stdout.writelines(f"{requirement}\n" for group in wanted for requirement in group)


if __name__ == "__main__":
    main(sys.argv[1:])
