"""Where a study is kept: a journal file, or a database that many machines reach."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from catalogs.errors import InputError

INSTALL: Final = "pip install '.[postgresql]'"
#: Seconds after which a server that says nothing is taken to be down.
_CONNECT_S: Final = 10
_POSTGRESQL: Final = ("postgres", "postgresql")
_PASSWORDS: Final = (r"(//[^:/@]*):.*@", r"([?&]password)=[^&]*")


def without_password(url: str) -> str:
    """A storage URL as it may be printed."""
    named = re.sub(_PASSWORDS[0], r"\1:***@", url)
    return re.sub(_PASSWORDS[1], r"\1=***", named)


def open_storage(url: str) -> Any:
    """The storage of an Optuna URL. A server's connections are looked at before each use, and it must answer soon.

    Raises InputError where the driver is missing; what a server that is down raises is its driver's.
    """
    if not url.startswith(_POSTGRESQL):
        return url
    from optuna.storages import RDBStorage

    options = {"pool_pre_ping": True, "connect_args": {"connect_timeout": _CONNECT_S}}
    return RDBStorage(_with_driver(url), engine_kwargs=options)


def _with_driver(url: str) -> str:
    """The URL with its driver named: which one a bare postgresql:// means has changed between SQLAlchemy's versions."""
    scheme, separator, rest = url.partition("://")
    dialect, _, driver = scheme.partition("+")
    drivers = (driver,) if driver else ("psycopg", "psycopg2")
    found = next((d for d in drivers if find_spec(d) is not None), None)
    if dialect not in _POSTGRESQL or not separator:
        raise InputError("a PostgreSQL storage is postgresql://USER@HOST/DATABASE", without_password(url))
    if found is None:
        raise InputError(f"PostgreSQL needs a driver that is not installed ({drivers[0]})", None, INSTALL)
    return f"postgresql+{found}://{rest}"


def open_journal(path: Path) -> Any:
    """Raises InputError where the file cannot be used."""
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return JournalStorage(JournalFileBackend(str(path)))
    except OSError as error:
        raise InputError(f"the study file cannot be used ({error.strerror})", str(path)) from None
