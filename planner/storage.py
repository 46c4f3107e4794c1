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


def need_storage(url: str) -> None:
    """Raises InputError where the database of an Optuna URL does not answer: said before the search, not in it."""
    import sqlalchemy

    try:
        name, options = _engine(url)
        engine = sqlalchemy.create_engine(name, **options)
        engine.connect().close()
        engine.dispose()
    except InputError:
        raise
    except Exception as error:  # of many kinds: a driver's own, a URL that is none
        raise unusable(url, error) from None


def open_storage(url: str) -> Any:
    """The storage of an Optuna URL. Raises InputError where a driver is missing, its driver's own where it is down."""
    name, options = _engine(url)
    if not options:
        return name
    from optuna.storages import RDBStorage

    return RDBStorage(name, engine_kwargs=options)


def unusable(url: str, error: Exception) -> InputError:
    """One line of what a driver said."""
    why = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
    return InputError(f"the storage cannot be used ({why})", without_password(url), "sqlite:///study.db")


def _engine(url: str) -> tuple[str, dict[str, Any]]:
    """The URL and options: a server's connections are looked at before each use, and it must answer soon."""
    if not url.startswith(_POSTGRESQL):
        return url, {}
    return _with_driver(url), {"pool_pre_ping": True, "connect_args": {"connect_timeout": _CONNECT_S}}


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
