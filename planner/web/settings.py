"""The settings of one server: its address, its storage, its limits, and whom it serves."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

DEFAULT_HOST: Final = "127.0.0.1"

DEFAULT_PORT: Final = 8000


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """The settings of one server.

    Attributes:
        host: The address on which the server listens.
        port: The port on which the server listens.
        store: SQLAlchemy URL of the database that keeps jobs and their results; None stands for a SQLite file in the
            user's data directory.
        workers: Processes that run jobs; None stands for one per core.
        token_file: File with the token that every client must send; None if no token is needed.
        endpoints_file: File that lists the endpoints to which the server may send an inference task; None for none.
    """

    host: str = DEFAULT_HOST
    port: int = DEFAULT_PORT
    store: str | None = None
    workers: int | None = None
    token_file: Path | None = None
    endpoints_file: Path | None = None
