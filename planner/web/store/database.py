"""The connection to the database of one SQLAlchemy URL, SQLite or PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import ArgumentError, SQLAlchemyError

from catalogs.errors import InputError
from catalogs.io.http import without_password
from planner.web.settings import SQLITE
from planner.web.store.tables import METADATA


class Database:
    """A database with all tables; its methods may be called from any thread.

    Raises:
        InputError: The URL is not valid, or the database does not answer or is that of another version.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        try:
            if url.startswith(SQLITE):
                Path(url.removeprefix(SQLITE)).absolute().parent.mkdir(parents=True, exist_ok=True)
            driven = url.replace("postgresql://", "postgresql+psycopg://", 1)  # the package of the extra postgresql
            self.engine = sa.create_engine(driven, **({} if url.startswith(SQLITE) else {"pool_pre_ping": True}))
            if url.startswith(SQLITE):
                sa.event.listen(self.engine, "connect", _tune_sqlite)
            METADATA.create_all(self.engine)
            self._check_columns()
        except (ArgumentError, sa.exc.NoSuchModuleError):
            rule = "--store must be the URL of a database"
            raise InputError(
                rule, without_password(url), "sqlite:///jobs.sqlite or postgresql://USER@HOST/DB"
            ) from None
        except ModuleNotFoundError as error:
            hint = "pip install '.[web,postgresql]'"
            raise InputError("this database needs a package that is not installed", error.name, hint=hint) from None
        except (SQLAlchemyError, OSError) as error:
            reason = str(getattr(error, "orig", None) or error).splitlines()[0]
            raise InputError(f"the database of --store does not answer ({reason})", without_password(url)) from None

    def _check_columns(self) -> None:
        found = sa.inspect(self.engine)
        for table in METADATA.sorted_tables:
            missing = {column.name for column in table.columns} - {c["name"] for c in found.get_columns(table.name)}
            if missing:
                rule = f"another version made this database: its table {table.name} has no column {min(missing)}"
                raise InputError(rule, without_password(self.url), hint="name a new database with --store")

    def close(self) -> None:
        """Close all connections."""
        self.engine.dispose()

    def check(self) -> None:
        """Read one row, to find out whether the database answers.

        Raises:
            SQLAlchemyError: It does not.
        """
        with self.engine.connect() as connection:
            connection.execute(sa.select(1))

    @contextmanager
    def writing(self) -> Iterator[sa.Connection]:
        """Yield a connection whose transaction is committed at the end of the block."""
        with self.engine.begin() as connection:
            if self.engine.dialect.name == "sqlite":
                connection.exec_driver_sql("BEGIN IMMEDIATE")
            yield connection

    def reading(self) -> sa.Connection:
        """Return a connection to read with; it is a context manager, which closes it."""
        return self.engine.connect()


def _tune_sqlite(connection: Any, _: object) -> None:
    """Let readers and a writer work at the same time, and let writers wait for each other."""
    connection.isolation_level = None  # the store begins its transactions itself
    cursor = connection.cursor()
    for pragma in ("journal_mode=WAL", "synchronous=NORMAL", "busy_timeout=30000"):
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()
