"""The settings of one server: its address, its storage, its users and their limits."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Final

from pydantic import Field

from catalogs.errors import InputError
from catalogs.io.input_files import read_text
from catalogs.io.yaml_files import StrictYamlBlock, read_yaml, user_folder, validate_as

DEFAULT_HOST: Final = "127.0.0.1"

#: Port of the server where the settings name none.
DEFAULT_PORT: Final = 8000

#: Scheme of the URL of a SQLite file, before its path.
SQLITE: Final = "sqlite:///"

#: Shortest token in characters; shorter ones can be guessed.
LEAST_TOKEN: Final = 16

Count = Annotated[int, Field(ge=1)]

Positive = Annotated[float, Field(gt=0)]


class ServeFile(StrictYamlBlock):
    """The keys of the file of `--settings`: the names of a server, how it knows its users, and their limits.

    Attributes:
        hosts: Further names under which browsers reach the server, as they stand in the Host header.
        owner_header: Request header in which a proxy names the user; None if all users share their jobs.
        max_queued: Jobs that may wait; further ones are refused with status 429.
        max_jobs_per_owner: Jobs that one user may have waiting or running.
        max_upload_mib: Largest upload, MiB.
        max_uploads_mib: All uploads together, MiB.
        job_memory_mib: Memory that one process of a job may take, MiB.
        job_cpu_s: Processor time that one process of a job may use, seconds.
        job_wall_s: Longest run of a job, seconds.
        keep_days: Days after which finished jobs and uploads that no job uses are deleted.
    """

    hosts: tuple[str, ...] = ()
    owner_header: str | None = None
    max_queued: Count = 32
    max_jobs_per_owner: Count = 16
    max_upload_mib: Count = 50
    max_uploads_mib: Count = 2048
    job_memory_mib: Count = 8192
    job_cpu_s: Count = 3600
    job_wall_s: Count = 7200
    keep_days: Positive = 30.0


DEFAULT_FILE: Final = ServeFile()


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
        file: The keys of the file of `--settings`.
    """

    host: str = DEFAULT_HOST
    port: int = DEFAULT_PORT
    store: str | None = None
    workers: int | None = None
    token_file: Path | None = None
    endpoints_file: Path | None = None
    file: ServeFile = DEFAULT_FILE

    @property
    def n_workers(self) -> int:
        """Return the number of processes that run jobs."""
        from planner.search.workers import usable_cores

        return self.workers or usable_cores()

    @property
    def cores_per_job(self) -> int:
        """Return the processes that one job may use: all cores together serve `n_workers` jobs."""
        from planner.search.workers import usable_cores

        return max(1, usable_cores() // self.n_workers)

    @property
    def folder(self) -> Path:
        """Return the folder of files that belong to jobs: beside the SQLite file, or in the user's data directory."""
        if self.store is not None and self.store.startswith(SQLITE):
            return Path(self.store.removeprefix(SQLITE)).absolute().parent
        return user_folder("web")

    @property
    def store_url(self) -> str:
        """Return the URL of the database."""
        return self.store or f"{SQLITE}{user_folder('web') / 'jobs.sqlite'}"

    @property
    def is_local(self) -> bool:
        """Return whether only this machine reaches the server."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    def resolved(self) -> ServerSettings:
        """Return the settings with an absolute path of the SQLite file, for a server that changes its folder."""
        if self.store is None or not self.store.startswith(SQLITE) or self.store == SQLITE:
            return self
        return replace(self, store=f"{SQLITE}{Path(self.store.removeprefix(SQLITE)).absolute()}")

    def read_token(self) -> str | None:
        """Return the token that clients must send; None if no token is needed.

        Raises:
            InputError: The file cannot be read or its token is too short, or other machines reach a server without one.
        """
        if self.token_file is None:
            if not self.is_local:
                rule = "a server that other machines reach needs a token"
                raise InputError(rule, self.host, DEFAULT_HOST, hint="--token-file FILE with a line of random text")
            return None
        token = read_text(self.token_file, "cannot read the token", 4096).strip()
        if len(token) < LEAST_TOKEN or not token.isascii() or not token.isprintable() or " " in token:
            rule = f"{self.token_file}: a token is one line of at least {LEAST_TOKEN} ASCII characters without spaces"
            raise InputError(rule, f"{len(token)} characters", hint="openssl rand -hex 32 > FILE")
        return token


def read_serve_file(path: Path) -> ServeFile:
    """Return the keys of the file of `--settings`.

    Raises:
        InputError: The file cannot be read or breaks a rule.
    """
    data = read_yaml(path)
    hosts = data.get("hosts")
    if isinstance(hosts, list):
        data = data | {"hosts": tuple(hosts)}
    return validate_as(ServeFile, data, str(path))
