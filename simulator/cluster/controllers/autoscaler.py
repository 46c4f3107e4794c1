"""Autoscaling: the number of a pool's replicas follows the load by the rules of Kubernetes' HorizontalPodAutoscaler.

Sources: kubernetes/pkg/controller/podautoscaler (horizontal.go, replica_calculator.go) and the autoscaling/v2 API. KEDA
passes its triggers to the same controller, and adds only scaling to zero replicas and back.

- queue, outstanding: totals over a target for each replica (AverageValue, what KEDA's triggers are): wanted =
  ceil(total / target), with starting replicas counted as ready.
- kv, busy: an average over ready replicas (Pods, Resource): wanted = ceil(ready * average / target); starting replicas
  count as idle when the number would increase.
- ttft: one value over its target (Value): wanted = ceil(ready * value / target).
- Within the tolerance nothing changes. The wanted number is limited by the recommendations of the stabilisation
  windows: scaling up uses the lowest in its window, and scaling down the highest in its window.
- Scaling up adds at most scale_up_replicas or scale_up_percent in 15 s, whichever is more.
- Scaling down cancels starting replicas first. Then the youngest replicas drain: they receive no more requests and end
  when they have served those they have (a pod's preStop hook with a sufficient grace period).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from math import ceil, floor
from typing import TYPE_CHECKING, Final

from catalogs.deployments.autoscaling import Autoscaling
from simulator.core.outcomes import UNFINISHED
from simulator.engine.replica import Replica

if TYPE_CHECKING:
    from simulator.cluster.cluster import Cluster


#: The period of the scale-up policy, seconds (autoscaling/v2's default).
POLICY_PERIOD_S: Final = 15.0


class Autoscaler:
    """The autoscaler of one pool."""

    def __init__(self, pool: int, options: Autoscaling, cold_s: float) -> None:
        """Create an autoscaler; cold_s is the seconds from the order of a replica to its first request."""
        self.pool, self.options, self.cold_s = pool, options, cold_s

    def start(self, cluster: Cluster) -> None:
        """Start the periodic adjustment of the number of replicas."""
        self._cluster = cluster
        self._meter = LoadMeter(cluster, self.pool, self.options)
        ready = len(cluster.live_replicas(self.pool))
        self._recommended: deque[tuple[float, int]] = deque([(cluster.clock.now, ready)])  # (time, number of replicas)
        self._added: deque[tuple[float, int]] = deque()
        cluster.timetable.every(self.options.interval_s, self._adjust)

    def _adjust(self) -> None:
        """Measure the load, and order or drain replicas."""
        cluster = self._cluster
        ready, starting = cluster.live_replicas(self.pool), cluster.orders.pending(self.pool)
        current = len(ready) + len(starting)
        wanted = self._limited(self._stabilised(self._wanted(ready, len(starting)), current), current)
        if wanted > current:
            self._added.append((cluster.clock.now, wanted - current))
            for _ in range(wanted - current):
                cluster.orders.place(self.pool, self.cold_s)
        surplus = max(0, current - wanted)
        for order in starting[::-1][:surplus]:
            cluster.orders.cancel(order)
        for replica in ready[::-1][: max(0, surplus - len(starting))]:
            cluster.drain(replica)

    def _wanted(self, ready: list[Replica], starting: int) -> int:
        options = self.options
        total, current = self._meter.total(ready), len(ready) + starting
        if not current:  # KEDA: from zero replicas to one as soon as a request waits
            return int(self._cluster.n_stranded(self.pool) > 0)
        if options.metric in ("queue", "outstanding"):
            return self._tolerated(total / (options.target * current), total / options.target, current)
        if not ready:
            return current
        ratio, n = total / (len(ready) * options.target), len(ready)
        if options.metric != "ttft" and ratio > 1.0 and starting:
            ratio, n = total / (current * options.target), current
            if ratio <= 1.0:
                return current
        wanted = self._tolerated(ratio, ratio * n, current)
        return max(wanted, current) if ratio > 1.0 else wanted

    def _tolerated(self, ratio: float, wanted: float, current: int) -> int:
        return current if abs(ratio - 1.0) <= self.options.tolerance else ceil(wanted - 1e-9)

    def _stabilised(self, wanted: int, current: int) -> int:
        options, now = self.options, self._cluster.clock.now
        wanted = min(max(wanted, options.min_replicas), options.max_replicas)
        self._recommended.append((now, wanted))
        longest_s = max(options.scale_up_stabilization_s, options.scale_down_stabilization_s)
        while self._recommended[0][0] < now - longest_s:
            self._recommended.popleft()
        lowest = min(n for t, n in self._recommended if t >= now - options.scale_up_stabilization_s)
        highest = max(n for t, n in self._recommended if t >= now - options.scale_down_stabilization_s)
        return min(max(current, lowest), highest)

    def _limited(self, wanted: int, current: int) -> int:
        options, now = self.options, self._cluster.clock.now
        while self._added and self._added[0][0] <= now - POLICY_PERIOD_S:
            self._added.popleft()
        before = current - sum(n for _, n in self._added)
        percent = floor(before * (1.0 + options.scale_up_percent / 100.0) + 1e-9)
        return min(wanted, max(before + options.scale_up_replicas, percent, current))


class LoadMeter:
    """Reads one metric of catalogs/deployments/autoscaling.py; call it at equal intervals."""

    def __init__(self, cluster: Cluster, pool: int, options: Autoscaling) -> None:
        self._cluster, self._pool, self._options = cluster, pool, options
        self._read: dict[int, tuple[list[int], float]] = {}  # by replica: rows read of each log, running seconds
        self._open: list[int] = []  # sent requests without a first token at the last call
        self._next = 0  # the first request of the workload that had not been sent

    def total(self, ready: Sequence[Replica]) -> float:
        """Return the metric summed over the ready replicas; for ttft, the value times their number."""
        metric = self._options.metric
        if metric == "queue":
            return float(sum(replica.n_waiting for replica in ready) + self._cluster.n_stranded(self._pool))
        if metric == "outstanding":
            return float(sum(replica.outstanding for replica in ready) + self._cluster.n_stranded(self._pool))
        if metric == "kv":
            return sum(replica.kv_used_fraction for replica in ready)
        if metric == "busy":
            return sum(map(self._busy_fraction, ready))
        return self._ttft_s() * max(1, len(ready))

    def _busy_fraction(self, replica: Replica) -> float:
        """Return the share of time since the last call in which a replica ran steps; for a pipeline, of its batches."""
        loops = replica.step_loops
        rows, before_s = self._read.get(replica.index, ([0] * len(loops), 0.0))
        logged_s = 0.0
        for i, loop in enumerate(loops):
            logged_s += loop.log.total_since(rows[i])
            rows[i] = len(loop.log)
        running_s = sum(loop.running_s for loop in loops)
        self._read[replica.index] = (rows, running_s)
        window_s = min(self._options.interval_s, replica.now - replica.created_s) * len(loops)
        return min(1.0, max(0.0, (logged_s + running_s - before_s) / window_s)) if window_s > 0.0 else 0.0

    def _ttft_s(self) -> float:
        """Return the quantile in seconds; 0 if no request received its first token or is waiting.

        It covers first tokens since the last call; requests without one count with their wait so far.
        """
        results, now = self._cluster.results, self._cluster.clock.now
        sent = results.arrival_s
        while self._next < len(sent) and sent[self._next] <= now:
            if self._cluster.wants_model_of(self._next, self._pool):
                self._open.append(self._next)
            self._next += 1
        found, waiting = [], []
        for index in self._open:
            first_s = results.first_token_s[index]
            if first_s <= now:
                found.append(first_s - sent[index])
            elif first_s == first_s or results.status[index] <= UNFINISHED:
                found.append(now - sent[index])
                waiting.append(index)
        self._open = waiting
        found.sort()
        return found[min(len(found) - 1, int(self._options.quantile * len(found)))] if found else 0.0
