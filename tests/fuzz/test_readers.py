"""Hostile files and arguments: every reader returns or refuses in one line, soon, and in little memory.

The fast tests take a sample of what the slow ones take: 100,000 cases in this process, and 1,000 through the commands,
or as many as `--fuzz-cases` has.
Crashes that were found are in hostile.py, and are repeated first.
"""

from __future__ import annotations

import resource
import signal
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings

from catalogs.errors import InputError
from tests.fuzz.hostile import HOSTILE
from tests.fuzz.mutations import hostile_file
from tests.fuzz.readers import READERS, Reader

#: Seconds of CPU time that a reader may take, and seconds on the clock: other processes may slow it.
LONGEST_S = 5.0
LONGEST_ON_CLOCK_S = 60.0
#: Memory of this process after all cases, in KiB; other tests of the same process may have needed more.
MOST_KIB = 2**20
EXAMPLES = [(reader, name) for reader in READERS for name, _ in reader.contents()]
IDS = [name for _, name in EXAMPLES]


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    def stop(_signal: int, _frame: FrameType | None) -> None:
        raise TimeoutError(f"over {seconds:g} s")

    timers = ((signal.SIGPROF, signal.ITIMER_PROF, seconds), (signal.SIGALRM, signal.ITIMER_REAL, LONGEST_ON_CLOCK_S))
    before = [signal.signal(number, stop) for number, _, _ in timers]
    for _, timer, after_s in timers:
        signal.setitimer(timer, after_s)
    try:
        yield
    finally:
        for (number, timer, _), handler in zip(timers, before, strict=True):
            signal.setitimer(timer, 0)
            signal.signal(number, handler)


def reads_or_refuses(reader: Reader, path: Path) -> None:
    """Read a file; only InputError may be raised, with one printable line of a sensible length."""
    try:
        with time_limit(LONGEST_S), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            reader.read(path)
    except InputError as error:
        line = str(error)
        if not line.isprintable() or len(line) > 2000:
            raise AssertionError(f"not one short line: {line!r}") from None


def try_variants(reader: Reader, name: str, folder: Path, cases: int, start: int) -> None:
    """Try variants of one valid file; `start` selects them."""
    content = (Path(__file__).parent / "corpus" / name).read_bytes()
    path = folder / name

    @seed(start)
    @settings(
        max_examples=cases,
        deadline=None,
        database=None,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
    )
    @given(hostile_file(content))
    def attempt(hostile: bytes) -> None:
        path.write_bytes(hostile)
        reads_or_refuses(reader, path)

    attempt()


@pytest.mark.parametrize(("reader", "name"), EXAMPLES, ids=IDS)
def test_the_examples_are_valid(reader: Reader, name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_bytes((Path(__file__).parent / "corpus" / name).read_bytes())
    reader.read(path)


@pytest.mark.parametrize("reader", READERS, ids=lambda reader: reader.name)
def test_files_that_have_crashed_a_reader_are_refused(reader: Reader, tmp_path: Path) -> None:
    for name, content in HOSTILE.items():
        for suffix in sorted({Path(example).suffix for example in reader.examples}):
            path = tmp_path / f"{name}{suffix}"
            path.write_bytes(content)
            reads_or_refuses(reader, path)


@pytest.mark.parametrize("path", ["a" * 300, "a/" * 3000, "\0", "~no_such_user", ".", "/", "/dev/full/x", "\udcff"])
@pytest.mark.parametrize("reader", [r for r in READERS if r.name != "arguments"], ids=lambda reader: reader.name)
def test_names_that_no_file_has_are_refused(reader: Reader, path: str) -> None:
    with pytest.raises(InputError):
        reader.read(Path(path))


@pytest.mark.skipif(not Path("/dev/zero").exists(), reason="there is no /dev/zero on this system")
@pytest.mark.parametrize("name", ["deployment", "scenario", "answer", "owned"])
def test_an_endless_file_does_not_fill_the_memory(name: str) -> None:
    (reader,) = (r for r in READERS if r.name == name)
    with pytest.raises(InputError, match=r"larger than|JSON|YAML"):
        reader.read(Path("/dev/zero"))


@pytest.mark.parametrize(("reader", "name"), EXAMPLES, ids=IDS)
def test_a_sample_of_hostile_files(reader: Reader, name: str, tmp_path: Path) -> None:
    try_variants(reader, name, tmp_path, 25, start=1)


@pytest.mark.slow
@pytest.mark.parametrize(("reader", "name"), EXAMPLES, ids=IDS)
def test_hostile_files_in_great_number(
    reader: Reader, name: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    cases, start = request.config.getoption("--fuzz-cases"), request.config.getoption("--fuzz-seed")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    try_variants(reader, name, tmp_path, -(-cases // len(EXAMPLES)), start)
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert after == before or after < MOST_KIB
