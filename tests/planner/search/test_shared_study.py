"""Several processes on one study: they share the work, lose nothing with one that is killed, and answer alike."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path

import optuna
import pytest

from catalogs.errors import InputError
from planner.problem.candidate import Candidate
from planner.search.candidate_tester import CandidateTester, Outcome
from planner.search.optuna_study import PROCESS_KEY, SearchSettings, is_abandoned
from planner.search.search import SearchResult, search
from tests.planner.queue_toy import QueueToy
from tests.planner.search import test_search
from tests.planner.search.test_search import SIZES, SLOS, race_of

WORKER = """
import sys, time
sys.path[:0] = {path!r}
from tests.planner.search.test_shared_study import race, settings_of, space
from planner.search import search as s
from planner.search import optuna_study
if {host!r}:
    study.socket.gethostname = lambda: {host!r}
inner = race()
print("ready", flush=True)
sys.stdin.readline()
def assess(c, best):
    print("look", c.layout.tensor_parallel, c.max_num_seqs, c.max_num_batched_tokens, flush=True)
    time.sleep({pause})
    return inner(c, best)
found = s.search(space(), assess, settings_of(*{kept!r}))
print("best", found.best.candidate.words, len(found.outcomes), flush=True)
"""
#: Evaluations that two processes may both make, of 18: where both begin at the same moment, often on a busy machine
#: because these evaluations take no longer than a few writes to the storage; and at the end.
REPEATED = 9


def space() -> list[Candidate]:
    """Every other candidate of the toy, so that a search has few writes to its storage."""
    return test_search.space()[::2]


def race():  # type: ignore[no-untyped-def]
    return race_of(CandidateTester(QueueToy(0.4), SLOS, SIZES, 0, 0.9, None))


def settings_of(journal: str | None, storage: str | None, calibration: str = "one") -> SearchSettings:
    return SearchSettings(100, 0, "shared", Path(journal) if journal else None, storage, calibration)


def start(kept: tuple[str | None, str | None], pause: float, host: str = "") -> subprocess.Popen[str]:
    path = [str(Path(__file__).parents[3]), *sys.path]
    code = WORKER.format(path=path, kept=kept, pause=pause, host=host)
    return subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def begin(workers: list[subprocess.Popen[str]]) -> None:
    """Let processes search, at the same moment, however long each took to start."""
    for w in workers:
        assert w.stdout is not None
        assert w.stdout.readline().strip() == "ready"
    for w in workers:
        assert w.stdin is not None
        w.stdin.write("\n")
        w.stdin.flush()


def lines_of(worker: subprocess.Popen[str]) -> list[str]:
    """What one process prints that searches alone."""
    begin([worker])
    return worker.communicate(timeout=400)[0].splitlines()


def looks_of(lines: list[str]) -> list[str]:
    return [line.strip() for line in lines if line.startswith("look")]


def check_shared(workers: list[subprocess.Popen[str]]) -> None:
    """Everything is evaluated, little of it twice, and all give the answer of one process."""
    begin(workers)
    lines = [w.communicate(timeout=400)[0].splitlines() for w in workers]
    looks = [looks_of(worker) for worker in lines]
    assert len({look for worker in looks for look in worker}) == len(space())
    assert sum(map(len, looks)) <= len(space()) + REPEATED
    assert all(worker for worker in looks)  # how many of them each evaluates depends on the machine
    words, n = alone()
    assert {worker[-1] for worker in lines} == {f"best {words} {n}"}


def kept_in(kind: str, folder: Path) -> tuple[str | None, str | None]:
    return (str(folder / "study.log"), None) if kind == "journal" else (None, f"sqlite:///{folder / 'study.db'}")


@cache
def alone() -> tuple[str, int]:
    found = search(space(), race(), SearchSettings(100, 0))
    assert found.best is not None
    return found.best.candidate.words, len(found.outcomes)


@pytest.mark.parametrize("kind", ["journal", "sqlite"])
def test_two_workers_share_the_work(kind: str, tmp_path: Path) -> None:
    check_shared([start(kept_in(kind, tmp_path), 0.3) for _ in range(2)])


def killed_in_the_fourth(kept: tuple[str | None, str | None], host: str = "") -> list[str]:
    """What a process evaluated until it was killed."""
    victim = start(kept, 0.3, host)
    begin([victim])
    assert victim.stdout is not None
    done = [victim.stdout.readline().strip() for _ in range(4)]
    os.kill(victim.pid, signal.SIGKILL)
    victim.wait()
    return done


@pytest.mark.parametrize("kind", ["journal", "sqlite"])
def test_a_killed_process_is_continued_where_it_was(kind: str, tmp_path: Path) -> None:
    kept = kept_in(kind, tmp_path)
    done = killed_in_the_fourth(kept)
    survivor = lines_of(start(kept, 0.0))
    looks = looks_of(survivor)
    assert looks[0] == done[3]
    assert not set(done[:3]) & set(looks)
    words, n = alone()
    assert survivor[-1] == f"best {words} {n}"


def test_what_a_killed_process_of_another_machine_began_is_evaluated_last(tmp_path: Path) -> None:
    kept = kept_in("journal", tmp_path)
    done = killed_in_the_fourth(kept, "elsewhere")
    looks = looks_of(lines_of(start(kept, 0.0)))
    assert looks[-1] == done[3]
    assert len(looks) == len(space()) - 3


def test_what_others_have_begun_counts_among_the_trials(tmp_path: Path) -> None:
    killed_in_the_fourth(kept_in("journal", tmp_path), "elsewhere")
    found = search(space(), race(), replace(settings_of(str(tmp_path / "study.log"), None), n_trials=6))
    assert len(found.outcomes) == 6
    assert found.outcomes[-1].candidate == space()[3]


def test_the_first_result_of_a_candidate_stands(tmp_path: Path) -> None:
    settings = settings_of(str(tmp_path / "study.log"), None)

    def late(c: Candidate, best: Outcome | None) -> Outcome:
        if not others:
            others.append(search(space()[:3], race(), settings))
        result: Outcome = race()(c, best)
        return replace(result, requests_per_s=1e6)

    others: list[SearchResult] = []
    found = search(space()[:3], late, settings)
    assert found.outcomes == others[0].outcomes


def test_a_study_of_another_calibration_is_refused(tmp_path: Path) -> None:
    journal = str(tmp_path / "study.log")
    search(space()[:3], race(), settings_of(journal, None, "one"))
    with pytest.raises(InputError, match="another calibration"):
        search(space()[:3], race(), settings_of(journal, None, "two"))


def test_a_storage_that_cannot_be_reached_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="storage") as error:
        search(space()[:3], race(), settings_of(None, f"sqlite:///{tmp_path}/no/such/folder/s.db"))
    assert "\n" not in str(error.value)


def test_an_interrupted_candidate_is_free_at_once(tmp_path: Path) -> None:
    journal, inner = str(tmp_path / "study.log"), race()
    looked: list[Candidate] = []

    def interrupted(c: Candidate, best: Outcome | None) -> Outcome:
        looked.append(c)
        if len(looked) == 2:
            raise KeyboardInterrupt
        result: Outcome = inner(c, best)
        return result

    search(space()[:4], interrupted, settings_of(journal, None))
    search(space()[:4], interrupted, settings_of(journal, None))
    assert looked == [space()[i] for i in (0, 1, 1, 2, 3)]


def test_a_process_is_known_to_be_dead_only_on_its_own_machine() -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    host = socket.gethostname()
    began = {
        "": False,
        f"{host}:{os.getpid()}": False,
        f"{host}:{child.pid}": True,
        f"{host}x:{child.pid}": False,
    }
    for process, dead in began.items():
        trial = optuna.trial.create_trial(value=0.0, user_attrs={PROCESS_KEY: process} if process else {})
        assert is_abandoned(trial) is dead
