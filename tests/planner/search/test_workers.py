"""The answer does not depend on the number of workers, whatever happens to them."""

from __future__ import annotations

import gc
import json
import os
import pickle
import signal
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from multiprocessing import active_children
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

from catalogs.errors import InputError
from catalogs.ui.entry_point import run_command
from planner.cli.main import app
from planner.evaluation.multi_hardware import open_evaluator
from planner.problem.candidate import Candidate
from planner.problem.request import PlanRequest
from planner.search import workers
from planner.search.candidate_tester import CandidateTester, Outcome
from planner.search.objectives import CapacityRace
from planner.search.optuna_study import SearchSettings
from planner.search.search import search
from planner.search.workers import ProcessPool, SerialLookahead, usable_cores
from tests.planner.queue_toy import QueueToy
from tests.planner.search.test_search import SIZES, SLOS, race_of, space
from tests.signalled import started

ROOT = Path(__file__).resolve().parents[2]
#: Everything; and a part of it, half of that proposed by the sampler.
SETTINGS = (SearchSettings(100, 0), SearchSettings(18, 0))
KEPT = "the search so far is stored in"
#: Short prompts and answers, so that a run has few steps.
QUESTION = (
    *("--model", "llama3.2-1b", "--hw", "l4x1", "--slo", "ttft.p90=2s", "--trials", "4", "--precision", "native"),
    *("--input-tokens", "200", "--output-tokens", "4"),
)


@dataclass(frozen=True)
class Noted:
    """An Assess that notes which process evaluated a candidate, and what happens in a worker first."""

    inner: CapacityRace
    folder: Path
    in_worker: Callable[[Candidate], None] | None = None
    here: int = field(default_factory=os.getpid)

    def __call__(self, candidate: Candidate, best: Outcome | None) -> Outcome:
        (self.folder / str(os.getpid())).touch()
        if os.getpid() != self.here and self.in_worker is not None:
            self.in_worker(candidate)
        return self.inner(candidate, best)

    @property
    def n_processes(self) -> int:
        return len(list(self.folder.iterdir()))


