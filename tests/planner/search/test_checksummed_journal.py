"""The file of a study survives: cut at any byte, changed at any byte, a full disk at any write, killed writers."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from optuna.storages.journal import JournalFileBackend

from catalogs.errors import InputError
from planner.problem.candidate import Candidate
from planner.search import checksummed_journal
from planner.search.candidate_tester import CandidateTester, Outcome
from planner.search.checksummed_journal import StudyFile
from planner.search.optuna_study import OUTCOME_KEY, SearchSettings
from planner.search.search import SearchResult, search
from tests.full_disk import files_end_at, small_disk
from tests.planner.queue_toy import QueueToy
from tests.planner.search.test_search import SIZES, SLOS, race_of, space
from tests.signalled import started

CANDIDATES = space()[:2]


class Counted:
    """An Assess that remembers what it evaluated."""

    def __init__(self) -> None:
        self.looked: list[Candidate] = []
        self._race = race_of(CandidateTester(QueueToy(0.4), SLOS, SIZES, 0, 0.5, None))

    def __call__(self, candidate: Candidate, best: Outcome | None) -> Outcome:
        self.looked.append(candidate)
        return self._race(candidate, best)


def run(path: Path | None) -> tuple[SearchResult, list[Candidate]]:
    """The result of a search, and what it evaluated itself."""
    counted = Counted()
    return search(CANDIDATES, counted, SearchSettings(100, 0, "s", path)), counted.looked


@pytest.fixture(scope="module")
def alone() -> list[Outcome]:
    return run(None)[0].outcomes


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The file of a finished search, of a process that has ended."""
    path = tmp_path_factory.mktemp("study") / "study.log"
    code = f"from tests.planner.search.test_checksummed_journal import *; run(Path({str(path)!r}))"
    subprocess.run([sys.executable, "-c", code], check=True, env=environment())
    return path.read_bytes()


