"""Adds an operation that ends its process in every way: Python runs this at start where the folder is on
PYTHONPATH, as in the services that tests start.
"""

from __future__ import annotations

from pathlib import Path

import kernels

kernels.__path__.append(str(Path(__file__).parent / "kernels"))
