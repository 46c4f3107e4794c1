"""Workers of several machines on one study in PostgreSQL: a real server, killed workers, clocks of other places."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec

import pytest

from catalogs.errors import InputError
from catalogs.ui.entry_point import run_command
from planner.cli.main import app
from planner.problem.candidate import Candidate
from planner.search.candidate_tester import Outcome
from planner.search.optuna_study import need_storage
from planner.search.search import search
from tests.planner.postgres_server import Server, binaries, free_port
from tests.planner.search.test_shared_study import (
    alone,
    check_shared,
    killed_in_the_fourth,
    lines_of,
    looks_of,
    race,
    settings_of,
    space,
    start,
)

FAR_APART = ("NZST-12", "PST8")  # in the form that needs no time zone database


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    tools = binaries()
    if tools is None:
        pytest.skip("PostgreSQL's server is not installed (apt-get install postgresql)")
    if find_spec("psycopg") is None:
        pytest.skip("PostgreSQL's driver is not installed (pip install '.[postgresql]')")
    made = Server.made(tools)
    try:
        made.start()
        yield made
        made.stop()
    finally:
        made.remove()


@pytest.fixture
def database(server: Server, request: pytest.FixtureRequest) -> str:
    """Of one test."""
    import psycopg

    name = request.node.name.lower()[:60]
    with psycopg.connect(server.url, autocommit=True) as connection:
        connection.execute(f'create database "{name}"')
    return server.url.rpartition("/")[0] + f"/{name}"


def test_machines_of_other_time_zones_share_the_work(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    workers = []
    for zone in FAR_APART:
        monkeypatch.setenv("TZ", zone)
        workers.append(start((None, database), 0.1))
    check_shared(workers)


def test_a_killed_worker_loses_nothing_in_a_database(database: str) -> None:
    done = killed_in_the_fourth((None, database))
    survivor = lines_of(start((None, database), 0.0))
    looks = looks_of(survivor)
    assert looks[0] == done[3]
    assert not set(done[:3]) & set(looks)
    words, n = alone()
    assert survivor[-1] == f"best {words} {n}"


def test_a_server_that_dies_in_the_middle_is_one_line_and_loses_nothing(server: Server, database: str) -> None:
    looked: list[Candidate] = []
    inner = race()

    def assess(c: Candidate, best: Outcome | None) -> Outcome:
        if len(looked) == 5:
            server.stop()
        looked.append(c)
        result: Outcome = inner(c, best)
        return result

    try:
        with pytest.raises(InputError, match="storage stopped answering") as error:
            search(space(), assess, settings_of(None, database))
    finally:
        server.start()
    assert "\n" not in str(error.value)
    first, looked[:] = looked[:5], [space()[0]] * 6  # counts on from beyond the fault
    found = search(space(), assess, settings_of(None, database))
    assert found.n_resumed == 5
    assert not set(first) & set(looked[6:])
    assert found.best is not None
    assert (found.best.candidate.words, len(found.outcomes)) == alone()


def test_a_server_that_is_down_is_one_line_without_the_password() -> None:
    if find_spec("psycopg") is None:
        pytest.skip("PostgreSQL's driver is not installed (pip install '.[postgresql]')")
    with pytest.raises(InputError, match="storage cannot be used") as error:
        need_storage(f"postgresql://me:s3cret@127.0.0.1:{free_port()}/plans")
    assert "\n" not in str(error.value)
    assert "s3cret" not in str(error.value)


def test_plan_refuses_a_storage_that_is_down_before_it_searches(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--model", "llama3.1-8b", "--hw", "h100x1", "--slo", "ttft.p99=2s"]
    where = f"postgresql+psycopg://127.0.0.1:{free_port()}/plans"
    assert run_command("plan", app, [*options, "--study", where]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert len(shown.err.splitlines()) == 1
    assert "postgresql" in shown.err.lower()


@pytest.mark.parametrize("url", ["postgresql+nosuchdriver://h/d", "postgresql:h/d", "nonsense"])
def test_a_storage_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(InputError):
        need_storage(url)


@pytest.mark.parametrize("url", ["mysql://me:s3cret@h:port/d", "sqlite://me:s3cret@h/x", "mysql+no://me:s3cret@h/d"])
def test_no_password_is_printed_for_any_database(url: str) -> None:
    with pytest.raises(InputError) as caught:
        need_storage(url)
    assert "s3cret" not in str(caught.value)
