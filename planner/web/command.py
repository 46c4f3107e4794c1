"""The command `plan serve`: the planner as a page and an API."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from catalogs.errors import InputError


def serve(
    host: Annotated[str, typer.Option(help="Address to listen on; one beyond this machine needs --token-file.")] = (
        "127.0.0.1"
    ),
    port: Annotated[int, typer.Option(metavar="N", min=0, max=65535, help="Port to listen on; 0 takes a free one.")] = (
        8000
    ),
    store: Annotated[
        str | None, typer.Option(metavar="URL", help="Database of jobs: sqlite:///FILE or postgresql://USER@HOST/DB.")
    ] = None,
    workers: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Processes that run jobs (default: one per core).")
    ] = None,
    open_: Annotated[bool, typer.Option("--open", help="Open the page in the browser.")] = False,
    token_file: Annotated[
        Path | None, typer.Option(metavar="F", help="File with the token that every client must send.")
    ] = None,
    endpoints: Annotated[
        Path | None, typer.Option(metavar="FILE", help="YAML list of the endpoints that inference tasks may use.")
    ] = None,
) -> None:
    """Serve the planner as a page and an API, on this machine unless --host says otherwise.

    Example: plan serve --open
    """
    try:
        import uvicorn

        from planner.web.app import create_app
    except ModuleNotFoundError as error:
        raise InputError(
            "plan serve needs the packages of the extra web", error.name, hint="pip install 'llm-capacity-planner[web]'"
        ) from None
    from planner.web.settings import ServerSettings

    settings = ServerSettings(host, port, store, workers, token_file, endpoints)
    app = create_app(settings)
    if open_:
        import webbrowser

        webbrowser.open(f"http://{host}:{port}/")
    uvicorn.run(app, host=host, port=port, log_level="warning")
