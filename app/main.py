"""The application: `uvicorn app.main:create_app --factory`.

A capability is a package of `app` with a `routes` module whose `router` holds its addresses; it is found by
its folder. What it must do at start and stop it says in its router's `lifespan`. Importing this module
builds nothing.
"""

from __future__ import annotations

import pkgutil
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from importlib import import_module, metadata
from importlib.util import find_spec
from urllib.parse import urlsplit

from fastapi import APIRouter, FastAPI

import app as package
from app import operators, settings
from app.access.gate import Gate
from app.access.quotas import Quotas, open_ledger
from app.access.rates import Limiter, Limits
from app.http import openapi, problems, tracing
from app.http.bodies import BodyLimit
from app.http.express import Express
from app.http.headers import AnswerHeaders, HeadAsGet
from app.http.logs import configure_logging
from app.http.metrics import Metrics
from app.http.observe import Observe
from app.http.plain import SafeJSONResponse
from app.http.urls import Prefix
from app.pages import about
from app.settings import Settings, is_loopback


def create_app(chosen: Settings | None = None, *, routers: list[APIRouter] | None = None) -> FastAPI:
    """The service with `chosen` settings (default: environment) and `routers` (default: `capabilities()`)."""
    chosen = chosen or settings.load()
    app = FastAPI(
        title="Faultbook",
        summary=metadata.metadata("faultbook")["Summary"],
        version=metadata.version("faultbook"),
        openapi_url=None,
        servers=[{"url": chosen.base_url or "/"}],
        redirect_slashes=False,
        default_response_class=SafeJSONResponse,
        responses=openapi.ANY_PROBLEM,
        lifespan=_lifespan,
        telemetry={"tracing": False, "logs": False, "operation_spans": False},
    )
    app.state.settings = chosen
    app.state.metrics = metrics = Metrics()
    keys = chosen.keyring()
    app.state.quotas = Quotas(
        lambda: open_ledger(chosen.data, chosen.broker_url),
        named=keys.named,
        longest=chosen.run_timeout,
    )
    app.state.readiness = {}
    problems.install(app)
    openapi.install(app)
    # The last one added is the outermost.
    app.add_middleware(Express)
    if chosen.root_path:
        app.add_middleware(Prefix, root_path=chosen.root_path)
    app.add_middleware(BodyLimit, limit=chosen.max_body_bytes)
    app.add_middleware(
        Gate,
        keys=keys,
        anonymous=chosen.anonymous == "read",
        limiter=_limiter(chosen, metrics),
        most_bytes=int(chosen.max_header_bytes),
        pages=_own_pages(chosen) if is_loopback(chosen.host) else None,
    )
    app.add_middleware(problems.CatchAll)
    app.add_middleware(HeadAsGet)
    app.add_middleware(AnswerHeaders)
    tracer = tracing.configured()
    if tracer is not None:
        app.add_middleware(tracing.Spans, tracer=tracer)
    app.add_middleware(Observe, metrics=metrics)
    for router in (
        operators.router,
        openapi.router,
        about.router,
        *(capabilities() if routers is None else routers),
    ):
        app.include_router(router)
    return app


def _limiter(chosen: Settings, metrics: Metrics) -> Limits | None:
    """Counts for all replicas where there is a broker, which they share."""
    if chosen.rate is None:
        return None
    if not chosen.broker_url:
        return Limiter(chosen.rate)
    from app.cluster.rates import SharedLimiter

    return SharedLimiter(chosen.rate, chosen.broker_url, metrics.limited_alone.inc)


def _own_pages(chosen: Settings) -> frozenset[str]:
    """The hosts that browsers know a service on loopback by."""
    own = {"127.0.0.1", "::1", "localhost", chosen.host.strip("[]").lower()}
    return frozenset(own | {urlsplit(chosen.public_url).hostname or "localhost"})


def capabilities() -> Iterator[APIRouter]:
    """The router of each package of `app` that has one, in alphabetical order."""
    for found in sorted(pkgutil.iter_modules(package.__path__), key=lambda module: module.name):
        name = f"{package.__name__}.{found.name}.routes"
        if found.ispkg and find_spec(name) is not None:
            yield import_module(name).router


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    configure_logging(app.state.settings.log_format)
    yield