@pytest.fixture(autouse=True)
def interrupts() -> Iterator[None]:
    """Let Ctrl-C raise KeyboardInterrupt, also where the tests run in the background, which ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def race() -> CapacityRace:
    return race_of(CandidateTester(QueueToy(0.4), SLOS, SIZES, 0, 0.9, None))


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("drops", [False, True])
@pytest.mark.parametrize("n_workers", [2, 4])
def test_any_number_of_workers_answers_as_one(
    race: CapacityRace, settings: SearchSettings, drops: bool, n_workers: int, tmp_path: Path
) -> None:
    outclassed = race.outclassed if drops else None
    alone = search(space(), race, settings, outclassed=outclassed)
    noted = Noted(race, tmp_path)
    with ProcessPool(n_workers).lookahead(noted, len(space())) as lookahead:
        assert search(space(), noted, settings, outclassed=outclassed, lookahead=lookahead) == alone
    assert 2 <= noted.n_processes <= n_workers
    assert not active_children()


def test_a_kept_search_of_several_workers_is_that_of_one(race: CapacityRace, tmp_path: Path) -> None:
    kept = SearchSettings(18, 0, "kept", tmp_path / "study.log")
    with ProcessPool(3).lookahead(race, len(space())) as lookahead:
        found = search(space(), race, kept, lookahead=lookahead)
        again = search(space(), race, kept, lookahead=lookahead)
    assert found.outcomes == search(space(), race, SETTINGS[1]).outcomes
    assert (again.outcomes, again.n_resumed) == (found.outcomes, 18)


def test_spawned_workers_answer_as_one(race: CapacityRace, tmp_path: Path) -> None:
    noted = Noted(race, tmp_path)
    with ProcessPool(2, "spawn").lookahead(noted, len(space())) as lookahead:
        found = search(space(), noted, SETTINGS[0], lookahead=lookahead)
        assert active_children()
    assert found.outcomes == search(space(), race, SETTINGS[0]).outcomes
    assert not active_children()


def test_work_that_cannot_be_pickled_is_not_sent_to_spawned_workers(race: CapacityRace) -> None:
    with ProcessPool(2, "spawn").lookahead(lambda c, best: race(c, best), 5) as lookahead:
        assert isinstance(lookahead, SerialLookahead)
    assert ProcessPool(2, "spawn").map(lambda task: (task, os.getpid()), [1, 2]) == [(1, os.getpid()), (2, os.getpid())]


def test_the_evaluator_of_a_request_can_be_sent_to_another_machine() -> None:
    """A cluster and spawned workers get it pickled, with the estimates by which the search was ordered before."""
    request = PlanRequest(model="llama3.1-8b", hardware="l40sx1", slos=SLOS, workload="lmsys-turns", requests_per_s=1.0)
    evaluator = open_evaluator(request)
    c, slo = evaluator.space()[0], SLOS[0]
    expected = evaluator.guess_s(c, 1.0, slo.metric, slo.quantile)
    assert pickle.loads(pickle.dumps(evaluator)).guess_s(c, 1.0, slo.metric, slo.quantile) == expected


@pytest.mark.parametrize("seats", [{256}, {64, 256, 1024}])
def test_workers_that_die_lose_nothing(race: CapacityRace, tmp_path: Path, seats: set[int]) -> None:
    def die(c: Candidate) -> None:
        if c.max_num_seqs in seats:
            os.kill(os.getpid(), signal.SIGKILL)

    alone = search(space(), race, SETTINGS[0])
    noted = Noted(race, tmp_path, die)
    with ProcessPool(3).lookahead(noted, len(space())) as lookahead:
        assert search(space(), noted, SETTINGS[0], lookahead=lookahead) == alone
    assert noted.n_processes > 3  # others were started
    assert not active_children()


def test_what_fails_in_a_worker_is_raised_here_at_its_turn(race: CapacityRace, tmp_path: Path) -> None:
    def fail(c: Candidate) -> None:
        raise InputError("only in a worker", c.max_num_seqs, "")

    alone = search(space(), race, SETTINGS[0])
    with ProcessPool(2).lookahead(Noted(race, tmp_path, fail), 36) as lookahead:
        assert search(space(), race, SETTINGS[0], lookahead=lookahead) == alone

    def refuse(candidate: Candidate, best: Outcome | None) -> Outcome:
        if candidate == space()[2]:
            raise InputError("nothing like this", candidate.max_num_seqs, "")
        return race(candidate, best)

    done: list[int] = []
    with ProcessPool(2).lookahead(refuse, 36) as lookahead, pytest.raises(InputError, match="nothing like this"):
        search(space(), refuse, SETTINGS[0], lambda n, _planned, _best: done.append(n), lookahead=lookahead)
    assert done == [1, 2]
    assert not active_children()


def test_one_worker_and_one_candidate_start_no_process(race: CapacityRace) -> None:
    for pool, n in ((ProcessPool(1), 36), (ProcessPool(4), 1)):
        with pool.lookahead(race, n) as lookahead:
            assert isinstance(lookahead, SerialLookahead)
    with ProcessPool(4).lookahead(race, 36) as lookahead:
        lookahead.evaluate(space()[0], None, [])
        assert not active_children()
    with pytest.raises(InputError, match="at least one worker"):
        ProcessPool(0)


def test_usable_cores_are_those_of_the_affinity_and_the_control_group(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    limit = tmp_path / "cpu.max"
    monkeypatch.setattr(workers, "_CGROUP_CPU_LIMIT", limit)
    found = [usable_cores()]
    for text in ("max 100000\n", "150000 100000\n", "50000 100000\n", "nonsense"):
        limit.write_text(text)
        found.append(usable_cores())
    assert found == [8, 8, 2, 1, 8]


@pytest.mark.parametrize("n_workers", [1, 2, 3, 8])
@pytest.mark.parametrize("n", range(6))
def test_tasks_come_back_in_order(n: int, n_workers: int) -> None:
    done = ProcessPool(n_workers).map(lambda task: (task * task, os.getpid()), range(n))
    assert [square for square, _ in done] == [task * task for task in range(n)]
    pids = {pid for _, pid in done}
    assert min(n, n_workers, 2) <= len(pids) <= min(n, n_workers)
    assert os.getpid() in pids or n == 0
    assert not active_children()


def test_who_is_free_takes_the_next_task(tmp_path: Path) -> None:
    """This process is busy with its first task until the other one has done all the others."""
    here, n = os.getpid(), 6

    def work(task: int) -> int:
        if os.getpid() != here:
            (tmp_path / str(task)).touch()
            return os.getpid()
        end = time.monotonic() + 30.0
        while len(list(tmp_path.iterdir())) < n - 1 and time.monotonic() < end:
            time.sleep(0.001)
        return here

    done = ProcessPool(2).map(work, range(n))
    assert done.count(here) == 1
    assert len(set(done)) == 2


def test_a_worker_starts_no_workers() -> None:
    pool = ProcessPool(2)
    done = pool.map(lambda _: [os.getpid(), *pool.map(lambda _: os.getpid(), range(3))], range(2))
    assert len(set(done[0])) == 2  # in this process
    assert len(set(done[1])) == 1


@pytest.mark.parametrize("end", [lambda: os.kill(os.getpid(), signal.SIGKILL), lambda: [][0]])
def test_tasks_of_a_worker_that_is_lost_are_done_here(end: Callable[[], object]) -> None:
    here = os.getpid()

    def work(task: int) -> int:
        if os.getpid() != here:
            end()
        return 2 * task

    assert ProcessPool(3).map(work, range(5)) == [0, 2, 4, 6, 8]
    assert not active_children()


def test_a_task_that_fails_fails_here() -> None:
    def work(task: int) -> int:
        if task == 3:
            raise InputError("no such task", task, "2")
        return task

    with pytest.raises(InputError, match="no such task"):
        ProcessPool(2).map(work, range(5))
    assert not active_children()


def test_a_worker_that_is_killed_while_it_sends_a_result_is_not_waited_for(tmp_path: Path) -> None:
    here, sending = os.getpid(), tmp_path / "sending"

    def send_half(connection: Connection, buffer: bytes, *_: object) -> None:
        os.write(connection.fileno(), buffer[: len(buffer) // 2])
        sending.touch()
        time.sleep(300)

    def work(_: int) -> None:
        if os.getpid() != here:
            Connection._send = send_half  # type: ignore[attr-defined]
            return
        while not sending.exists():
            time.sleep(0.001)
        raise InputError("no such task", 0, "1")

    def too_late(*_: object) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, too_late)
    signal.alarm(60)
    try:
        with pytest.raises(InputError, match="no such task"):
            ProcessPool(2).map(work, range(2))
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
    assert not active_children()


def planned(folder: Path, n_workers: int) -> dict[str, Any]:
    """The answer of the command, without its seconds."""
    path = folder / f"{n_workers}.json"
    command = [*QUESTION, "--set", f"search.workers={n_workers}", "--json", str(path)]
    assert run_command("plan", app, command) == 0
    answer: dict[str, Any] = json.loads(path.read_text())
    del answer["search"]["seconds"]
    return answer


def test_plan_answers_alike_with_one_two_and_four_workers(tmp_path: Path) -> None:
    one = planned(tmp_path, 1)
    assert planned(tmp_path, 2) == one
    assert planned(tmp_path, 4) == one
    assert not active_children()


def children_of(pid: int) -> set[int]:
    text = Path(f"/proc/{pid}/task/{pid}/children").read_text() if sys.platform == "linux" else ""
    return {int(child) for child in text.split()}


def ended(pids: set[int], within_s: float = 120.0) -> bool:
    """Whether all these processes end in time."""
    until = time.monotonic() + within_s
    while time.monotonic() < until:
        if not any(Path(f"/proc/{pid}").exists() for pid in pids):
            return True
        time.sleep(0.05)
    return False


@pytest.mark.skipif(sys.platform != "linux", reason="children are found in /proc")
@pytest.mark.parametrize("sign", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_workers_end_with_the_process_that_started_them(sign: signal.Signals, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "planner.cli.main", "--model", "llama3.1-8b", "--hw", "h100x2", "--slo", "p99=2s"]
    study = str(tmp_path / "study.log")
    children: set[int] = set()
    until = time.monotonic() + 240
    with started([*command, "--set", "search.workers=3", "--study", study]) as process:
        while len(children) < 2 and process.poll() is None and time.monotonic() < until:
            time.sleep(0.05)
            children = children_of(process.pid)
        assert len(children) == 2
        if sign is signal.SIGKILL:
            os.kill(process.pid, sign)
        else:
            os.killpg(process.pid, sign)  # as a terminal does
            time.sleep(0.5)
            os.killpg(process.pid, sign)  # the measurement of the best so far is not waited for
        errors = process.communicate(timeout=240)[1]
        assert process.returncode == (-sign if sign is signal.SIGKILL else 130)
        assert "Traceback" not in errors
        if sign is not signal.SIGKILL:
            assert errors.startswith("plan: interrupted")
            assert errors.count("\n") == 1
        assert ended(children)


def test_an_interrupted_front_is_one_line(tmp_path: Path) -> None:
    study = tmp_path / "study.log"
    front = ["front", "--model", "llama3.1-8b", "--hw", "h100x2", "--set", "search.trials=500", "--study", str(study)]
    with started([sys.executable, "-m", "planner.cli.main", *front]) as process:
        until = time.monotonic() + 240
        while not (study.exists() and study.read_text().count("outcome") > 2) and time.monotonic() < until:
            time.sleep(0.05)
        os.killpg(process.pid, signal.SIGINT)
        printed, errors = process.communicate(timeout=240)
        assert process.returncode == 130
        assert errors == f"plan: interrupted: the front is that of the points simulated so far; {KEPT} {study}\n"
        assert printed


def test_an_interrupt_leaves_what_was_found(race: CapacityRace) -> None:
    def interrupted(c: Candidate, best: Outcome | None) -> Outcome:
        if c == space()[5]:
            os.kill(main, signal.SIGINT)
            time.sleep(600.0)
        return race(c, best)

    main = os.getpid()
    began = time.monotonic()
    gc.disable()  # an interrupt during a callback of the collector, of which Hypothesis has one, would be lost
    try:
        with ProcessPool(2).lookahead(interrupted, 36) as lookahead:
            found = search(space(), interrupted, SETTINGS[0], lookahead=lookahead)
    finally:
        gc.enable()
    assert found.interrupted
    assert 1 <= len(found.outcomes) <= 5
    assert time.monotonic() - began < 120.0
    assert not active_children()
