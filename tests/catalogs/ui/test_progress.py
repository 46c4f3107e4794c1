"""Progress where stderr is not a terminal: plain lines of long work, and nothing of short work."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from threading import Thread
from typing import Any

import pytest

from catalogs.ui import progress
from catalogs.ui.progress import PlainLines, counted_progress, progress_bar, status_line


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "LINE_EVERY_S", 0.01)


@pytest.fixture
def lines(capsys: pytest.CaptureFixture[str]) -> Callable[[], list[str]]:
    """Return the next lines on stderr, for which it waits some seconds at most."""

    def waited() -> list[str]:
        ends_s, found = time.monotonic() + 10.0, ""
        while not found and time.monotonic() < ends_s:
            time.sleep(0.01)
            found = capsys.readouterr().err
        return found.splitlines()

    return waited


@pytest.mark.usefixtures("often")
@pytest.mark.parametrize(
    ("begun", "arguments", "said"),
    [
        (status_line, ("reading",), "reading (0 s)"),
        (progress_bar, ("the first",), "work: 1 simulated, the first (0 s)"),
        (counted_progress, (3, 40, "best \x1b[1mtwo\n"), "work: 3 of 40, best \\x1b[1mtwo\\n (0 s)"),
    ],
)
def test_long_work_prints_plain_lines(
    begun: Callable[[str], AbstractContextManager[Callable[..., None]]],
    arguments: tuple[Any, ...],
    said: str,
    lines: Callable[[], list[str]],
) -> None:
    with begun("work") as tell:
        tell(*arguments)
        lines()  # the first may be older than the text
        shown = lines()
    assert set(shown) == {said}
    assert all(line.isprintable() for line in shown)


@pytest.mark.usefixtures("often")
def test_work_inside_of_other_work_replaces_its_lines_for_its_time(lines: Callable[[], list[str]]) -> None:
    with PlainLines("outer"):
        assert lines()[0].startswith("outer")
        with PlainLines("inner"):
            lines()
            assert {line.partition(" ")[0] for line in lines()} == {"inner"}
        lines()
        assert {line.partition(" ")[0] for line in lines()} == {"outer"}


def test_short_work_is_silent_and_nothing_follows_its_end(capsys: pytest.CaptureFixture[str]) -> None:
    with counted_progress("search") as tell:
        tell(1, 2, "text")
    assert capsys.readouterr().err == ""


@pytest.mark.usefixtures("often")
def test_a_closed_stderr_does_not_end_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", open("/dev/full", "w"))  # noqa: SIM115
    with PlainLines("work"):
        time.sleep(0.05)


def test_minutes_are_stated_from_the_first_on() -> None:
    assert [progress._elapsed(value_s) for value_s in (45.2, 75.0, 120.0)] == ["45 s", "1 min 15 s", "2 min 0 s"]


def test_work_goes_on_where_there_is_no_memory_for_another_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """A job of the server with little memory ended with a defect instead of its limit."""

    def start(_: Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(Thread, "start", start)
    with PlainLines("outer") as outer, PlainLines("inner"):
        outer.text = "1 simulated"
    assert not PlainLines._shown
