"""The store: a job is taken once, an attempt that was given up writes nothing, and old things expire."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import sqlalchemy as sa

from catalogs.errors import InputError
from planner.web.store.database import Database
from planner.web.store.jobs import CANCELLED, DONE, FAILED, QUEUED, RUNNING, JobStore, NewJob
from planner.web.store.uploads import StoredUpload, UploadStore
from tests.planner.postgres_server import Server, binaries


@pytest.fixture(scope="module")
def postgres() -> Iterator[str]:
    tools = binaries()
    if tools is None:
        pytest.skip("PostgreSQL is not installed")
    server = Server.made(tools)
    server.start()
    yield server.url
    server.stop()
    server.remove()


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.slow)])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[JobStore]:
    url = f"sqlite:///{tmp_path / 'jobs.sqlite'}"
    if request.param == "postgresql":
        url = request.getfixturevalue("postgres")
    database = Database(url)
    yield JobStore(database)
    with database.engine.begin() as connection:
        for table in ("jobs", "events", "artifacts", "uploads", "chunks", "servers"):
            connection.execute(sa.text(f"DELETE FROM {table}"))
    database.close()


def new(number: int = 0, kind: str = "plan", owner: str = "ann") -> NewJob:
    return NewJob(kind, f"title {number}", owner, f"key {number}", {"seed": number})


def claim(store: JobStore, server: str = "here") -> str | None:
    job = store.claim(server, ("report",), only=False)
    return None if job is None else job.id


def test_each_job_is_taken_once_whatever_the_number_of_takers(store: JobStore) -> None:
    ids = {store.add(new(i)).id for i in range(30)}
    barrier = threading.Barrier(6)

    def take(server: int) -> list[str]:
        barrier.wait()
        found, misses = [], 0
        while misses < 3:  # a taker may lose a race
            id_ = claim(store, str(server))
            misses = misses + 1 if id_ is None else 0
            found += [] if id_ is None else [id_]
        return found

    with ThreadPoolExecutor(6) as threads:
        taken = [id_ for found in threads.map(take, range(6)) for id_ in found]
    assert sorted(taken) == sorted(ids)


def test_jobs_are_taken_in_order_and_short_ones_first(store: JobStore) -> None:
    first, second = store.add(new(1)).id, store.add(new(2)).id
    report = store.add(new(3, "report")).id
    assert [claim(store) for _ in range(4)] == [report, first, second, None]


def test_an_attempt_that_was_given_up_writes_nothing(store: JobStore) -> None:
    store.add(new())
    old = store.claim("a", (), only=False)
    assert old is not None
    store.release(old, crashed=True)
    current = store.claim("b", (), only=False)
    assert current is not None
    assert (current.attempt, current.crashes) == (2, 1)
    store.write_progress(old, {"done": 1})
    assert store.finish(old, DONE, {"result.json": b"old"}) is False
    assert store.job(old.id).status == RUNNING
    assert store.events(old.id, 0) == []
    assert store.finish(current, DONE, {"result.json": b"new"}, "yes") is True
    assert store.finish(current, FAILED, {"result.json": b"twice"}) is False
    assert store.artifact(old.id) == b"new"
    assert store.job(old.id).verdict == "yes"


def test_events_have_ascending_numbers(store: JobStore) -> None:
    store.add(new())
    job = store.claim("a", (), only=False)
    assert job is not None
    for done in range(3):
        store.write_progress(job, {"done": done})
    numbers = [number for number, _ in store.events(job.id, 0)]
    assert numbers == sorted(set(numbers))
    assert len(store.events(job.id, numbers[1])) == 1
    assert store.job(job.id).progress == {"done": 2}


def test_a_waiting_job_is_cancelled_at_once_and_a_running_one_asked(store: JobStore) -> None:
    waiting, other = store.add(new(1)), store.add(new(2))
    assert store.request_cancel(waiting.id).status == CANCELLED
    assert claim(store) == other.id
    assert store.request_cancel(other.id).status == RUNNING
    assert store.cancelled([waiting.id, other.id]) == {waiting.id, other.id}
    assert store.find_by_key("ann", "key 1") is None


def test_jobs_of_a_server_that_is_gone_are_known(store: JobStore) -> None:
    store.heartbeat("gone", "host", "1:1")
    store.heartbeat("gone", "host", "1:1")
    assert [(id_, host) for id_, host, _, _ in store.servers()] == [("gone", "host")]
    store.add(new())
    id_ = claim(store, "gone")
    assert store.orphans() == []
    store.forget_server("gone")
    assert [job.id for job in store.orphans()] == [id_]
    assert store.servers() == []


def test_old_jobs_and_unused_uploads_expire(store: JobStore) -> None:
    used, unused, uploads = "a" * 64, "b" * 64, UploadStore(store.database)
    for digest in (used, unused):
        uploads.add(StoredUpload(digest, "ann", "t.csv", "trace", 3, 0.0), iter([b"abc"]))
    old = store.add(new(1))
    assert claim(store) == old.id
    store.finish(store.job(old.id), DONE, {"result.json": b"{}"})
    kept = store.add(NewJob("plan", "t", "ann", "k", {"workload": f"upload:{used}"}))
    assert store.expire(time.time() + 1) == 1
    uploads.expire(time.time() + 1)
    assert store.counts() == {QUEUED: 1}
    assert store.artifact(old.id) is None
    assert store.job(kept.id).status == QUEUED
    assert b"".join(uploads.chunks(used)) == b"abc"
    assert list(uploads.chunks(unused)) == []
    assert uploads.total_bytes() == 3


def test_jobs_are_listed_by_owner_kind_and_page(store: JobStore) -> None:
    for i in range(5):
        store.add(new(i))
    store.add(new(9, "report", "bob"))
    assert [job.title for job in store.jobs("ann", 2)] == ["title 4", "title 3"]
    second = store.jobs("ann", 2)[-1].number
    assert [job.title for job in store.jobs("ann", 9, before=second)] == ["title 2", "title 1", "title 0"]
    assert store.jobs("ann", 9, "report") == []
    assert [job.owner for job in store.jobs(None, 9, without=("plan",))] == ["bob"]


def test_a_database_of_another_version_is_refused(store: JobStore) -> None:
    with store.database.writing() as connection:
        connection.execute(sa.text("ALTER TABLE jobs RENAME COLUMN crashes TO losses"))
    try:
        with pytest.raises(InputError, match="its table jobs has no column crashes"):
            Database(store.database.url)
    finally:
        with store.database.writing() as connection:
            connection.execute(sa.text("ALTER TABLE jobs RENAME COLUMN losses TO crashes"))


@pytest.mark.parametrize(
    ("url", "rule"),
    [
        ("nonsense", "must be the URL of a database"),
        ("mysql://u:secret@h/d", "needs a package|must be the URL"),
        ("sqlite:////proc/none/x.sqlite", "does not answer"),
        ("postgresql://u:secret@127.0.0.1:1/d", "does not answer"),
    ],
)
def test_a_database_that_cannot_be_used_is_one_line_without_its_password(url: str, rule: str) -> None:
    with pytest.raises(InputError, match=rule) as refused:
        Database(url)
    assert "secret" not in str(refused.value)
