"""Two cores find what one finds, in the same order, whatever happens to the second."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing import active_children
from pathlib import Path

import pytest

from catalogs.errors import InputError
from planner.problem.candidate import Candidate
from planner.search.objectives import CandidateTester, CapacityRace, Outcome
from planner.search.search import search
from planner.search.study import SearchSettings
from planner.search.workers import _forked, shared, with_second_core
from tests.planner.queue_toy import QueueToy
from tests.planner.search.test_search import SIZES, SLOS, race_of, space

#: Everything; and a part of it, half of that proposed by the sampler.
SETTINGS = (SearchSettings(100, 0), SearchSettings(18, 0))


@dataclass(frozen=True)
class Noted:
    """An Assess that notes which process looked at a candidate, and what happens there first."""

    inner: CapacityRace
    folder: Path
    elsewhere: Callable[[Candidate], None] = lambda _: None
    here: int = os.getpid()

    def __call__(self, candidate: Candidate, best: Outcome | None) -> Outcome:
        (self.folder / str(os.getpid())).touch()
        if os.getpid() != self.here:
            self.elsewhere(candidate)
        return self.inner(candidate, best)

    @property
    def n_processes(self) -> int:
        return len(list(self.folder.iterdir()))


@pytest.fixture
def race() -> CapacityRace:
    return race_of(CandidateTester(QueueToy(0.4), SLOS, SIZES, 0, None))


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("drops", [False, True])
def test_two_cores_answer_as_one(race: CapacityRace, settings: SearchSettings, drops: bool, tmp_path: Path) -> None:
    outclassed = race.outclassed if drops else None
    alone = search(space(), race, settings, outclassed=outclassed)
    noted = Noted(race, tmp_path)
    with _forked(noted) as crew:
        assert search(space(), noted, settings, outclassed=outclassed, crew=crew) == alone
    assert noted.n_processes == 2
    assert not active_children()


def test_a_second_core_that_dies_loses_nothing(race: CapacityRace, tmp_path: Path) -> None:
    def die(c: Candidate) -> None:
        if c.max_num_seqs == 256:
            os.kill(os.getpid(), signal.SIGKILL)

    alone = search(space(), race, SETTINGS[0])
    noted = Noted(race, tmp_path, die)
    with _forked(noted) as crew:
        assert search(space(), noted, SETTINGS[0], crew=crew) == alone


def test_what_is_refused_there_is_refused_here(race: CapacityRace, tmp_path: Path) -> None:
    def fail(c: Candidate) -> None:
        raise InputError("only there", c.max_num_seqs, "")

    alone = search(space(), race, SETTINGS[0])
    with _forked(Noted(race, tmp_path, fail)) as crew:
        assert search(space(), race, SETTINGS[0], crew=crew) == alone

    def refuse(candidate: Candidate, best: Outcome | None) -> Outcome:
        if candidate == space()[2]:
            raise InputError("nothing like this", candidate.max_num_seqs, "")
        return race(candidate, best)

    with _forked(refuse) as crew, pytest.raises(InputError, match="nothing like this"):
        search(space(), refuse, SETTINGS[0], crew=crew)
    assert not active_children()


def test_one_core_is_alone(race: CapacityRace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0}, raising=False)
    with with_second_core(race) as crew:
        assert crew.ahead == 1
        assert not active_children()


@pytest.mark.parametrize("n", range(6))
def test_tasks_are_shared_and_come_back_in_order(n: int) -> None:
    done = shared(lambda task: (task * task, os.getpid()), range(n))
    assert [square for square, _ in done] == [task * task for task in range(n)]
    assert {pid for _, pid in done[::2]} <= {os.getpid()}
    assert os.getpid() not in {pid for _, pid in done[1::2]} or n < 2
    assert not active_children()


@pytest.mark.parametrize("end", [lambda: os.kill(os.getpid(), signal.SIGKILL), lambda: [][0]])
def test_tasks_of_a_process_that_is_lost_are_done_here(end: Callable[[], object]) -> None:
    here = os.getpid()

    def work(task: int) -> int:
        if os.getpid() != here:
            end()
        return 2 * task

    assert shared(work, range(5)) == [0, 2, 4, 6, 8]


def test_a_task_that_fails_fails_here() -> None:
    def work(task: int) -> int:
        if task == 3:
            raise InputError("no such task", task, "2")
        return task

    with pytest.raises(InputError, match="no such task"):
        shared(work, range(5))
    assert not active_children()
