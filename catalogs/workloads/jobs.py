"""What clients send to a network: jobs, each of a kind with its sizes, at the times of any arrival process.

A workload of jobs is a YAML file, or the same keys in braces:

    arrivals: {poisson: {requests_per_s: 5}}
    requests: 1000
    jobs:
      - {share: 3, sizes: {height: 1024, width: 1024}}
      - {share: 1, sizes: {height: 512, width: 512}}

Sizes that a kind leaves out are those of the deployment, and then those of the network. `classes` gives jobs priorities
and timeouts as for requests (`catalogs/workloads/service_classes.py`).
"""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from io import StringIO
from math import isfinite
from pathlib import Path
from typing import Annotated, Any, Final

import numpy as np
from pydantic import Field, PositiveFloat, PositiveInt

from catalogs.arrays import FloatArray, IntArray
from catalogs.errors import InputError
from catalogs.io.input_files import is_file, read_text
from catalogs.io.yaml_files import Seed, YamlBlock, check_keys, parse_yaml, read_yaml
from catalogs.io.yaml_loader import MOST_CHARACTERS
from catalogs.ui.words import counted
from catalogs.workloads.arrivals import (
    AllAtOnce,
    Arrivals,
    ClosedLoopArrivals,
    Count,
    Poisson,
    Rateless,
    Weight,
    parse_arrivals,
)
from catalogs.workloads.limits import MOST_REQUESTS, check_rate
from catalogs.workloads.service_classes import (
    COLUMNS as SERVICE_COLUMNS,
)
from catalogs.workloads.service_classes import (
    ServiceClass,
    ServiceLevels,
    draw_service_levels,
    number_or_nan,
    parse_classes,
)

#: Jobs of a run where a workload gives no number.
DEFAULT_JOBS: Final = 1000

#: Jobs per second where neither the workload nor the caller gives a rate; a notice states this.
DEFAULT_JOBS_PER_S: Final = 1.0

#: The number of independent random streams of a workload; further ones are added at the end.
_STREAMS: Final = 5


class NetworkJob(YamlBlock):
    """One kind of job: its sizes, and its share of all jobs relative to the shares of the other kinds.

    `model` is one of several networks that a deployment serves; null is its key `model`.
    """

    share: Weight = 1.0
    model: str | None = None
    sizes: dict[str, PositiveInt] = Field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class JobSet:
    """The jobs of one run, in the order of the workload; arrays have shape (n,).

    Open loop: arrival_s is non-decreasing and concurrency is None. Closed loop: arrival_s is all zeros and ignored, and
    `concurrency` clients send the jobs in order, each one `think_s` after the end of its previous job.
    """

    arrival_s: FloatArray
    kind: IntArray  # index in kinds
    kinds: tuple[NetworkJob, ...]
    concurrency: int | None = None
    sessions: IntArray | None = None  # the session of each job, whose jobs run in order
    terms: ServiceLevels | None = None  # priority and timeout of each job
    think_s: FloatArray | None = None
    name: str = ""
    source: str = ""
    seed: int = 0

    @property
    def n(self) -> int:
        """Return the number of jobs."""
        return len(self.kind)


@dataclass(frozen=True, slots=True)
class JobTrace:
    """Recorded jobs: arrival times (shape (n,)), kinds and the columns of service levels and sessions."""

    arrival_s: FloatArray
    kind: IntArray
    sessions: IntArray | None = None
    terms: ServiceLevels | None = None

    @property
    def requests_per_s(self) -> float | None:
        """Return the mean rate of the trace; None where all jobs arrive at one time."""
        span_s = float(self.arrival_s[-1] - self.arrival_s[0])
        return (len(self.arrival_s) - 1) / span_s if span_s > 0.0 else None


