"""Triton's dynamic batcher written the long way: lists that are sorted anew at every step, and rules over all prefixes.

It shares no code and no data structure with the product. Each rule looks at every prefix of the waiting jobs instead of
moving a cursor, and the clock is a loop over all times at which anything can happen.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf


@dataclass
class RefJob:
    index: int
    arrival_s: float
    items: int = 1
    shape: int = 0
    priority: int = 0
    timeout_s: float = inf
    state: str = "not sent"  # not sent, waiting, delayed, forming, running, done, expired, full


@dataclass
class RefOptions:
    max_batch: int
    preferred: tuple[int, ...] = ()
    delay_s: float = 0.0
    instances: int = 1
    priorities: int = 0
    default_priority: int = 0
    timeout_s: float = inf
    timeout_action: str = "reject"
    max_waiting: int | None = None


@dataclass
class RefBatch:
    members: list[RefJob] = field(default_factory=list)
    line: bool = False  # whether it stands in front of the instances
    fixed: bool = False  # whether nothing joins it any more
    before_other_shape: bool = False

    @property
    def size(self) -> int:
        return sum(job.items for job in self.members)


def serve(jobs: list[RefJob], options: RefOptions, seconds: dict[int, float]) -> list[tuple[float, float, list[int]]]:
    """Return (start, end, jobs) of each batch in order of start; the jobs' final states are left in them."""
    preferred = set(options.preferred) or {options.max_batch}
    some_limit = options.max_waiting is not None or any(deadline(job, options) < inf for job in jobs)
    early = not options.priorities and not some_limit
    busy: list[tuple[float, list[RefJob]]] = []  # of each busy instance: its end and its jobs
    line: list[RefBatch] = []
    form = [RefBatch()]  # the batch that is being formed, in a list of one
    out: list[tuple[float, float, list[int]]] = []
    wake = [inf]

    def level(job: RefJob) -> int:
        return job.priority if 1 <= job.priority <= options.priorities else options.default_priority

    def waiting() -> list[RefJob]:
        held = [job for job in jobs if job.state in ("waiting", "delayed")]
        return sorted(held, key=lambda job: (level(job), job.state == "delayed", due(job), job.arrival_s, job.index))

    def due(job: RefJob) -> float:
        return job.arrival_s + deadline(job, options) if job.state == "delayed" else 0.0

    def settle(now: float) -> None:
        while True:
            grow(now)
            if len(busy) == options.instances or not line:
                return
            batch = line.pop(0)
            batch.fixed = True
            if options.delay_s > 0 and options.max_batch > 1 and not batch.before_other_shape:
                while line and not line[0].before_other_shape:
                    other = line[0]
                    if not now > min(job.arrival_s for job in other.members) + options.delay_s:
                        break
                    other.fixed = True
                    if batch.size + other.size > options.max_batch:
                        break
                    if other.members[0].shape != batch.members[0].shape:
                        break
                    batch.members += other.members
                    line.pop(0)
            for job in batch.members:
                job.state = "running"
            busy.append((now + seconds[batch.size], batch.members))
            out.append((now, now + seconds[batch.size], [job.index for job in batch.members]))

    def grow(now: float) -> None:
        wake[0] = inf
        while True:
            if form[0].fixed:
                form[0] = RefBatch()
            queue = waiting()
            if not queue:
                return
            if len(busy) < options.instances:
                if line:
                    return
            elif not (early and len(line) < 2 * options.instances):
                return
            n, again = decide(form[0], queue, now)
            if again is not None:
                wake[0] = again
                return
            if n == 0 and not form[0].fixed:
                return
            for job in queue[:n]:
                job.state = "forming"
            form[0].members += queue[:n]
            if form[0].members and not form[0].line:
                form[0].line = True
                line.append(form[0])

    def decide(batch: RefBatch, queue: list[RefJob], now: float) -> tuple[int, float | None]:
        first = (batch.members or queue)[0]
        totals = [batch.size + sum(job.items for job in queue[:k]) for k in range(len(queue) + 1)]
        may = [k for k in range(len(queue) + 1) if fits(k, totals, batch, queue, first)]
        most = max(may)
        stopped = most < len(queue)
        blocked_by_size = stopped and totals[most + 1] > options.max_batch
        if stopped and not blocked_by_size:
            batch.before_other_shape = True
        exact = [k for k in may if k >= 1 and totals[k] in preferred]
        # the first job that would lead beyond the largest preferred size, if the cursor reaches it
        over = [k for k in range(min(most, len(queue) - 1) + 1) if totals[k + 1] > max(preferred)]
        over = [k for k in over if k or batch.members]
        best = exact[-1] if exact else 0
        if over and not [k for k in exact if k <= over[0]]:
            batch.fixed = True
            positive = [k for k in over if k >= 1]
            best = max(best, positive[0]) if positive else best
        late = options.delay_s > 0 and most > 0
        late = late and now >= min(job.arrival_s for job in queue[:most]) + options.delay_s
        if best and not late:
            if options.delay_s == 0:
                batch.fixed = True
            return best, None
        if most == 0:
            return 0, None
        if stopped or totals[most] >= max(preferred):
            batch.fixed = True
            return most, None
        if late or options.delay_s == 0:
            return most, None
        if batch.members and not batch.fixed and batch.size not in preferred:
            return most, None
        return 0, min(job.arrival_s for job in queue[:most]) + options.delay_s

    def fits(k: int, totals: list[int], batch: RefBatch, queue: list[RefJob], first: RefJob) -> bool:
        if any(job.shape != first.shape for job in queue[:k]):
            return False
        alone = k == 1 and not batch.members
        return (
            k == 0
            or alone
            or all(total <= options.max_batch for total in totals[2 if not batch.members else 1 : k + 1])
        )

    while True:
        times = [job.arrival_s for job in jobs if job.state == "not sent"]
        times += [end for end, _ in busy]
        times += [job.arrival_s + deadline(job, options) for job in jobs if job.state == "waiting"]
        times += [wake[0]]
        now = min(times)
        if now == inf:
            return out
        ended = [each for each in busy if each[0] == now]
        if ended:
            for _, members in ended:
                for job in members:
                    job.state = "done"
            busy[:] = [each for each in busy if each[0] != now]
            settle(now)
        for job in jobs:
            if job.state == "waiting" and job.arrival_s + deadline(job, options) == now:
                job.state = "delayed" if options.timeout_action == "delay" else "expired"
        for job in jobs:
            if job.state == "not sent" and job.arrival_s == now:
                same = sum(1 for other in waiting() if level(other) == level(job))
                job.state = "full" if options.max_waiting is not None and same >= options.max_waiting else "waiting"
        settle(now)


def deadline(job: RefJob, options: RefOptions) -> float:
    return min(job.timeout_s, options.timeout_s)
