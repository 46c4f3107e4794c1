"""The uploaded files in the database: each content once, in compressed chunks, and a row for each of its owners."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass

import sqlalchemy as sa

from planner.web.store.database import Database
from planner.web.store.tables import CHUNKS, JOBS, UPLOADS


@dataclass(frozen=True, slots=True)
class StoredUpload:
    """One uploaded file, without its content."""

    hash: str
    owner: str
    name: str
    kind: str
    bytes: int
    created: float


@dataclass(frozen=True, slots=True)
class UploadStore:
    """The uploads in a database; every method is one transaction and may be called from any thread."""

    database: Database

    def add(self, upload: StoredUpload, chunks: Iterator[bytes]) -> None:
        """Add a file in chunks; the content of a file that another user uploaded before is stored once."""
        with self.database.writing() as connection:
            known = sa.select(CHUNKS.c.number).where(CHUNKS.c.hash == upload.hash).limit(1)
            if connection.execute(known).first() is None:
                for number, content in enumerate(chunks):
                    packed = zlib.compress(content, 1)
                    connection.execute(CHUNKS.insert().values(hash=upload.hash, number=number, content=packed))
            same = sa.and_(UPLOADS.c.hash == upload.hash, UPLOADS.c.owner == upload.owner)
            connection.execute(UPLOADS.delete().where(same))
            values = {name: getattr(upload, name) for name in StoredUpload.__slots__}
            connection.execute(UPLOADS.insert().values(values))

    def find(self, hash_: str, owner: str) -> StoredUpload | None:
        """Return an uploaded file of a user; None if the user has not uploaded it."""
        query = sa.select(UPLOADS).where(UPLOADS.c.hash == hash_, UPLOADS.c.owner == owner)
        with self.database.reading() as connection:
            row = connection.execute(query).one_or_none()
        return None if row is None else StoredUpload(**row._asdict())

    def total_bytes(self) -> int:
        """Return the size of all uploads together, bytes."""
        with self.database.reading() as connection:
            return int(connection.execute(sa.select(sa.func.coalesce(sa.func.sum(UPLOADS.c.bytes), 0))).scalar_one())

    def chunks(self, hash_: str) -> Iterator[bytes]:
        """Yield the content of an uploaded file in chunks."""
        query = sa.select(CHUNKS.c.content).where(CHUNKS.c.hash == hash_).order_by(CHUNKS.c.number)
        with self.database.reading() as connection:
            for content in connection.execute(query).scalars():
                yield zlib.decompress(content)

    def expire(self, before: float) -> None:
        """Delete uploads that are older than a time and that no job uses."""
        with self.database.writing() as connection:
            for row in connection.execute(sa.select(UPLOADS).where(UPLOADS.c.created < before)).all():
                used = JOBS.c.question.contains(f"upload:{row.hash}")
                if connection.execute(sa.select(JOBS.c.id).where(used).limit(1)).first() is None:
                    same = sa.and_(UPLOADS.c.hash == row.hash, UPLOADS.c.owner == row.owner)
                    connection.execute(UPLOADS.delete().where(same))
            kept = sa.select(UPLOADS.c.hash)
            connection.execute(CHUNKS.delete().where(CHUNKS.c.hash.not_in(kept)))