@dataclass(frozen=True, slots=True)
class JobWorkload:
    """A workload of jobs: an arrival process or a trace, and the kinds of jobs.

    Attributes:
        arrivals: The arrival process; not used where there is a trace.
        kinds: The kinds of jobs; without sizes: the default job.
        n_jobs: Jobs of a run where the caller gives no number.
        seed: The seed of a run where the caller gives none.
        classes: Service classes, drawn independently of the kind.
        per_session: Jobs of each session; 0: jobs belong to no session.
        gap_s: Mean time from one job of a session to the next, in an open loop.
        trace: Recorded jobs, which replace the arrival process, shares, sessions and classes.
        name: The name of the workload.
        source: Where it comes from.
        notices: Lines for the user.
    """

    arrivals: Arrivals = field(default_factory=Poisson)
    kinds: tuple[NetworkJob, ...] = (NetworkJob(),)
    n_jobs: int = DEFAULT_JOBS
    seed: int = 0
    classes: tuple[ServiceClass, ...] = ()
    per_session: int = 0
    gap_s: float = 0.0
    trace: JobTrace | None = None
    name: str = "default jobs"
    source: str = "Poisson arrivals of the default job"
    notices: tuple[str, ...] = ()

    @property
    def requests_per_s(self) -> float | None:
        """Return the workload's own mean rate; None where it has none."""
        return self.trace.requests_per_s if self.trace else self.arrivals.mean_per_s

    @property
    def has_rate(self) -> bool:
        """Return whether the workload has a rate to set."""
        return self.trace.requests_per_s is not None if self.trace else not isinstance(self.arrivals, Rateless)

    @property
    def rate_notice(self) -> str | None:
        """Return the notice for a run at the workload's own rate where it has none; None where none is needed."""
        if not self.has_rate or self.requests_per_s is not None:
            return None
        return f"{self.name} has no arrival rate of its own: {DEFAULT_JOBS_PER_S:g} job/s unless --rate gives one"

    def draw(self, seed: int | None = None, n_jobs: int | None = None, jobs_per_s: float | None = None) -> JobSet:
        """Return the jobs of one run; None means the workload's own seed, number or rate.

        The same seed gives the same jobs. Another rate stretches the same arrival times, and a larger number of jobs
        extends a smaller one.

        Raises:
            InputError: The rate is out of range or the workload cannot have one, or the number of jobs is.
        """
        seed, n = self.seed if seed is None else seed, self.n_jobs if n_jobs is None else n_jobs
        if not 1 <= n <= MOST_REQUESTS:
            raise InputError(f"a simulation holds 1 to {MOST_REQUESTS:,} jobs", n, str(min(max(n, 1), MOST_REQUESTS)))
        if jobs_per_s is not None:
            check_rate(jobs_per_s)
            if not self.has_rate:
                raise InputError(f"workload {self.name} has no arrival rate to set; leave the rate out", jobs_per_s)
        rate = jobs_per_s or self.requests_per_s or DEFAULT_JOBS_PER_S
        drawn = self._synthetic(seed, n, rate) if self.trace is None else self._replayed(self.trace, n, rate)
        return replace(drawn, kinds=self.kinds, name=self.name, source=self.source, seed=seed)

    def _synthetic(self, seed: int, n: int, rate: float) -> JobSet:
        streams = [np.random.default_rng(s) for s in np.random.SeedSequence(seed).spawn(_STREAMS)]
        each = self.per_session or 1
        n_sessions = -(-n // each)
        starts_s = self.arrivals.starts_s(streams[0], n_sessions, rate, each)
        session = np.repeat(np.arange(n_sessions), each)
        gaps_s = streams[1].standard_exponential(len(session)) * self.gap_s
        gaps_s[::each] = 0.0
        waited_s = np.cumsum(gaps_s)
        arrival_s = starts_s[session] + waited_s - waited_s[::each][session]
        closed = self.arrivals if isinstance(self.arrivals, ClosedLoopArrivals) else None
        if closed is not None:  # `concurrency` sessions at a time, job by job
            position = np.arange(len(session)) % each
            order = np.lexsort((session, position, session // closed.concurrency))[:n]
        else:
            order = np.argsort(arrival_s, kind="stable")[:n]
        shares = np.array([kind.share for kind in self.kinds])
        kinds = streams[2].choice(len(shares), n_sessions, p=shares / shares.sum())
        terms = draw_service_levels(self.classes, streams[3], n_sessions) if self.classes else None
        mine = session[order]
        return JobSet(
            arrival_s=arrival_s[order],
            kind=kinds[mine],
            kinds=self.kinds,
            concurrency=closed.concurrency if closed else None,
            sessions=mine if self.per_session else None,
            terms=terms[mine] if terms is not None else None,
            think_s=streams[4].standard_exponential(n) * closed.think_time_s
            if closed and closed.think_time_s
            else None,
        )

    def _replayed(self, trace: JobTrace, n: int, rate: float) -> JobSet:
        """Return the first n jobs of a trace, which starts again one mean gap after its end."""
        length, own = len(trace.arrival_s), trace.requests_per_s
        lap, row = np.divmod(np.arange(n), length)
        arrival_s = trace.arrival_s[row] - trace.arrival_s[0]
        if own is not None:
            arrival_s = (arrival_s + lap * (length / own)) * (own / rate)
        return JobSet(
            arrival_s=arrival_s,
            kind=trace.kind[row],
            kinds=self.kinds,
            sessions=None if trace.sessions is None else trace.sessions[row] + lap * (1 + int(trace.sessions.max())),
            terms=None if trace.terms is None else trace.terms[row],
        )


class SessionBlock(YamlBlock):
    """The `sessions` block: jobs that share state, such as the frames of one video.

    The mean time from one job of a session to the next is `gap_s`, exponential. In a closed loop each client sends the
    jobs of one session after the other.
    """

    jobs: Count
    gap_s: Annotated[float, Field(ge=0.0)] = 0.0


class JobWorkloadFile(YamlBlock):
    """The keys of a workload file of jobs: a trace, or arrivals with kinds of jobs."""

    trace: str | None = None
    rate_scale: PositiveFloat = 1.0
    arrivals: Any = None
    requests: Count | None = None
    duration_s: PositiveFloat | None = None
    jobs: tuple[NetworkJob, ...] | None = None
    sessions: SessionBlock | None = None
    classes: Any = None
    seed: Seed = 0
    name: str | None = None
    source: str | None = None


def load_job_workload(text: str) -> JobWorkload:
    """Return a workload of jobs by its file (.yaml, .yml), a trace (.csv), or keys in braces.

    Raises:
        InputError: There is no such file, or a key breaks a rule.
    """
    if text.lstrip().startswith("{"):
        return _from_mapping(parse_yaml(text, "the workload"), "jobs of the question", Path(), "the workload")
    path = Path(text)
    if not is_file(path):
        rule = "a workload of a network is a YAML file, a CSV trace or keys in braces"
        raise InputError(rule, text, "{arrivals: {poisson: {requests_per_s: 1}}}")
    if path.suffix.lower() in (".yaml", ".yml"):
        return _from_mapping(read_yaml(path), path.stem, path.parent, path.name)
    return read_job_trace(path)


def _from_mapping(data: dict[str, Any], name: str, folder: Path, where: str) -> JobWorkload:
    tokens = sorted({"input_tokens", "output_tokens", "shared_prefix", "turns", "adapters"} & data.keys())
    if tokens:
        raise InputError(f"{where}: a network has no tokens to generate; its workload has jobs", tokens[0], "jobs")
    written = check_keys(JobWorkloadFile, data, where)
    given = written.model_fields_set
    if written.trace is not None:
        for key in sorted(given & {"arrivals", "jobs", "sessions", "classes", "duration_s"}):
            raise InputError(f"{where}: a trace has its own arrivals and sizes; remove this key", key)
        found = read_job_trace(folder / written.trace)
        if written.rate_scale != 1.0 and found.trace is not None:
            scaled = replace(found.trace, arrival_s=found.trace.arrival_s / written.rate_scale)
            found = replace(found, trace=scaled)
        return replace(
            found, seed=written.seed, n_jobs=written.requests or found.n_jobs, name=written.name or found.name
        )
    if "rate_scale" in given:
        raise InputError(f"{where}: this key needs a trace", "rate_scale")
    if written.arrivals is None:
        raise InputError(f"{where}: key 'arrivals' is missing (or give a trace)")
    if written.jobs is not None and not written.jobs:
        raise InputError(f"{where}: jobs must hold at least one kind", "[]", "[{sizes: {}}]")
    arrivals = parse_arrivals(written.arrivals)
    sessions = written.sessions
    if sessions is not None and isinstance(arrivals, AllAtOnce):
        raise InputError("jobs of a session cannot arrive all at once; choose other arrivals", "all_at_once")
    return JobWorkload(
        arrivals=arrivals,
        kinds=written.jobs or (NetworkJob(),),
        n_jobs=written.requests or _jobs_of(written.duration_s, arrivals, where),
        seed=written.seed,
        classes=() if written.classes is None else parse_classes(written.classes, where),
        per_session=sessions.jobs if sessions else 0,
        gap_s=sessions.gap_s if sessions else 0.0,
        name=written.name or name,
        source=written.source or f"workload file {where}",
    )


def _jobs_of(duration_s: float | None, arrivals: Arrivals, where: str) -> int:
    if duration_s is None:
        return DEFAULT_JOBS
    if arrivals.mean_per_s is None:
        raise InputError(f"{where}: duration_s needs arrivals with a rate; give requests", duration_s, "requests: 1000")
    return max(1, round(arrivals.mean_per_s * duration_s))


def read_job_trace(path: Path) -> JobWorkload:
    """Return the jobs in a CSV file: the column `arrival_s`, one column for each size, and labels.

    Labels are the columns `session`, `priority`, `timeout_s` (and `deadline_s`, which no engine of networks reads).

    Raises:
        InputError: The file cannot be read, or a cell is not a number that its column allows; the message names the
            row.
    """
    where = f"trace {path.name}"
    rows = [row for row in csv.reader(StringIO(read_text(path, f"cannot read {where}", MOST_CHARACTERS))) if row]
    header, cells = ([name.strip() for name in rows[0]], rows[1:]) if rows else ([], [])
    if "arrival_s" not in header:
        raise InputError(f"{where} needs a column of arrival times", ", ".join(header), "arrival_s")
    if not cells:
        raise InputError(f"{where} holds no jobs")
    for i, row in enumerate(cells, 1):
        if len(row) != len(header):
            raise InputError(f"{where}: row {i} needs {counted(len(header), 'column')}", ",".join(row))
    columns: dict[str, Sequence[str]] = dict(zip(header, zip(*cells, strict=True), strict=True))
    times = [number_or_nan(cell) for cell in columns["arrival_s"]]
    for i, time_s in enumerate(times):
        if not isfinite(time_s):
            raise InputError(f"{where}: arrival_s of row {i + 1} must be a number", columns["arrival_s"][i])
        if i and time_s < times[i - 1]:
            raise InputError(f"{where}: arrival_s of row {i + 1} is before that of the row above", time_s)
    sizes = [name for name in header if name not in ("arrival_s", "session", *SERVICE_COLUMNS)]
    found: dict[tuple[int, ...], int] = {}
    kinds = [found.setdefault(_sizes(columns, sizes, i, where), len(found)) for i in range(len(times))]
    sessions = None
    if "session" in columns:
        numbers = {label: i for i, label in enumerate(dict.fromkeys(columns["session"]))}
        sessions = np.array([numbers[label] for label in columns["session"]])
    trace = JobTrace(np.array(times), np.array(kinds), sessions, ServiceLevels.of(columns, where))
    named = tuple(NetworkJob(sizes=dict(zip(sizes, values, strict=True))) for values in found)
    return JobWorkload(kinds=named, n_jobs=len(times), trace=trace, name=path.name, source=f"trace {path.name}")


def _sizes(columns: Mapping[str, Sequence[str]], names: Sequence[str], row: int, where: str) -> tuple[int, ...]:
    """Return the sizes in one row of a trace.

    Raises:
        InputError: A cell is not a whole number above zero.
    """
    values = []
    for name in names:
        value = number_or_nan(columns[name][row])
        if not (value >= 1 and value == int(value)):
            rule = f"{where}: size {name} of row {row + 1} must be a whole number above zero"
            raise InputError(rule, columns[name][row])
        values.append(int(value))
    return tuple(values)
