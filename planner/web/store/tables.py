"""The tables of the database; times are seconds since 1970."""

from __future__ import annotations

from typing import Final

import sqlalchemy as sa

METADATA: Final = sa.MetaData()

JOBS: Final = sa.Table(
    "jobs",
    METADATA,
    sa.Column("id", sa.String(32), primary_key=True),
    sa.Column("number", sa.BigInteger, nullable=False, index=True),
    sa.Column("kind", sa.String(32), nullable=False),
    sa.Column("title", sa.Text, nullable=False),
    sa.Column("owner", sa.Text, nullable=False, index=True),
    sa.Column("key", sa.String(64), nullable=False, index=True),
    sa.Column("question", sa.Text, nullable=False),
    sa.Column("status", sa.String(16), nullable=False, index=True),
    sa.Column("created", sa.Float, nullable=False),
    sa.Column("started", sa.Float),
    sa.Column("ended", sa.Float),
    sa.Column("progress", sa.Text),
    sa.Column("verdict", sa.String(8)),
    sa.Column("error", sa.Text),
    sa.Column("parent", sa.String(32)),
    sa.Column("attempt", sa.Integer, nullable=False, default=0),
    sa.Column("crashes", sa.Integer, nullable=False, default=0),
    sa.Column("server", sa.String(32)),
    sa.Column("cancelled", sa.Boolean, nullable=False, default=False),
)

EVENTS: Final = sa.Table(
    "events",
    METADATA,
    sa.Column("number", sa.Integer, primary_key=True, autoincrement=True),
    sa.Column("job", sa.String(32), nullable=False, index=True),
    sa.Column("data", sa.Text, nullable=False),
    sqlite_autoincrement=True,
)

ARTIFACTS: Final = sa.Table(
    "artifacts",
    METADATA,
    sa.Column("job", sa.String(32), primary_key=True),
    sa.Column("name", sa.String(64), primary_key=True),
    sa.Column("content", sa.LargeBinary, nullable=False),
)

UPLOADS: Final = sa.Table(
    "uploads",
    METADATA,
    sa.Column("hash", sa.String(64), primary_key=True),
    sa.Column("owner", sa.Text, primary_key=True),
    sa.Column("name", sa.Text, nullable=False),
    sa.Column("kind", sa.String(32), nullable=False),
    sa.Column("bytes", sa.BigInteger, nullable=False),
    sa.Column("created", sa.Float, nullable=False),
)

CHUNKS: Final = sa.Table(
    "chunks",
    METADATA,
    sa.Column("hash", sa.String(64), primary_key=True),
    sa.Column("number", sa.Integer, primary_key=True),
    sa.Column("content", sa.LargeBinary, nullable=False),
)

SERVERS: Final = sa.Table(
    "servers",
    METADATA,
    sa.Column("id", sa.String(32), primary_key=True),
    sa.Column("host", sa.Text, nullable=False),
    sa.Column("process", sa.Text, nullable=False),
    sa.Column("seen", sa.Float, nullable=False),
)
