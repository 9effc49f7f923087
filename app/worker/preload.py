"""Imported once by the fork server, so that a replaced worker starts with torch already loaded.

It imports torch and nothing of ours that would start threads or touch a CUDA device before the fork.
"""

import torch  # noqa: F401
