"""What clients send: a workload by name or file, materialised into arrays before a run."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np

from catalogs.errors import InputError, nearest_name
from catalogs.io.yaml_files import DATA, parse_yaml, read_yaml
from catalogs.workloads.files import parse_workload_file
from catalogs.workloads.replay import Replay
from catalogs.workloads.request_set import RequestSet
from catalogs.workloads.synthetic import SyntheticWorkload
from catalogs.workloads.traces import read_trace

#: Used where neither the workload nor the caller gives a rate; a notice says so.
DEFAULT_REQUESTS_PER_S: Final = 1.0

#: A simulation holds its requests in memory and keeps time in double precision; these are far beyond any use.
MOST_REQUESTS: Final = 10_000_000

LEAST_REQUESTS_PER_S: Final = 1e-6

#: Requests drawn to describe the lengths of a synthetic workload.
STATS_REQUESTS: Final = 20_000


@dataclass(frozen=True, slots=True)
class Workload:
    """Requests to come. `notices` are lines a user should see once; `content` draws the requests."""

    name: str
    source: str
    content: SyntheticWorkload | Replay
    notices: tuple[str, ...] = ()

    @property
    def n_requests(self) -> int:
        """Requests of a run that does not ask for another number."""
        return self.content.n_requests

    @property
    def requests_per_s(self) -> float | None:
        """The workload's own mean rate; None where it has none (closed loop, all at once, lengths only)."""
        return self.content.requests_per_s

    @property
    def rate_notice(self) -> str | None:
        """What to tell where the workload's own rate is asked for and it has none."""
        if not self.content.has_rate or self.requests_per_s is not None:
            return None
        return f"{self.name} has no arrival rate of its own: {DEFAULT_REQUESTS_PER_S:g} request/s unless one is given"

    @property
    def closed_loop(self) -> bool:
        return self.content.concurrency is not None

    def materialise(
        self, seed: int | None = None, n_requests: int | None = None, requests_per_s: float | None = None
    ) -> RequestSet:
        """The requests of one run; None takes the workload's own seed, number and rate.

        Same seed: same requests. Another rate stretches the same arrival times and leaves lengths as they are (with
        `turns`, think times keep their length). More requests extend fewer (without `turns`).
        Raises InputError for a rate that is not positive or that the workload cannot have, n_requests < 1, seed < 0.
        """
        seed = _whole("seed", self.content.seed if seed is None else seed, 0)
        n = _whole("n_requests", self.content.n_requests if n_requests is None else n_requests, 1)
        if n > MOST_REQUESTS:
            raise InputError(f"a simulation holds at most {MOST_REQUESTS:,} requests", n, str(MOST_REQUESTS))
        drawn = self.content.draw(seed, n, self._rate(requests_per_s))
        return replace(drawn, name=self.name, source=self.source)

    def stats(self) -> dict[str, float]:
        """Mean, median and p99 of input and output tokens (a synthetic workload: of 20,000 drawn requests)."""
        n = self.n_requests if isinstance(self.content, Replay) else STATS_REQUESTS
        requests = self.materialise(n_requests=n)
        found: dict[str, float] = {}
        for side, tokens in (("input", requests.input_tokens), ("output", requests.output_tokens)):
            p50, p99 = np.percentile(tokens, (50, 99))
            found |= {f"{side}_mean_tokens": float(tokens.mean())}
            found |= {f"{side}_p50_tokens": float(p50), f"{side}_p99_tokens": float(p99)}
        return found

    def _rate(self, asked: float | None) -> float:
        if asked is None:
            return self.requests_per_s or DEFAULT_REQUESTS_PER_S
        if isinstance(asked, bool) or not isinstance(asked, int | float | np.number) or not asked > 0:
            raise InputError("requests_per_s must be a positive number", asked)
        if not math.isfinite(asked):
            raise InputError("requests_per_s must be finite", asked)
        if asked < LEAST_REQUESTS_PER_S:
            raise InputError(f"requests_per_s must be at least {LEAST_REQUESTS_PER_S:g}", asked)
        if not self.content.has_rate:
            raise InputError(f"workload {self.name} has no arrival rate to set; leave requests_per_s out", asked)
        return float(asked)


def list_workloads() -> list[str]:
    """Names of the catalog's workloads."""
    return sorted(path.stem for path in (DATA / "workloads").glob("*.yaml"))


def load_workload(text: str) -> Workload:
    """A workload by catalog name, workload file (.yaml, .yml) or trace file (any other name).

    Raises InputError with the nearest catalog name, or naming the file, row or key that breaks a rule.
    """
    names = {name.lower(): name for name in list_workloads()}
    if text.lower() in names:
        name = names[text.lower()]
        return _from_mapping(read_yaml(DATA / "workloads" / f"{name}.yaml"), name, DATA, f"workload {name}")
    path = Path(text)
    if not path.is_file():
        looks_like_path = path.suffix or len(path.parts) > 1
        nearest = nearest_name(text, names.values()) or (None if looks_like_path else ", ".join(names.values()))
        raise InputError("workload is neither a catalog name nor a file", text, nearest)
    if path.suffix.lower() in (".yaml", ".yml"):
        return _from_mapping(_yaml(path), path.stem, path.parent, path.name)
    trace = read_trace(path)
    content = Replay(trace, len(trace.input_tokens))
    return Workload(path.name, f"{trace.format} trace {path.name}", content, trace.notices)


def _yaml(path: Path) -> dict[str, object]:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        raise InputError("workload file is not readable text", str(path)) from None
    if not text.strip():
        raise InputError(f"workload file {path.name} is empty")
    return parse_yaml(text, path.name)


def _from_mapping(data: dict[str, object], name: str, folder: Path, where: str) -> Workload:
    written, content, notices = parse_workload_file(data, folder, where)
    source = written.source or (f"trace {written.trace}" if written.trace else f"workload file {where}")
    return Workload(written.name or name, source, content, notices)


def _whole(name: str, value: int, low: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < low:
        raise InputError(f"{name} must be a whole number >= {low}", value)
    return int(value)
