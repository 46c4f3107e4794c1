"""A Ray cluster that a search runs on: joined where it is, or started on this machine. This process keeps the study and
decides; see `planner.ray_crew` for who assesses.
"""

from __future__ import annotations

import logging
import os
import re
import signal
import socket
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from catalogs.errors import InputError
from planner.assess import Assess
from planner.ray_crew import INSTALL, RayCrew

LOCAL: Final = "ray://local"
AUTO: Final = "auto"
_CONNECT_S: Final = 5.0


def check_address(text: str) -> tuple[str, int] | None:
    """Host and port of ray://HOST:PORT, None of the other two ways to name a cluster. Raises InputError."""
    if text in (AUTO, LOCAL):
        return None
    found = re.fullmatch(r"ray://(\[[0-9a-fA-F:.]+\]|[^:/\s]+):(\d{1,5})", text)
    if found is None or not 0 < int(found[2]) < 65536:
        raise InputError(f"a cluster is ray://HOST:PORT, {LOCAL} or {AUTO}", text, LOCAL)
    return found[1].strip("[]"), int(found[2])


@contextmanager
def join_cluster(address: str) -> Iterator[Cluster]:
    """Connected to a cluster, or with one of this machine's own started, until the block ends.

    Raises InputError in one line: Ray is not installed, the address is none, nobody answers there.
    """
    server = check_address(address)
    if server is not None and _has_token():  # Ray itself looks for one only where it starts or joins without a client
        os.environ.setdefault("RAY_AUTH_MODE", "token")
    try:
        import ray
    except ModuleNotFoundError:
        raise InputError("a search on a cluster needs Ray, which is not installed", address, INSTALL) from None
    if server is not None:
        _need_server(address, *server)
    handlers = _handlers()
    _connect(ray, address)
    for sign, handler in handlers.items():  # Ray's own ends this process without a word
        signal.signal(sign, handler)
    try:
        yield Cluster(ray)
    finally:
        ray.shutdown()


def _need_server(address: str, host: str, port: int) -> None:
    try:
        socket.create_connection((host, port), _CONNECT_S).close()
    except OSError as error:
        why = error.strerror or str(error)
        raise InputError(f"nobody answers at this cluster's address ({why})", address, LOCAL) from None
    if find_spec("grpc") is None:
        raise InputError("a cluster elsewhere needs Ray's client, which is not installed", address, INSTALL)


def _has_token() -> bool:
    """Of clusters that ask for one, as Ray keeps it."""
    kept = Path(os.environ.get("RAY_AUTH_TOKEN_PATH") or Path.home() / ".ray" / "auth_token")
    return "RAY_AUTH_TOKEN" in os.environ or kept.is_file()


def _handlers() -> dict[signal.Signals, Any]:
    if threading.current_thread() is not threading.main_thread():
        return {}
    return {s: signal.getsignal(s) for s in (signal.SIGTERM, signal.SIGINT)}


def _connect(ray: Any, address: str) -> None:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    quiet = {"log_to_driver": False, "logging_level": logging.ERROR}
    where = {"include_dashboard": False, "address": "local"} if address == LOCAL else {"address": address}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ray.init(**quiet, **where)
    except Exception as error:  # of many kinds, from connections to versions that differ
        why = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
        if "timeout" in why:
            why += (
                ": not the port for clients (10001 unless changed), or a cluster that asks for a token (RAY_AUTH_TOKEN)"
            )
        raise InputError(f"the cluster cannot be joined ({why})", address, LOCAL) from None


class Cluster:
    """A Ray cluster this process has joined. lost: hands that died so far."""

    def __init__(self, ray: Any) -> None:
        self.ray = ray
        self.lost = 0
        self.n_hands = 0

    @property
    def cpus(self) -> int:
        return int(self.ray.cluster_resources().get("CPU", 0))

    @property
    def words(self) -> str:
        """For a progress bar."""
        return f"{self.n_hands} worker{'' if self.n_hands == 1 else 's'}"

    @property
    def said(self) -> str:
        """What a user should know afterwards; empty where nothing happened."""
        if not self.lost:
            return ""
        who, what = (f"{self.lost} workers", "they") if self.lost > 1 else ("1 worker", "it")
        return f"{who} of the cluster died; what {what} had begun was looked at again"

    @contextmanager
    def crew(self, assess: Assess) -> Iterator[RayCrew]:
        """Hands for one question, gone when the block ends. Raises InputError where none can be had."""
        crew = RayCrew(self, assess)
        try:
            crew.open()
            yield crew
        finally:
            crew.close()