@pytest.fixture
def path() -> Iterator[Path]:
    """A file in memory where there is such a folder: it is written thousands of times."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else None) as folder:
        yield Path(folder) / "study.log"


def environment() -> dict[str, str]:
    return os.environ | {"PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[3]), *sys.path])}


def opened(path: Path) -> tuple[list[dict[str, object]], list[str]]:
    """The records of a file, and the notices when it was opened."""
    notices: list[str] = []
    return StudyFile(path, notices.append).read_logs(0), notices


def n_finished(data: bytes) -> int:
    return sum(OUTCOME_KEY.encode() in line for line in data.splitlines(keepends=True) if line.endswith(b"\n"))


def test_a_file_cut_at_any_byte_keeps_every_complete_record(data: bytes, path: Path) -> None:
    lines = data.splitlines(keepends=True)
    path.write_bytes(data)
    records, _ = opened(path)
    assert len(records) == len(lines) > 15
    for n_bytes in range(len(data) + 1):
        path.write_bytes(data[:n_bytes])
        n = data[:n_bytes].count(b"\n")
        whole = b"".join(lines[:n])
        found, notices = opened(path)
        assert found == records[:n]
        assert path.read_bytes() == whole
        assert ["removed an incomplete record" in notice for notice in notices] == [True] * (len(whole) < n_bytes)


def test_a_search_continues_a_file_cut_anywhere_with_what_was_finished(
    data: bytes, alone: list[Outcome], path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ends = [m.end() for m in re.finditer(rb"\n", data)]
    for n_bytes in sorted({0, *ends, *(min(end + 60, len(data)) for end in ends)}):
        path.write_bytes(data[:n_bytes])
        done = n_finished(data[:n_bytes])
        capsys.readouterr()
        found, looked = run(path)
        assert found.outcomes == alone
        assert (found.n_resumed, len(looked)) == (done, len(CANDIDATES) - done)
        lines = capsys.readouterr().err.splitlines()
        assert len(lines) == (n_bytes not in (0, *ends))
        assert all(str(path) in line and "the results before it are kept" in line for line in lines)
        assert run(path) == (SearchResult(found.outcomes, found.best, n_resumed=len(CANDIDATES), n_searches=1), [])


def test_any_changed_byte_is_found(data: bytes, path: Path) -> None:
    """A damaged file is refused and left as it is; without its last line break, the last record is incomplete."""
    path.write_bytes(data)
    records, _ = opened(path)
    for i in range(len(data)):
        changed = data[:i] + bytes([data[i] ^ 1]) + data[i + 1 :]
        path.write_bytes(changed)
        if i == len(data) - 1:
            found, notices = opened(path)
            assert (found, len(notices)) == (records[:-1], 1)
        else:
            with pytest.raises(InputError, match=r"damaged at line \d+|not a journal"):
                opened(path)
            assert path.read_bytes() == changed


@pytest.mark.parametrize("change", ["without", "twice", "swapped", "joined"])
def test_lines_that_are_missing_repeated_or_joined_are_found(change: str, data: bytes, path: Path) -> None:
    lines = data.splitlines(keepends=True)
    for i in range(1, len(lines) - 2):
        here, after = lines[i], lines[i + 1]
        changed = {
            "without": [],
            "twice": [here, here],
            "swapped": [after, here],
            "joined": [here[: len(here) // 2], after],  # what a writer leaves that appends to half a record
        }[change]
        kept = lines[i + 1 :] if change in ("without", "twice") else lines[i + 2 :]
        path.write_bytes(b"".join([*lines[:i], *changed, *kept]))
        with pytest.raises(InputError, match="damaged at line") as error:
            opened(path)
        good = re.search(r"head -n (\d+) (\S+) > repaired.log", str(error.value))
        assert good is not None
        done = subprocess.run(["head", "-n", good[1], good[2]], check=True, capture_output=True)
        path.write_bytes(done.stdout)
        assert len(opened(path)[0]) == int(good[1]) >= i


def test_a_search_over_a_damaged_file_is_refused_in_one_line(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "study.log"
    path.write_bytes(data.replace(b'\\"score\\": -', b'\\"score\\": -9', 1))
    before = path.read_bytes()
    with pytest.raises(InputError, match="damaged at line"):
        run(path)
    assert path.read_bytes() == before


def check_full(path: Path, alone: list[Outcome]) -> None:
    """A search over a file that could not be written further keeps what it has, and is continued later.

    A candidate that this process had begun and could not release on the full disk is evaluated last.
    """
    done = n_finished(path.read_bytes())
    found, looked = run(path)
    assert {o.candidate for o in found.outcomes} == {o.candidate for o in alone}
    assert found.best is not None
    assert found.best.candidate == min((o for o in alone if o.score is not None), key=lambda o: o.score).candidate
    assert (found.n_resumed, len(looked)) == (done, len(CANDIDATES) - done)


def test_a_disk_that_is_full_at_any_write_loses_nothing(data: bytes, alone: list[Outcome], tmp_path: Path) -> None:
    ends = [m.end() for m in re.finditer(rb"\n", data)]
    inside = [len(data) - 200]  # the file of another process may be a few bytes shorter
    for n_bytes in sorted({0, *inside, *(end - 1 for end in ends[:-1]), *(end - 40 for end in ends[:-1])}):
        path = tmp_path / f"{n_bytes}.log"
        with files_end_at(n_bytes), pytest.raises(InputError, match=r"cannot be written \(File too large\)") as error:
            run(path)
        assert "keeps the results so far" in str(error.value)
        left = path.read_bytes()
        assert len(left) <= n_bytes
        assert not left or left.endswith(b"\n")  # what was written of a record is removed
        check_full(path, alone)


def test_a_file_system_that_is_full_loses_nothing(alone: list[Outcome], tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 65536) as disk:
        path, free = disk / "study.log", os.statvfs(disk)
        (disk / "other").write_bytes(b"x" * (free.f_bavail * free.f_bsize - 4096))
        with pytest.raises(InputError, match="No space left on device"):
            run(path)
        assert path.read_bytes().endswith(b"\n")
        (disk / "other").unlink()
        check_full(path, alone)


WRITER = """
import json, sys
from pathlib import Path
from planner.search.checksummed_journal import StudyFile
file, n = StudyFile(Path(sys.argv[1]), sys.stderr.write), 0
while True:
    file.append_logs([{"op_code": 8, "by": sys.argv[2], "n": n, "fill": "x" * 5000}])
    print(n, flush=True)
    n += 1
"""


def test_killed_writers_lose_nothing_and_join_nothing(tmp_path: Path) -> None:
    path, done = tmp_path / "study.log", {}
    for round_ in range(2):
        names = [f"{round_}.{k}" for k in range(3)]
        outputs = [tmp_path / name for name in names]
        writers = []
        for name, output in zip(names, outputs, strict=True):
            with output.open("wb") as stdout:
                command = [sys.executable, "-c", WRITER, str(path), name]
                writers.append(subprocess.Popen(command, stdout=stdout))
        until = time.monotonic() + 240
        while any(output.read_bytes().count(b"\n") < 20 for output in outputs) and time.monotonic() < until:
            time.sleep(0.01)
        for writer in writers:
            writer.kill()
            writer.wait()
        done |= {name: output.read_bytes().count(b"\n") for name, output in zip(names, outputs, strict=True)}
    records, _ = opened(path)
    for name, n in done.items():
        found = [r["n"] for r in records if r["by"] == name]
        assert found == list(range(len(found)))
        assert n <= len(found) <= n + 1  # the last may have been written and not reported


HOLDER = """
import fcntl, sys, time
with open(sys.argv[1], "r+b") as file:
    fcntl.flock(file, fcntl.LOCK_EX)
    print("locked", flush=True)
    time.sleep(600)
