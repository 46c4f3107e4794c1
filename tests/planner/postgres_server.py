"""A PostgreSQL server of one test session, where its binaries are installed."""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

DEBIAN = Path("/usr/lib/postgresql")


def binaries() -> Path | None:
    """The folder of initdb and pg_ctl, newest version first."""
    found = shutil.which("initdb")
    places = sorted(DEBIAN.glob("*/bin/initdb"), key=lambda p: int(p.parent.parent.name), reverse=True)
    return Path(found).resolve().parent if found else (places[0].parent if places else None)


def unprivileged() -> str | None:
    """The server refuses root: who runs it then. None: whoever we are."""
    if os.geteuid() != 0:
        return None
    known = {entry.pw_name for entry in pwd.getpwall()}
    return next(name for name in ("postgres", "nobody") if name in known)


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


@dataclass
class Server:
    """Data in a folder of its own, TCP on this machine only."""

    tools: Path
    folder: Path
    port: int
    user: str | None

    @classmethod
    def made(cls, tools: Path) -> Server:
        folder, user = Path(tempfile.mkdtemp(prefix="planner-pg-", dir="/tmp")), unprivileged()
        if user is not None:
            shutil.chown(folder, user)
        server = cls(tools, folder, free_port(), user)
        server._tool("initdb", "-D", str(folder / "data"), "-U", "planner", "-A", "trust", "--no-sync")
        return server

    @property
    def url(self) -> str:
        return f"postgresql://planner@127.0.0.1:{self.port}/postgres"

    def start(self) -> None:
        options = f"-p {self.port} -k {self.folder} -c listen_addresses=127.0.0.1 -c fsync=off"
        log = str(self.folder / "log")
        self._tool("pg_ctl", "start", "-w", "-D", str(self.folder / "data"), "-l", log, "-o", options)

    def stop(self) -> None:
        self._tool("pg_ctl", "stop", "-w", "-m", "immediate", "-D", str(self.folder / "data"))

    def remove(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)

    def _tool(self, name: str, *args: str) -> None:
        command = [str(self.tools / name), *args]
        subprocess.run(command, check=True, user=self.user, cwd=self.folder, stdout=subprocess.DEVNULL, timeout=60)
