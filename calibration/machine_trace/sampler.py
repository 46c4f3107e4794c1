"""Samples the machine in the background while something runs, twice a second by default, and keeps the samples."""

from __future__ import annotations

import json
import os
import re
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Self

import numpy as np

from calibration.machine_trace.readings import BusiestProcessReader, MachineReader, ProcessReader, quantity
from calibration.profile.machine.contention import stat_fields
from calibration.profile.machine.counters import Counters, open_counters
from catalogs.arrays import FloatArray
from catalogs.errors import InputError
from catalogs.io.output_files import atomic_file

#: Time between two samples, seconds. A judgement: disturbances last for seconds, and a sample takes milliseconds.
PERIOD_S: Final = 0.5

_META: Final = b"machine_trace"


@dataclass(frozen=True, slots=True)
class Phase:
    """A part of a run with a name, seconds since the start of the trace."""

    name: str
    start_s: float
    end_s: float


def profile_phases(rows: Sequence[Mapping[str, Any]], began_unix_s: float) -> tuple[Phase, ...]:
    """Return the families of shapes of a profile as phases, without rows of earlier sessions.

    Args:
        rows: The rows in the order in which they were measured.
        began_unix_s: Start of the trace on the clock of the machine, seconds since 1970.
    """
    found: list[Phase] = []
    for row in rows:
        start_s = float(row.get("at", 0.0)) - began_unix_s
        if start_s < 0:
            continue
        end_s = start_s + float(row.get("elapsed_s", 0.0))
        if found and found[-1].name == row["family"]:
            found[-1] = replace(found[-1], end_s=end_s)
        else:
            found.append(Phase(str(row["family"]), start_s, end_s))
    return tuple(found)


