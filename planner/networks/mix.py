"""The jobs of a plan: one job, several with shares, or a file of jobs, with the process of their arrivals.

`--job` takes the sizes of one job, several of them with their shares (`1280x720x81:0.7,832x480x81:0.3`), which add up
to 1 or as percentages to 100, a workload file of jobs (.yaml), a trace (.csv), or the keys of a workload file in braces
(catalogs/workloads/jobs.py).
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from catalogs.errors import InputError
from catalogs.networks.network import NeuralNetwork
from catalogs.ui.words import counted, percent
from catalogs.workloads.arrivals import AllAtOnce, ClosedLoopArrivals, process_name
from catalogs.workloads.jobs import JobSet, JobWorkload, NetworkJob, load_job_workload
from planner.networks.job import BATCH, STEPS, PlannedJob, read_job
from planner.problem.slo import Slo

#: Ends of the names of files of jobs.
_FILE_ENDS: Final = (".yaml", ".yml", ".csv")

#: Most different jobs of a plan: each is priced on every setup.
MOST_KINDS: Final = 64

#: Most jobs of a trace. Every run serves all of them, so that it includes the busiest hour.
MOST_TRACED: Final = 200_000

#: Jobs with their shares: sizes, a colon, and a number.
_SHARED: Final = re.compile(r"(?P<sizes>[^:]+):(?P<share>[\d.eE+-]+)\s*(?:,|$)")

#: Relative difference of the sum of shares from a whole, which rounded shares such as three of 0.333 have.
_ROUNDED: Final = 0.0011

#: Most different jobs that are named one by one in words; of more, the number is stated.
_NAMED: Final = 3


@dataclass(frozen=True, slots=True)
class JobMix:
    """The jobs of a plan.

    Attributes:
        jobs: The different jobs; a plan of one job has one.
        shares: The share of each, 0 to 1.
        workload: Their arrivals, at the rate of the request; a trace keeps its pattern over time.
    """

    jobs: tuple[PlannedJob, ...]
    shares: tuple[float, ...]
    workload: JobWorkload

    @classmethod
    def one(cls, job: PlannedJob) -> JobMix:
        """Return the mix of one job, with Poisson arrivals."""
        return cls((job,), (1.0,), JobWorkload())

    @property
    def first(self) -> PlannedJob:
        """Return the first job, whose sizes a deployment states."""
        return self.jobs[0]

    @property
    def several(self) -> bool:
        """Return whether there are different jobs."""
        return len(self.jobs) > 1

    @property
    def traced(self) -> int:
        """Return the jobs of the trace; 0 without one."""
        return 0 if self.workload.trace is None else len(self.workload.trace.arrival_s)

    @property
    def words(self) -> str:
        """Return the jobs in words."""
        if not self.several:
            return self.first.words
        if len(self.jobs) > _NAMED:
            return f"{self.workload.name}: {counted(len(self.jobs), 'different job')}"
        return "; ".join(f"{percent(s)} {job.words}" for s, job in zip(self.shares, self.jobs, strict=True))

    @property
    def arrivals_words(self) -> str:
        """Return how the jobs arrive, in words."""
        if self.traced:
            return f"jobs arrive as in {self.workload.name} ({self.traced:,} jobs), at the rate of the request"
        return f"the arrival process of jobs is {process_name(self.workload.arrivals)}"

    def draw(self, seed: int, n_jobs: int, jobs_per_s: float) -> JobSet:
        """Return the jobs of a run at a rate."""
        return self.workload.draw(seed, n_jobs, jobs_per_s)

    def draw_users(self, seed: int, n_jobs: int, users: int, think_s: float) -> JobSet:
        """Return the jobs of a run of users, of which each sends its next job a think time after the last one."""
        arrivals = ClosedLoopArrivals(concurrency=users, think_time_s=think_s)
        return replace(self.workload, arrivals=arrivals, trace=None).draw(seed, n_jobs)

    def statistic_s(self, seconds: Mapping[int, float], slo: Slo) -> float:
        """Return the statistic of an objective over jobs of known seconds by their index: the mean, or a quantile."""
        if slo.quantile is None:
            return sum(share * seconds[i] for i, share in enumerate(self.shares))
        reached = 0.0
        for i in sorted(range(len(self.jobs)), key=seconds.__getitem__):
            reached += self.shares[i]
            if reached >= slo.quantile - 1e-12:
                return seconds[i]
        return max(seconds.values())


def is_file_of_jobs(text: str | None) -> bool:
    """Return whether the text of a job names a file of jobs, or holds the keys of one in braces."""
    found = (text or "").strip().lower()
    return found.startswith("{") or found.endswith(_FILE_ENDS)


def read_jobs(network: NeuralNetwork, text: str | None, steps: int | None) -> JobMix:
    """Return the jobs that `--job` and `--steps` describe.

    Raises:
        InputError: A size, a share or the file is invalid; the message has the nearest job that is valid.
    """
    if text is not None and is_file_of_jobs(text):
        return _of_workload(network, load_job_workload(text), steps)
    if text is None or ":" not in text:
        return JobMix.one(read_job(network, text, steps))
    parts = _shared(text)
    _check_sum(parts)
    jobs = [read_job(network, sizes, steps) for sizes, _ in parts]
    shares = [share for _, share in parts]
    kinds = tuple(NetworkJob(share=s, sizes=dict(j.all_sizes)) for s, j in zip(shares, jobs, strict=True))
    return _mixed(jobs, shares, JobWorkload(kinds=kinds, name="mix of jobs"))


def _shared(text: str) -> list[tuple[str, float]]:
    """Return the sizes of each job with its share.

    Raises:
        InputError: A share is missing, or is no number above zero.
    """
    found, end = [], 0
    for match in _SHARED.finditer(text.strip()):
        if match.start() != end:
            break
        try:
            share = float(match["share"])
        except ValueError:
            share = math.nan
        if not 0.0 < share < math.inf:
            raise InputError("the share of a job is a number above zero", match["share"], f"{match['sizes']}:0.5")
        found.append((match["sizes"].strip(), share))
        end = match.end()
    if end != len(text.strip()):
        raise InputError("several jobs are SIZES:SHARE with commas", text, "1280x720x81:0.7,832x480x81:0.3")
    return found


def _check_sum(parts: Sequence[tuple[str, float]]) -> None:
    """Refuse shares that add up neither to 1 nor, as percentages, to 100.

    Raises:
        InputError: They do not; the message has the same jobs with shares in their proportion.
    """
    total = sum(share for _, share in parts)
    if any(abs(total - whole) <= _ROUNDED * whole for whole in (1.0, 100.0)):
        return
    digits = 3 if min(share for _, share in parts) >= 0.01 * total else 9
    scaled = [round(share / total, digits) for _, share in parts]
    scaled[-1] = round(1.0 - sum(scaled[:-1]), digits)
    near = ",".join(f"{sizes}:{share:.9g}" for (sizes, _), share in zip(parts, scaled, strict=True))
    raise InputError("the shares of jobs add up to 1, or to 100 as percentages", f"{total:g}", near)


def _of_workload(network: NeuralNetwork, workload: JobWorkload, steps: int | None) -> JobMix:
    """Return the jobs of a workload file or a trace.

    Raises:
        InputError: It has no rate of arrivals, too many jobs or kinds of jobs, jobs of another network, or an invalid
            size.
    """
    if isinstance(workload.arrivals, ClosedLoopArrivals | AllAtOnce) and workload.trace is None:
        arrivals = process_name(workload.arrivals)
        raise InputError(f"{workload.name} has no rate of arrivals to plan for", arrivals, "--users N")
    if len(workload.kinds) > MOST_KINDS:
        rule = f"a plan prices at most {MOST_KINDS} different jobs"
        raise InputError(rule, len(workload.kinds), hint="round the sizes of the trace")
    jobs = []
    for kind in workload.kinds:
        if kind.model is not None:
            raise InputError("all jobs of a plan belong to one network", kind.model, "--model")
        sizes = dict(kind.sizes)
        if steps is not None:
            sizes.setdefault(STEPS, steps)
        jobs.append(read_job(network, ",".join(f"{k}={v}" for k, v in sizes.items()) or None, None))
    n = len(workload.trace.arrival_s) if workload.trace else 0
    if n > MOST_TRACED:
        raise InputError(f"a plan serves a whole trace, of at most {MOST_TRACED:,} jobs", n, "a part of the trace")
    if workload.trace is not None:
        shares = [float((workload.trace.kind == i).mean()) for i in range(len(jobs))]
    else:
        shares = [float(kind.share) for kind in workload.kinds]
    kinds = tuple(
        kind.model_copy(update={"sizes": dict(job.all_sizes)}) for kind, job in zip(workload.kinds, jobs, strict=True)
    )
    return _mixed(jobs, shares, replace(workload, kinds=kinds))


def _mixed(jobs: list[PlannedJob], shares: list[float], workload: JobWorkload) -> JobMix:
    """Return a mix of jobs with the same number of items.

    Raises:
        InputError: Jobs differ in their items, or two of them are the same.
    """
    items = {job.items for job in jobs}
    if len(items) > 1:
        rule = f"the jobs of a mix have one size {BATCH}, which batches count"
        raise InputError(rule, ", ".join(f"{BATCH}={n}" for n in sorted(items)), f"{BATCH}={min(items)}")
    if len({tuple(sorted(job.all_sizes.items())) for job in jobs}) < len(jobs) and workload.trace is None:
        raise InputError("two jobs of the mix are the same", "; ".join(job.words for job in jobs), "add their shares")
    total = sum(shares)
    return JobMix(tuple(jobs), tuple(share / total for share in shares), workload)
