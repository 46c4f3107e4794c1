"""The server as an ASGI application, assembled from its parts."""

from __future__ import annotations

from fastapi import FastAPI
from fastapi.staticfiles import StaticFiles

from catalogs.ui.shared_options import own_version
from planner.web import pages
from planner.web.api import analysis, catalogs
from planner.web.problems import add_error_handlers
from planner.web.settings import ServerSettings


def create_app(settings: ServerSettings) -> FastAPI:
    """Return the application of a server with these settings."""
    app = FastAPI(title="LLM capacity planner", version=own_version(), docs_url=None, redoc_url=None)
    app.state.settings = settings
    add_error_handlers(app)
    app.include_router(pages.router)
    for router in (catalogs.router, analysis.router):
        app.include_router(router)
    app.mount("/static", StaticFiles(directory=pages.FOLDER / "static"), name="static")
    return app