@dataclass(frozen=True, slots=True, eq=False)
class MachineTrace:
    """The samples of a run.

    Attributes:
        at_s: When each sample was taken, seconds since the start of the trace. Shape (n,).
        values: The values that were read, by name; NaN where a sample lacks it. Each has shape (n,).
        not_measured: Why groups of names are missing.
        phases: What ran when.
        sampler_cores: Cores that the sampling itself used.
        began_unix_s: Start of the trace on the clock of the machine, seconds since 1970; None if it is not known.
    """

    at_s: FloatArray
    values: dict[str, FloatArray]
    not_measured: dict[str, str] = field(default_factory=dict)
    phases: tuple[Phase, ...] = ()
    sampler_cores: float = 0.0
    began_unix_s: float | None = None

    @property
    def middle_s(self) -> FloatArray:
        """Return the middle of each interval between two samples, seconds. Shape (n - 1,)."""
        return (self.at_s[1:] + self.at_s[:-1]) / 2

    def signal(self, name: str) -> FloatArray:
        """Return the shown values of a name: rates of a counter, means of a gauge, between samples. Shape (n - 1,)."""
        meaning, values = quantity(name), self.values[name]
        if not meaning.counter:
            return meaning.scale * (values[1:] + values[:-1]) / 2
        with np.errstate(invalid="ignore", divide="ignore"):
            rates = meaning.scale * np.diff(values) / np.diff(self.at_s)
        return np.where(rates >= 0, rates, np.nan)  # a counter that falls has wrapped or was reset

    def signals(self) -> dict[str, FloatArray]:
        """Return all signals that have a value. Each has shape (n - 1,)."""
        if len(self.at_s) < 2:
            return {}
        found = {name: self.signal(name) for name in self.values}
        return {name: values for name, values in found.items() if np.isfinite(values).any()}

    def write(self, path: Path) -> None:
        """Write the samples as Parquet, one column per name, with the facts of the trace in its metadata."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        facts = {
            "not_measured": self.not_measured,
            "phases": [[p.name, p.start_s, p.end_s] for p in self.phases],
            "sampler_cores": self.sampler_cores,
            "began_unix_s": self.began_unix_s,
            "units": {name: quantity(name).unit for name in self.values},
        }
        table = pa.table({"at_s": self.at_s, **self.values}).replace_schema_metadata({_META: json.dumps(facts)})
        with atomic_file(path) as part:
            pq.write_table(table, part)

    @classmethod
    def read(cls, path: Path) -> MachineTrace:
        """Return the samples of a file.

        Raises:
            InputError: The file is not one that `write` wrote.
        """
        import pyarrow as pa
        import pyarrow.parquet as pq

        try:
            table = pq.read_table(path)
            facts = json.loads((table.schema.metadata or {})[_META])
            columns = {name: table.column(name).to_numpy() for name in table.column_names}
            phases = tuple(Phase(*row) for row in facts["phases"])
            for name in columns:
                if name != "at_s":
                    quantity(name)
        except (OSError, pa.ArrowInvalid, KeyError, ValueError, TypeError) as error:
            raise InputError(f"this is not a trace of a machine ({type(error).__name__})", str(path)) from None
        at_s, began_s = columns.pop("at_s"), facts.get("began_unix_s")
        return cls(at_s, columns, facts["not_measured"], phases, facts["sampler_cores"], began_s)


class MachineSampler:
    """Samples in a thread between entry and exit of a `with` block; `trace` is the result.

    Args:
        pids: Returns the ids of the processes of the engine; they may come and go.
        period_s: Seconds between samples.
        reader: Reads the machine.
        api_pids: Returns the ids of the processes of the engine that serve its API.
    """

    def __init__(
        self,
        pids: Callable[[], Iterable[int]] = lambda: (),
        period_s: float = PERIOD_S,
        reader: MachineReader | None = None,
        api_pids: Callable[[], Iterable[int]] = lambda: (),
    ) -> None:
        self._api_pids, self._api = api_pids, BusiestProcessReader()
        self._pids, self._period_s, self._reader = pids, period_s, reader or MachineReader()
        self._rows: list[dict[str, float]] = []
        self._phases: list[Phase] = []
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._perf: Counters = Counters({})
        self._own_s = 0.0
        self.began_s = self._began_unix_s = 0.0

    def __enter__(self) -> Self:
        self._reader.open()
        self._perf = open_counters()
        if self._perf.unavailable_reason:
            self._reader.not_measured["perf"] = self._perf.unavailable_reason.removeprefix("no cache misses: ")
        self.began_s, self._began_unix_s = time.monotonic(), time.time()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()
        for file in self._perf.files.values():
            os.close(file)

    def now_s(self) -> float:
        """Return the seconds since the start of the trace."""
        return time.monotonic() - self.began_s

    def add_phase(self, name: str, start_s: float, end_s: float) -> None:
        """Keep what ran between two times, in seconds since the start of the trace."""
        self._phases.append(Phase(name, start_s, end_s))

    @property
    def trace(self) -> MachineTrace:
        """Return the samples so far."""
        rows = list(self._rows)
        names = sorted({name for row in rows for name in row} - {"at_s"})
        columns = {name: np.array([row.get(name, np.nan) for row in rows], dtype=np.float64) for name in names}
        at_s = np.array([row["at_s"] for row in rows], dtype=np.float64)
        duration_s = float(at_s[-1]) if len(at_s) else 0.0
        used = self._own_s / duration_s if duration_s > 0 else 0.0
        missing, phases = dict(self._reader.not_measured), tuple(self._phases)
        return MachineTrace(at_s, columns, missing, phases, used, self._began_unix_s or None)

    def _run(self) -> None:
        group, own, n = ProcessReader(), ProcessReader(), 0
        while True:
            before_s = time.thread_time()
            self._rows.append(self._row(group, own))
            self._own_s += time.thread_time() - before_s
            n += 1
            if self._is_over.wait(max(self.began_s + n * self._period_s - time.monotonic(), 0.0)):
                self._rows.append(self._row(group, own))
                return

    def _row(self, group: ProcessReader, own: ProcessReader) -> dict[str, float]:
        row: dict[str, float] = {"at_s": self.now_s(), **self._reader.read()}
        pids = set(self._pids())
        engine = group.read(pids)
        mine = own.read({os.getpid()} - pids)
        if "cpu.busy" in row:
            row["others.cpu"] = row["cpu.busy"] - engine.get("engine.cpu", 0.0) - mine.get("engine.cpu", 0.0)
        perf = {f"perf.{name}": float(value) for name, value in self._perf.read().items()} if self._perf.files else {}
        return row | engine | self._api.read(self._api_pids()) | perf


def pids_of_port(port: int, proc: Path = Path("/proc")) -> set[int]:
    """Return the processes that listen on a port of this machine, with all of their descendants."""
    return family_of(listeners(port, proc), proc)


#: Titles of processes that hold the socket of the API because they were forked, and do not serve it: vLLM and SGLang
#: name them "VLLM::EngineCore", "VLLM::Worker_TP0", "sglang::scheduler".
_NOT_API: Final = re.compile(rb"\w+::(?!APIServer)")


class ApiProcesses:
    """The processes that serve a port of this machine; they are searched until there is one, and again if one ends.

    Args:
        port: Returns the port, which may change when a server is started again.
    """

    def __init__(self, port: Callable[[], int | None]) -> None:
        self._port, self._known = port, frozenset[int]()

    def __call__(self) -> frozenset[int]:
        """Return the ids of the processes."""
        if not self._known or not all(Path(f"/proc/{pid}").exists() for pid in self._known):
            port = self._port()
            found = () if port is None else listeners(port)
            self._known = frozenset(pid for pid in found if not _NOT_API.match(_title(pid)))
        return self._known


def _title(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def listeners(port: int, proc: Path = Path("/proc")) -> set[int]:
    """Return the processes that listen on a port of this machine."""
    wanted = f"{port:04X}"
    sockets = set()
    for name in ("tcp", "tcp6"):
        try:
            lines = (proc / "net" / name).read_text(encoding="ascii").splitlines()[1:]
        except OSError:
            continue
        for fields in map(str.split, lines):
            if fields[1].rpartition(":")[2] == wanted and fields[3] == "0A":  # listening (net/tcp_states.h)
                sockets.add(f"socket:[{fields[9]}]")
    return {int(folder.name) for folder in proc.glob("[0-9]*") if _holds(folder, sockets)} if sockets else set()


def family_of(pids: Iterable[int], proc: Path = Path("/proc")) -> set[int]:
    """Return processes with all of their descendants."""
    found = set(pids)
    return found | _descendants(found, proc)


def _holds(folder: Path, sockets: set[str]) -> bool:
    try:
        return any(os.readlink(file) in sockets for file in (folder / "fd").iterdir())
    except OSError:
        return False


def _descendants(pids: set[int], proc: Path) -> set[int]:
    parents: dict[int, int] = {}
    for stat in proc.glob("[0-9]*/stat"):
        try:
            parents[int(stat.parent.name)] = int(stat_fields(stat)[1])
        except (OSError, IndexError, ValueError):
            continue
    found, size = set(pids), -1
    while len(found) != size:
        size = len(found)
        found |= {pid for pid, parent in parents.items() if parent in found}
    return found - pids


def facts_of(trace: MachineTrace) -> dict[str, Any]:
    """Return the facts of a trace for JSON."""
    return {
        "samples": len(trace.at_s),
        "duration_s": float(trace.at_s[-1]) if len(trace.at_s) else 0.0,
        "sampler_cores": trace.sampler_cores,
        "not_measured": trace.not_measured,
        "phases": [{"name": p.name, "start_s": p.start_s, "end_s": p.end_s} for p in trace.phases],
    }