"""


@contextmanager
def locked_by_another(path: Path) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen([sys.executable, "-c", HOLDER, str(path)], stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "locked\n"
        try:
            yield holder
        finally:
            holder.kill()


def test_a_process_killed_while_it_writes_stops_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, alone: list[Outcome]
) -> None:
    monkeypatch.chdir(tmp_path)
    path = Path("folder/study.log")  # relative, in another folder
    run(path)
    monkeypatch.setattr(checksummed_journal, "LOCK_WAIT_S", 600.0)
    with locked_by_another(path) as holder:
        holder.send_signal(signal.SIGKILL)
        holder.wait()
        began = time.monotonic()
        assert run(path)[0].outcomes == alone
        assert time.monotonic() - began < 120.0


def test_a_process_stopped_while_it_writes_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "study.log"
    run(path)
    monkeypatch.setattr(checksummed_journal, "LOCK_WAIT_S", 0.1)
    with locked_by_another(path), pytest.raises(InputError, match="another process has locked the study file"):
        run(path)


def test_a_file_of_optuna_is_continued_with_checksums(tmp_path: Path) -> None:
    path, first = tmp_path / "study.log", {"op_code": 8, "n": 0}
    backend = JournalFileBackend(str(path))
    backend.append_logs([first, first | {"n": 1}])
    StudyFile(path, print).append_logs([first | {"n": 2}])
    records, notices = opened(path)
    assert ([r["n"] for r in records], notices) == ([0, 1, 2], [])
    assert len(list(backend.read_logs(0))) == 3  # Optuna's tools can read it
    path.write_text(path.read_text().replace('"n":1', '"n":7'))
    with pytest.raises(InputError, match="damaged at line 3"):
        opened(path)
    backend.append_logs([first])
    with pytest.raises(InputError, match="damaged at line"):
        opened(path)


@pytest.mark.parametrize("text", ["notes without a line break", "model: llama\nhw: h100\n", '{"op": 1}', "{}\n", "\n"])
def test_a_file_of_something_else_is_never_changed(text: str, tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text(text)
    before = path.stat()
    with pytest.raises(InputError, match="not a journal of earlier searches"):
        run(path)
    assert path.read_text() == text
    assert path.stat().st_mtime_ns == before.st_mtime_ns


def test_what_is_not_a_file_is_refused(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for path in (pipe, Path("/dev/null"), tmp_path):
        with pytest.raises(InputError, match="not a regular file"):
            run(path)


def test_a_file_that_is_replaced_during_the_search_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "study.log"
    file = StudyFile(path, print)
    file.append_logs([{"op_code": 8, "n": n} for n in range(3)])
    path.write_bytes(b"")
    with pytest.raises(InputError, match="replaced or cut"):
        file.append_logs([{"op_code": 8, "n": 3}])
    with pytest.raises(InputError, match="replaced or cut"):
        file.read_logs(0)


INTERRUPTED = """
import sys
from pathlib import Path
from catalogs.ui.entry_point import run_command
from tests.planner.search.test_checksummed_journal import run

def command(args, **_):
    run(Path(args[0]) / "0.log")
    print("ready", flush=True)
    for n in range(1, 100000):
        run(Path(args[0]) / f"{n}.log")

sys.exit(run_command("plan", command, sys.argv[1:]))
"""


def test_an_interrupt_at_any_moment_leaves_a_sound_file(tmp_path: Path, alone: list[Outcome]) -> None:
    """A search returns what it has after Ctrl-C: the loop goes on until one arrives outside of a search."""
    command = [sys.executable, "-c", INTERRUPTED, str(tmp_path)]
    with started(command, env=environment()) as process:
        process.stdout.readline()
        for k in range(60):
            time.sleep(0.011 + k * 0.0007)
            process.send_signal((signal.SIGINT, signal.SIGTERM)[k % 2])  # nothing once the process has ended
        process.kill()
        _, errors = process.communicate(timeout=120)
    assert "Traceback" not in errors
    paths = sorted(tmp_path.glob("*.log"))
    assert paths
    for path in paths:
        assert run(path)[0].outcomes == alone
        assert all(json.loads(line)["op_code"] in range(10) for line in path.read_text().splitlines())
