"""Imported once by the fork server of a host without a GPU: what a CPU worker needs, so that the next one
starts with it.
"""

from app.worker import process

process.preload_cpu()
