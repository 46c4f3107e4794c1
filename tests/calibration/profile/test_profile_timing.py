"""Timing that can be trusted: medians with intervals, outliers marked, contention seen."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from calibration.profile.local_run import budget_s
from calibration.profile.machine.contention import CONTENDED, ContentionSample, busy_s, others_share, usage
from calibration.profile.machine.device import ProfiledDevice, last_level_cache_bytes
from calibration.profile.machine.energy import _rapl
from calibration.profile.machine.timing import FEWEST, Work, measure, median_ci, on_cpu, summary
from catalogs.errors import InputError


def test_interval_of_the_median_covers_it_as_often_as_it_says() -> None:
    draw = np.random.default_rng(0)
    hits = 0
    for _ in range(400):
        middle, width = median_ci(draw.normal(1.0, 0.05, 60).tolist())
        hits += abs(middle - 1.0) <= width * middle
    assert 0.9 < hits / 400 <= 1.0
    assert median_ci([1.0] * 10) == (1.0, 0.0)
    assert median_ci(draw.normal(1.0, 0.05, 250).tolist())[1] < median_ci(draw.normal(1.0, 0.05, 20).tolist())[1]


def test_outliers_are_kept_and_marked() -> None:
    found = summary([1.0, 1.01, 0.99, 1.0, 5.0, 1.0, 1.02], [], "wall")
    assert found.seconds == 1.0
    assert found.outliers == (4,)
    assert len(found.samples_s) == 7


def test_preempted_samples_do_not_count_while_enough_are_left() -> None:
    clean, hit = [1.0, 1.01, 0.99, 1.0, 1.0], [8.0, 8.1, 8.0, 8.2, 8.0, 8.0]
    assert summary(clean + hit, list(range(5, 11)), "wall").seconds == 1.0
    assert summary([3.0, 8.0, 8.1], [0, 1, 2], "wall").seconds == 3.0  # the least that was seen


def test_wall_time_of_a_known_wait_and_rotation_of_inputs() -> None:
    seen: list[int] = []

    def call(i: int) -> None:
        seen.append(i)
        time.sleep(0.002)

    found = on_cpu(Work([lambda i=i: call(i) for i in range(3)], "sleep"), 0.2)  # type: ignore[misc]
    assert 0.002 <= found.seconds < 0.02  # one wait, however late a busy machine wakes it
    assert len(found.samples_s) >= FEWEST
    assert seen[:6] == [0, 1, 2, 0, 1, 2]


def test_repeats_end_with_the_time() -> None:
    start = time.perf_counter()
    found = on_cpu(Work([lambda: time.sleep(float(np.random.default_rng().uniform(0.001, 0.02)))], "noise"), 0.15)
    assert time.perf_counter() - start < 30.0
    assert found.ci_fraction > 0.02


def test_planted_contention_is_seen() -> None:
    """A busy neighbour on every core this process may use; and an invented quiet machine."""
    n = len(os.sched_getaffinity(0))
    others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(n)]
    try:
        time.sleep(0.3)
        before = usage()
        time.sleep(0.4)
        share = others_share(before, usage(), n)
    finally:
        for p in others:
            p.kill()
            p.wait()
    assert share > 0.5
    quiet = ContentionSample(0.0, 10.0, 5.0), ContentionSample(1.0, 11.0, 6.0)
    assert others_share(*quiet, 2) == 0.0 < CONTENDED
    stolen = ContentionSample(1.0, 11.4, 6.0)
    assert others_share(quiet[0], stolen, 2) == pytest.approx(0.2)
    assert others_share(quiet[0], ContentionSample(0.001, 10.0, 5.0), 2) == -1.0  # too short to tell


def test_busy_time_counts_stolen_but_not_idle_time(tmp_path: Path) -> None:
    stat = tmp_path / "stat"
    stat.write_text("cpu  100 10 20 9999 9999 3 4 50 0 0\n")
    assert busy_s(stat) == pytest.approx(187 / os.sysconf("SC_CLK_TCK"))
    assert busy_s(tmp_path / "none") == 0.0


def test_cache_size_is_the_largest_level(tmp_path: Path) -> None:
    for i, size in enumerate(("32K", "1024K", "32768K")):
        (tmp_path / f"index{i}").mkdir()
        (tmp_path / f"index{i}" / "size").write_text(size + "\n")
    assert last_level_cache_bytes(str(tmp_path)) == 32 * 2**20


def test_energy_counter_is_read_or_its_absence_said_once(tmp_path: Path) -> None:
    assert "not readable" in _rapl(tmp_path).unavailable_reason
    (tmp_path / "intel-rapl:0").mkdir()
    (tmp_path / "intel-rapl:0" / "energy_uj").write_text("2500000\n")
    meter = _rapl(tmp_path)
    assert meter.unavailable_reason == ""
    assert meter.joules is not None
    assert meter.joules() == 2.5


@pytest.mark.parametrize(("text", "seconds"), [("5m", 300.0), ("90s", 90.0), ("1h", 3600.0), ("45", 45.0)])
def test_budgets(text: str, seconds: float) -> None:
    assert budget_s(text) == seconds


@pytest.mark.parametrize("text", ["", "0", "-5m", "5 days", "m"])
def test_bad_budgets(text: str) -> None:
    with pytest.raises(InputError, match="a budget is a positive time"):
        budget_s(text)


class InventedCuda:
    """Enough of torch.cuda to run the event and graph path: every call to the kernel advances a device clock."""

    def __init__(self, capturable: bool = True) -> None:
        self.now_ms = 0.0
        self.capturing: list[float] | None = None
        self.capturable = capturable
        cuda = self

        class Event:
            def __init__(self, enable_timing: bool = False) -> None:
                assert enable_timing

            def record(self) -> None:
                self.at = cuda.now_ms

            def synchronize(self) -> None: ...

            def elapsed_time(self, other: Event) -> float:
                return other.at - self.at

        class CUDAGraph:
            def replay(self) -> None:
                cuda.now_ms += sum(self.held)

        class Stream:
            def wait_stream(self, _other: object) -> None: ...

        self.Event, self.CUDAGraph, self.Stream = Event, CUDAGraph, Stream
        self.current_stream = Stream
        self.cuda = self

    def kernel(self, ms: float) -> None:
        if self.capturing is not None:
            if not self.capturable:
                raise RuntimeError("operation not permitted when stream is capturing")
            self.capturing.append(ms)
        else:
            self.now_ms += ms + 0.005  # an eager launch costs 5 us on this device

    def synchronize(self) -> None: ...

    @contextlib.contextmanager
    def stream(self, _stream: object) -> Iterator[None]:
        yield

    @contextlib.contextmanager
    def graph(self, graph: object) -> Iterator[None]:
        self.capturing = []
        try:
            yield
            graph.held = self.capturing  # type: ignore[attr-defined]
        finally:
            self.capturing = None


@pytest.mark.parametrize(("capturable", "microseconds"), [(True, 15.0), (False, 20.0)])
def test_graph_replay_and_its_eager_fallback(capturable: bool, microseconds: float) -> None:
    torch = InventedCuda(capturable)
    device = ProfiledDevice("cuda", ("bf16",), 0.0, 1e9, 1, (0,), torch)
    work = Work([lambda: torch.kernel(0.010), lambda: torch.kernel(0.020)], "two inputs")
    found = measure(work, device, 0.2)
    assert found.seconds * 1e6 == pytest.approx(microseconds, rel=0.02)
    assert ("graph" in found.mode) == capturable
    assert found.ci_fraction < 0.02
    assert found.replay_s >= 0.7e-3
