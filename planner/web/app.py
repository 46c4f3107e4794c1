"""The server as an ASGI application, assembled from its parts."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from anyio import to_thread
from fastapi import Depends, FastAPI
from fastapi.staticfiles import StaticFiles
from starlette.middleware.gzip import GZipMiddleware

from catalogs.ui.installation import own_version
from planner.web import pages
from planner.web.api import (
    analysis,
    answers,
    catalogs,
    comparisons,
    deployments,
    guess,
    inference_endpoints,
    jobs,
    operations,
    questions,
    results,
    uploads,
)
from planner.web.api.description import describe
from planner.web.api.queries import refuse_unknown_keys
from planner.web.api.state import ServerState, add_job_handler
from planner.web.metrics import Measured, RequestMetrics
from planner.web.problems import add_error_handlers
from planner.web.security import Guard
from planner.web.settings import ServerSettings

#: Responses from this size on are compressed, bytes.
_COMPRESSED_FROM = 1024

#: The modules of the API, whose addresses refuse queries with unknown keys.
PARTS: Final = (
    questions,
    uploads,
    jobs,
    results,
    catalogs,
    analysis,
    guess,
    answers,
    comparisons,
    deployments,
    inference_endpoints,
)


@asynccontextmanager
async def _serving(app: FastAPI) -> AsyncIterator[None]:
    """Run the queue of jobs while the server runs, and load ahead what questions need."""
    server: ServerState = app.state.server
    server.queue.start()
    server.warm_up.start()
    yield
    server.warm_up.cancel()
    await to_thread.run_sync(server.queue.stop)
    server.database.close()


def create_app(settings: ServerSettings) -> FastAPI:
    """Return the application of a server with these settings.

    Raises:
        InputError: The settings cannot be used, or the database does not answer.
    """
    token = settings.read_token()
    app = FastAPI(title="LLM capacity planner", version=own_version(), docs_url=None, redoc_url=None, lifespan=_serving)
    app.state.settings = settings
    app.state.metrics = RequestMetrics()
    app.state.server = ServerState.open(settings)
    add_error_handlers(app)
    add_job_handler(app)
    pages.add_missing_page(app)
    app.add_middleware(GZipMiddleware, minimum_size=_COMPRESSED_FROM, compresslevel=5)
    app.add_middleware(Guard, settings=settings, token=token)
    app.add_middleware(Measured, metrics=app.state.metrics)
    for part in (pages, operations):
        app.include_router(part.router)
    for part in PARTS:
        app.include_router(part.router, dependencies=[Depends(refuse_unknown_keys)])
    describe(app)
    app.mount("/static", StaticFiles(directory=pages.FOLDER / "static"), name="static")
    return app
