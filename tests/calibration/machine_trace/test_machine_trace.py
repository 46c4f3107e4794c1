"""Traces of a machine: readings, rates, disturbances that were planted, advice, and files that are read back."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from calibration.cli.main import app
from calibration.machine_trace.advice import PageFaultCosts, advice, page_fault_costs
from calibration.machine_trace.disturbances import CAUSES, cause_of, disturbances, while_slow
from calibration.machine_trace.folder import check_new_trace, document, read_trace, write_trace
from calibration.machine_trace.perfetto import events, request_events
from calibration.machine_trace.readings import BusiestProcessReader, MachineReader, ProcessReader, quantity
from calibration.machine_trace.sampler import (
    ApiProcesses,
    MachineSampler,
    MachineTrace,
    Phase,
    family_of,
    listeners,
    pids_of_port,
    profile_phases,
)
from calibration.report.machine_page import write_trace_and_page
from catalogs.errors import InputError
from catalogs.hardware.specs import HostCopyRate
from catalogs.ui.entry_point import run_command

COSTS = PageFaultCosts(1e-6, 50e-6)

N = 120


def trace_of(**signals: Any) -> MachineTrace:
    """Return a trace with a sample each half second whose signals show these values, shape (N,) each."""
    at_s = 0.5 * np.arange(N + 1)
    values = {}
    for name, shown in ((name.replace("__", "."), np.broadcast_to(v, N)) for name, v in signals.items()):
        meaning = quantity(name)
        raw = shown / meaning.scale
        values[name] = np.r_[0.0, np.cumsum(raw * 0.5)] if meaning.counter else np.r_[raw[0], raw]
    return MachineTrace(at_s, values)


def pulse(low: float, high: float, first: int, last: int) -> np.ndarray:
    shown = np.full(N, low)
    shown[first : last + 1] = high
    return shown


def test_rates_are_increases_over_time() -> None:
    trace = MachineTrace(
        np.array([0.0, 1.0, 3.0, 4.0]),
        {
            "faults.all": np.array([10.0, 20.0, 60.0, 5.0]),
            "swap.in": np.array([0.0, 1.0, 1.0, 1.0]),
            "memory.available": np.array([4.0, 2.0, 2.0, np.nan]),
        },
    )
    assert trace.signal("faults.all")[:2].tolist() == [10.0, 20.0]
    assert np.isnan(trace.signal("faults.all")[2])  # a counter that falls was reset
    assert trace.signal("swap.in").tolist() == [os.sysconf("SC_PAGE_SIZE"), 0.0, 0.0]
    assert trace.signal("memory.available")[:2].tolist() == [3.0, 2.0]
    with pytest.raises(KeyError):
        quantity("no.such.signal")


def test_the_machine_is_read_from_the_files_of_the_kernel(tmp_path: Path) -> None:
    proc, sys_ = tmp_path / "proc", tmp_path / "sys"
    texts = {
        "stat": "cpu  100 0 50 1000 20 0 0 30 0 0\ncpu0 1 1 1 1 1 1 1 1 0 0\nctxt 77\n",
        "vmstat": "pgfault 5\npgmajfault 2\npswpin 1\nnuma_hit 9\nother 3\n",
        "meminfo": "MemTotal: 100 kB\nMemAvailable:  40 kB\nHugePages_Free:  3\n",
        "pressure/memory": "some avg10=0.00 avg60=0.00 avg300=0.00 total=250000\nfull avg10=0 total=9\n",
        "diskstats": "8 0 sda 1 0 10 0 1 0 20 0 0 400 0\n8 1 sda1 1 0 9 0 1 0 9 0 0 9 0\n7 0 ram0 1 0 1 0 1 0 1 0 0\n",
        "net/dev": "a\nb\n lo: 5 0 0 0 0 0 0 0 5 0\neth0: 7 0 0 0 0 0 0 0 8 0\nifb0: 0 0 0 0 0 0 0 0 0 0\n",
    }
    for name, text in texts.items():
        (proc / name).parent.mkdir(parents=True, exist_ok=True)
        (proc / name).write_text(text)
    (sys_ / "devices/system/cpu/cpu0/cpufreq").mkdir(parents=True)
    (sys_ / "devices/system/cpu/cpu0/cpufreq/scaling_cur_freq").write_text("2500000\n")
    reader = MachineReader(proc, sys_)
    reader.open()
    tick_s = 1.0 / os.sysconf("SC_CLK_TCK")
    found = reader.read()
    assert (
        found.items()
        >= {
            "cpu.busy": pytest.approx(180 * tick_s),
            "cpu.iowait": pytest.approx(20 * tick_s),
            "cpu.steal": pytest.approx(30 * tick_s),
            "cpu.switches": 77.0,
            "faults.all": 5.0,
            "faults.major": 2.0,
            "memory.available": 40 * 1024.0,
            "hugepages.free": 3.0,
            "psi.memory": 250000.0,
            "disk.sda.read": 10 * 512.0,
            "disk.sda.written": 20 * 512.0,
            "disk.sda.busy": 400.0,
            "net.eth0.received": 7.0,
            "net.eth0.sent": 8.0,
            "clock.mean": 2500.0,
        }.items()
    )
    assert "disk.sda1.read" not in found
    assert "net.ifb0.sent" not in found
    assert "numa.hits" not in found
    assert {"power", "numa"} <= set(reader.not_measured)
    assert "clock" not in reader.not_measured
    assert all(quantity(name).words for name in found)


def test_processes_that_end_keep_what_they_did() -> None:
    reader = ProcessReader()
    with subprocess.Popen([sys.executable, "-c", "sum(range(3_000_000)); input()"], stdin=subprocess.PIPE) as process:
        reader.read([process.pid])
        process.communicate(b"\n")
        between = reader.read([process.pid, os.getpid()])
    after = reader.read([os.getpid()])
    assert after["engine.cpu"] >= between["engine.cpu"] >= 0.0
    assert after["engine.memory"] > 0
    assert set(after) <= {name for name in after if quantity(name)}


def test_the_processes_behind_a_port_are_found() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        found = pids_of_port(port)
        assert os.getpid() in found
        words = ["VLLM::EngineCore", "-c", "input()"]
        engine = subprocess.Popen(words, executable=sys.executable, pass_fds=(server.fileno(),), stdin=subprocess.PIPE)
        try:
            assert {os.getpid(), engine.pid} <= listeners(port)
            assert ApiProcesses(lambda: port)() == {os.getpid()}  # the engine holds the socket and does not serve it
        finally:
            engine.communicate(b"\n")
    assert ApiProcesses(lambda: None)() == frozenset()
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        assert child.pid in family_of([os.getpid()])
    finally:
        child.communicate(b"\n")


EVERY_CAUSE = {
    "others.cpu": (0.1, 1.5),
    "engine.run_queue": (0.05, 0.9),
    "psi.memory": (0.0, 0.4),
    "memory.available": (20e9, 4e9),
    "faults.major": (0.0, 500.0),
    "disk.sda.busy": (0.01, 0.9),
    "psi.io": (0.0, 0.5),
    "net.eth0.received": (1e3, 90e6),
    "clock.mean": (3000.0, 1800.0),
}


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(sorted(EVERY_CAUSE)), st.integers(0, 80), st.integers(3, 35), st.integers(0, 99))
def test_a_disturbance_is_found_in_its_lane_and_at_its_time(name: str, first: int, length: int, seed: int) -> None:
    low, high = EVERY_CAUSE[name]
    noise = np.random.default_rng(seed).uniform(0.98, 1.02, N)
    last = first + length - 1
    found = disturbances(trace_of(**{name.replace(".", "__"): pulse(low, high, first, last) * noise}))
    assert [d.signal for d in found] == [name]
    gauge = not quantity(name).counter  # the mean of two samples, of which one is disturbed, may be one as well
    assert 0.5 * (first - gauge) <= found[0].start_s <= 0.5 * (first + gauge)
    assert 0.5 * (last + 1 - gauge) <= found[0].end_s <= 0.5 * (last + 1 + gauge)
    assert found[0].extreme == pytest.approx(high, rel=0.05)


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(sorted(EVERY_CAUSE)), st.integers(0, 999))
def test_noise_is_no_disturbance(name: str, seed: int) -> None:
    level = EVERY_CAUSE[name][0]
    noise = np.random.default_rng(seed).uniform(0.8, 1.2, N) if name != "clock.mean" else np.ones(N)
    assert disturbances(trace_of(**{name.replace(".", "__"): level * noise})) == []


def test_every_cause_is_of_a_lane_that_exists() -> None:
    import re

    assert all(any(re.fullmatch(pattern, name) for name in (*EVERY_CAUSE, *OTHERS)) for pattern in CAUSES)
    assert cause_of("engine.threads") is None


OTHERS = ("cpu.steal", "swap.in", "reclaim.direct", "disk.sda.read", "cpu.iowait", "numa.misses", "gpu.0.clock")


def test_what_the_machine_did_while_the_slowest_requests_were_served() -> None:
    trace = trace_of(others__cpu=pulse(0.1, 1.6, 40, 49), psi__memory=0.0, cpu__switches=100.0)
    requests = [{"start_s": float(t), "end_s": t + 0.9, "latency_s": 0.9} for t in range(60)]
    requests[22] = {"start_s": 20.0, "end_s": 24.0, "latency_s": 4.0}
    signals, limit_s = while_slow(trace, requests)
    assert 0.9 < (limit_s or 0.0) <= 4.0
    assert signals[0].signal == "others.cpu"
    assert signals[0].slow > 1.2 > signals[0].rest
    assert {signal.signal: signal.effect for signal in signals}["cpu.switches"] == pytest.approx(0.0, abs=1e-6)
    assert while_slow(trace, []) == ([], None)


def test_advice_is_ranked_by_the_gain_that_the_lanes_allow_for() -> None:
    signals = {"engine__cpu": 0.9, "engine__run_queue": 0.1, "others__cpu": 1.0, "psi__memory": 0.3}
    found = advice(trace_of(**signals, engine__faults=1000.0), COSTS)
    gains = {each.change.split(" ")[0]: each.gain for each in found}
    assert gains["free"] == pytest.approx(0.3)
    assert gains["pin"] == pytest.approx(0.1)
    assert "use" not in gains  # 1,000 faults of a microsecond are a thousandth of the time
    assert [each.gain for each in found] == sorted((each.gain for each in found), reverse=True)
    many = advice(trace_of(engine__cpu=1.0, engine__faults=2e5), COSTS)
    assert many[0].change.startswith("use huge pages")
    assert many[0].gain == pytest.approx(2e5 * (1e-6 - 50e-6 / 512), rel=0.01)
    own = advice(trace_of(engine__cpu=0.5, engine__run_queue=0.5, others__cpu=0.0), COSTS)
    assert own[0].change.startswith("run fewer threads")
    assert advice(trace_of(engine__cpu=1.0, others__cpu=0.0), COSTS) == []
    assert page_fault_costs().small_s > 0


def test_api_processes_are_advised_where_one_uses_its_whole_core() -> None:
    shown = {"engine__cpu": 2.0, "engine__api_busiest": pulse(0.5, 0.98, 0, N // 2 - 1)}
    (found,) = advice(trace_of(**shown), COSTS)
    assert found.change.startswith("run more API processes")
    assert found.gain == pytest.approx(0.25)  # half of the half in which it is full
    assert "50.0 %" in found.because
    # a server that is one process has no API process to add
    assert advice(trace_of(engine__cpu=0.98, engine__api_busiest=0.98), COSTS) == []


def test_larger_pages_are_advised_where_copies_were_measured_to_be_faster_with_them() -> None:
    """5 GB/s to the device take half of the time at 10 GB/s and a quarter of it at 20 GB/s.

    The other way has the same rate with both sizes. The second accelerator copies less.
    """
    rates = [HostCopyRate("4KB", True, 10e9), HostCopyRate("2MB", True, 20e9), HostCopyRate("1GB", True, None, "none")]
    rates += [HostCopyRate(pages, False, 10e9) for pages in ("4KB", "2MB")]
    shown = {"engine__cpu": 1.0, "others__cpu": 0.0, "gpu__0__sent": 4e9, "gpu__1__received": 1e9}
    (found,) = advice(trace_of(**shown, gpu__0__received=5e9), COSTS, rates)
    assert "2MB" in found.change
    assert found.gain == pytest.approx(0.25)
    # a profiler's trace tells copies from other traffic
    (copies,) = advice(trace_of(**shown, gpu__0__copied__to_device=2e9, gpu__0__copied__to_host=0.0), COSTS, rates)
    assert copies.gain == pytest.approx(0.1)
    assert advice(trace_of(**shown), COSTS, [rates[0]]) == []
    assert advice(trace_of(**shown), COSTS) == []


def test_the_busiest_of_several_processes_is_read(tmp_path: Path) -> None:
    def at(**ticks: int) -> dict[str, float]:
        for pid, n in ticks.items():
            folder = tmp_path / pid.removeprefix("p")
            folder.mkdir(exist_ok=True)
            (folder / "stat").write_text(f"{pid[1:]} (a name) S {'0 ' * 10}{n} 0 0 0\n")
        return reader.read([1, 2, 3])

    reader, tick_s = BusiestProcessReader(tmp_path), 1.0 / os.sysconf("SC_CLK_TCK")
    assert at(p1=100, p2=500)["engine.api_busiest"] == 0.0
    assert at(p1=150, p2=510)["engine.api_busiest"] == pytest.approx(50 * tick_s)
    assert at(p1=160, p2=540)["engine.api_busiest"] == pytest.approx(80 * tick_s)
    assert reader.read([]) == {}


def test_the_time_until_the_first_token_is_a_phase_of_its_own(tmp_path: Path) -> None:
    trace = trace_of(others__cpu=pulse(0.1, 1.6, 40, 43))
    rows = [{"start_s": float(t), "end_s": t + 5.0, "first_token_s": t + 0.5, "latency_s": 5.0} for t in range(50)]
    rows[20] |= {"first_token_s": 22.0, "end_s": 25.0}
    write_trace(tmp_path / "t", trace, rows)
    found = document(*read_trace(tmp_path / "t"), COSTS)
    assert found["first_token_slow_from_s"] == pytest.approx(0.5, abs=1.0)
    assert found["while_first_token_slow"][0]["signal"] == "others.cpu"
    slices = [e for e in request_events(rows) if e["ph"] == "X"]
    phases = [e for e in slices if e["name"] == "until the first token"]
    assert [e["dur"] for e in phases].count(0.5e6) == 49
    assert len(slices) == 3 * len(rows)
    assert document(trace, [{"start_s": 0.0, "end_s": 1.0, "latency_s": 1.0}], COSTS)["while_first_token_slow"] == []


def test_the_families_of_a_profile_are_phases() -> None:
    rows = [
        {"family": name, "at": 1000.0 + at, "elapsed_s": 1.0}
        for name, at in (("gemm", -50.0), ("peak", 1.0), ("gemm", 2.5), ("gemm", 4.0), ("host", 6.0))
    ]
    found = [(p.name, p.start_s, p.end_s) for p in profile_phases(rows, 1000.0)]
    assert found == [("peak", 1.0, 2.0), ("gemm", 2.5, 5.0), ("host", 6.0, 7.0)]


def test_a_trace_with_its_page_is_written_once(tmp_path: Path) -> None:
    trace, folder = trace_of(others__cpu=pulse(0.1, 1.6, 40, 43)), tmp_path / "t"
    rows = [{"start_s": float(t), "end_s": t + 5.0, "first_token_s": t + 0.5, "latency_s": 5.0} for t in range(50)]
    check_new_trace(folder)
    write_trace_and_page(folder, trace, rows)
    assert "During the slowest 1 % of first tokens" in (folder / "machine.html").read_text()
    with pytest.raises(InputError, match="holds none"):
        check_new_trace(folder)


def test_a_trace_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    trace = trace_of(others__cpu=pulse(0.1, 1.6, 40, 49), disk__sda__busy=0.1)
    trace = MachineTrace(trace.at_s, trace.values, {"gpu": "none"}, (Phase("probe", 1.0, 2.0),), 0.01, 1.7e9)
    requests = [{"start_s": 1.0, "end_s": 2.0, "latency_s": 1.0}]
    write_trace(tmp_path / "t", trace, requests)
    again, read = read_trace(tmp_path / "t")
    assert (again.not_measured, again.phases, again.sampler_cores) == (trace.not_measured, trace.phases, 0.01)
    assert again.began_unix_s == 1.7e9
    assert read == requests
    assert {n: v.tolist() for n, v in again.values.items()} == {n: v.tolist() for n, v in trace.values.items()}
    assert document(again, read, COSTS) == document(trace, requests, COSTS)
    (tmp_path / "t/machine.parquet").write_bytes(b"PAR1")
    with pytest.raises(InputError, match="not a trace"):
        read_trace(tmp_path / "t")
    with pytest.raises(InputError, match="the folder of a trace"):
        read_trace(tmp_path)


def test_the_lanes_lie_under_the_requests_in_perfetto() -> None:
    trace = trace_of(others__cpu=pulse(0.1, 1.6, 40, 49))
    found = list(events(trace, shift_s=10.0))
    times = [event["ts"] for event in found if "ts" in event]
    assert times == sorted(times)
    assert min(times) == 10.0e6
    counters = [e for e in found if e["ph"] == "C"]
    assert len(counters) == N
    assert counters[0]["name"] == "others.cpu (cores)"
    slices = [e for e in found if e["ph"] == "X"]
    assert [(e["ts"], e["dur"]) for e in slices] == [(30e6, 5e6)]
    overlapping = [{"start_s": 0.0, "end_s": 2.0, "latency_s": 2.0}, {"start_s": 1.0, "end_s": 3.0, "latency_s": 2.0}]
    assert {e["tid"] for e in request_events(overlapping) if e["ph"] == "X"} == {1, 2}
    json.dumps(found, allow_nan=False)


def test_commands_record_and_show(tmp_path: Path, capsys: Any) -> None:
    folder, page = tmp_path / "t", tmp_path / "page.html"
    words = ["machine", "record", str(folder), "--period", "0.1s", "--", sys.executable, "-c", "raise SystemExit(3)"]
    assert run_command("calibrate", app, words) == 3
    assert run_command("calibrate", app, ["machine", "show", str(folder), "--html", str(page), "--json", "-"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["samples"] >= 2
    assert found["phases"][0]["name"].endswith("raise SystemExit(3)")
    assert set(found["not_measured"]) <= {"psi", "clock", "power", "numa", "gpu", "perf"}
    assert "During the slowest 1 % of requests" in page.read_text()
    assert run_command("calibrate", app, ["machine", "show", str(folder)]) == 0
    assert run_command("calibrate", app, words) == 2  # the folder holds a trace
    assert run_command("calibrate", app, ["machine", "record", str(tmp_path / "n"), "--", "no-such-program"]) == 2


@contextmanager
def burning(_: Path) -> Iterator[None]:
    """Keep every core busy with several other processes."""
    work = "while True: sum(range(100000))"
    processes = [subprocess.Popen([sys.executable, "-c", work]) for _ in range(4 * (os.cpu_count() or 1))]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


@contextmanager
def filling(_: Path) -> Iterator[None]:
    """Use up a quarter of the memory that is available, page by page."""
    work = "import sys; n = int(sys.argv[1]); b = bytearray(n); b[::4096] = bytes(-(-n // 4096)); print(1); input()"
    available = MachineReader().read()["memory.available"]
    with subprocess.Popen(
        [sys.executable, "-uc", work, str(int(available / 4))], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        try:
            yield
        finally:
            process.communicate(b"\n")


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Write to the disk and wait for it, again and again."""
    is_over = threading.Event()

    def run() -> None:
        with (folder / "written").open("wb") as file:
            while not is_over.is_set():
                file.seek(0)
                file.write(os.urandom(2**24))
                file.flush()
                os.fsync(file.fileno())

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("disturb", "signals"),
    [
        (burning, ("others.cpu", "engine.run_queue")),
        (filling, ("memory.available",)),
        (writing, ("disk.", "psi.io", "cpu.iowait")),
    ],
)
def test_a_real_disturbance_is_seen_when_it_happens(
    disturb: Callable[[Path], Any], signals: tuple[str, ...], tmp_path: Path
) -> None:
    work = "import time\nwhile True:\n sum(range(30000))\n time.sleep(0.01)"
    with subprocess.Popen([sys.executable, "-c", work]) as engine:
        try:
            with MachineSampler(lambda: {engine.pid}, 0.25) as sampler:
                time.sleep(10.0)
                start_s = sampler.now_s()
                with disturb(tmp_path):
                    time.sleep(4.0)
                end_s = sampler.now_s()
                time.sleep(6.0)
        finally:
            engine.kill()
    cores = sampler.trace.signal("others.cpu")[: int(start_s / 0.25)]
    if disturb is burning and np.median(cores) > 0.5 * (os.cpu_count() or 1):
        pytest.skip("other processes use more than half of the cores already")
    seen = [d for d in disturbances(sampler.trace) if d.signal.startswith(signals)]
    assert any(d.start_s < end_s and d.end_s > start_s and d.start_s > start_s - 2.0 for d in seen), seen
