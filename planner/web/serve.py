"""The command `plan serve`: the planner as a page and an API."""

from __future__ import annotations

import os
import socket
import tempfile
from contextlib import suppress
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
        Path | None, typer.Option(metavar="FILE", help="YAML file of endpoints for inference tasks, by name.")
    ] = None,
    settings: Annotated[
        Path | None, typer.Option(metavar="FILE", help="YAML file of further settings: hosts, users, limits.")
    ] = None,
) -> None:
    """Serve the planner as a page and an API, on this machine unless --host says otherwise.

    Example: plan serve --open
    """
    try:
        import uvicorn

        from planner.web.app import create_app
        from planner.web.listed_endpoints import read_endpoints
    except ModuleNotFoundError as error:
        raise InputError(
            "plan serve needs the packages of the extra web", error.name, hint="pip install '.[web]'"
        ) from None
    from planner.web.settings import DEFAULT_FILE, ServerSettings, read_serve_file

    keys = DEFAULT_FILE if settings is None else read_serve_file(settings)
    files = [None if file is None else file.absolute() for file in (token_file, endpoints)]
    given = ServerSettings(host, port, store, workers, files[0], files[1], keys)
    read_endpoints(given.endpoints_file)  # a job reads them again, but a damaged file ends the start
    app = create_app(given.resolved())
    listening = _listen(host, port)
    shown = f"[{host}]" if ":" in host else host
    address = f"http://{shown}:{listening.getsockname()[1]}/"
    with tempfile.TemporaryDirectory(prefix="plan-serve-") as empty:
        os.chdir(empty)  # a name in a question never leads to a file that happens to be in the current folder
        typer.echo(f"plan serve: {address} (Ctrl-C ends it; running jobs continue at the next start)", err=True)
        if open_:
            import webbrowser

            webbrowser.open(address)
        config = uvicorn.Config(app, log_level="warning", server_header=False, timeout_graceful_shutdown=2)
        with suppress(KeyboardInterrupt):  # the usual end of a server
            uvicorn.Server(config).run([listening])
        os.chdir("/")


def _listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens on an address.

    Raises:
        InputError: The address is not one of this machine, or the port is taken.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        found = socket.socket(family, kind, protocol)
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind(address)
        found.listen(128)
    except OSError as error:
        hint = "choose another --port, or 0 for a free one"
        raise InputError(f"cannot listen ({error.strerror or error})", f"{host}:{port}", hint=hint) from None
    return found
