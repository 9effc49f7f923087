"""The pages' addresses, gathered from their modules."""

from __future__ import annotations

from fastapi import APIRouter

from app.pages import listing, operations, record, search, sitemap

router = APIRouter(include_in_schema=False)
for part in (search, record, listing, operations, sitemap):
    router.include_router(part.router)
