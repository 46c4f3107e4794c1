"""Several workers on one study: nothing simulated twice, nothing lost with a worker that is killed, the same answer."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from catalogs.errors import InputError
from planner.problem.candidate import Candidate
from planner.search.objectives import CandidateTester, Outcome
from planner.search.search import search
from planner.search.study import ABANDONED, SearchSettings
from tests.planner.queue_toy import QueueToy
from tests.planner.search.test_search import SIZES, SLOS, race_of, space

WORKER = """
import sys, time
sys.path[:0] = {path!r}
from pathlib import Path
from datetime import timedelta
from tests.planner.search.test_shared_study import race, settings_of, space
from planner.search import search as s, study
study.ABANDONED = timedelta(seconds={patience})
inner = race()
def assess(c, best):
    print("look", c.layout.tensor_parallel, c.max_num_seqs, c.max_num_batched_tokens, flush=True)
    time.sleep({pause})
    return inner(c, best)
found = s.search(space(), assess, settings_of(*{kept!r}))
print("best", found.best.candidate.words, len(found.outcomes), flush=True)
"""


def race():  # type: ignore[no-untyped-def]
    return race_of(CandidateTester(QueueToy(0.4), SLOS, SIZES, 0, None))


def settings_of(journal: str | None, storage: str | None, calibration: str = "one") -> SearchSettings:
    return SearchSettings(100, 0, "shared", Path(journal) if journal else None, storage, calibration)


def start(kept: tuple[str | None, str | None], pause: float, patience: float) -> subprocess.Popen[str]:
    path = [str(Path(__file__).parents[3]), *sys.path]
    code = WORKER.format(path=path, kept=kept, pause=pause, patience=patience)
    return subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)


def kept_in(kind: str, folder: Path) -> tuple[str | None, str | None]:
    return (str(folder / "study.log"), None) if kind == "journal" else (None, f"sqlite:///{folder / 'study.db'}")


def alone() -> tuple[str, int]:
    found = search(space(), race(), SearchSettings(100, 0))
    assert found.best is not None
    return found.best.candidate.words, len(found.outcomes)


@pytest.mark.parametrize("kind", ["journal", "sqlite"])
def test_two_workers_share_the_work(kind: str, tmp_path: Path) -> None:
    kept = kept_in(kind, tmp_path)
    workers = [start(kept, 0.02, 60.0) for _ in range(2)]
    lines = [w.communicate(timeout=120)[0].splitlines() for w in workers]
    looks = [line for worker in lines for line in worker if line.startswith("look")]
    assert len(looks) == len(set(looks)) == len(space())
    words, n = alone()
    assert {worker[-1] for worker in lines} == {f"best {words} {n}"}


@pytest.mark.parametrize("kind", ["journal", "sqlite"])
def test_a_killed_worker_loses_nothing(kind: str, tmp_path: Path) -> None:
    kept = kept_in(kind, tmp_path)
    victim = start(kept, 0.3, 60.0)
    assert victim.stdout is not None
    done = [victim.stdout.readline() for _ in range(4)]  # in the middle of the fourth
    os.kill(victim.pid, signal.SIGKILL)
    victim.wait()
    time.sleep(1.0)
    survivor = start(kept, 0.0, 1.0).communicate(timeout=120)[0].splitlines()
    looks = [line for line in survivor if line.startswith("look")]
    assert done[3].strip() in looks
    assert not {line.strip() for line in done[:3]} & set(looks)
    words, n = alone()
    assert survivor[-1] == f"best {words} {n}"


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

    def interrupted(c: Candidate, best: Outcome | None) -> Outcome:
        if c == space()[1]:
            raise KeyboardInterrupt
        result: Outcome = inner(c, best)
        return result

    search(space()[:4], interrupted, settings_of(journal, None))
    began = time.monotonic()
    found = search(space()[:4], inner, settings_of(journal, None))
    assert len(found.outcomes) == 4
    assert time.monotonic() - began < ABANDONED.total_seconds() / 2
