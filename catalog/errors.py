"""What is wrong with the catalog's own data: raised when it is loaded, never for a request."""

from __future__ import annotations


class CatalogError(Exception):
    """A record, its prose or its checks contradict each other; the message names the file or the record."""
