"""The number of a pool's replicas follows the load, by the rules of Kubernetes' HorizontalPodAutoscaler.

Sources: kubernetes/pkg/controller/podautoscaler (horizontal.go, replica_calculator.go) and the autoscaling/v2 API. KEDA
hands its triggers to the same controller; only going to no replica at all and back is its own.

- queue, outstanding: totals over a target for each replica (AverageValue, what KEDA's triggers are): wanted =
  ceil(total / target), replicas that start counted as there.
- kv, busy: an average over ready replicas (Pods, Resource): wanted = ceil(ready * average / target); replicas that
  start count as idle when it would go up.
- ttft: one value over its target (Value): wanted = ceil(ready * value / target).
- Within the tolerance nothing changes. What is wanted is held against the recommendations of the stabilisation
  windows: the lowest of one before it goes up, the highest of the other before it goes down.
- Up by at most scale_up_replicas or scale_up_percent in 15 s, whichever is more.
- Down: replicas that start are given up first, then the youngest drain: they get no more requests and go when they have
  served those they have (a pod's preStop hook with a grace period that is long enough).
"""

from __future__ import annotations

from collections import deque
from math import ceil, floor
from typing import TYPE_CHECKING, Final

from catalogs.scaling import Autoscaling
from simulator.controllers.load_meter import LoadMeter

if TYPE_CHECKING:
    from simulator.cluster import Cluster
    from simulator.order import Order
    from simulator.replica import Replica

#: The period of the scale-up policy, seconds (autoscaling/v2's default).
POLICY_PERIOD_S: Final = 15.0


class Autoscaler:
    """Of one pool. cold_s: from the order of a replica to its first request."""

    def __init__(self, pool: int, options: Autoscaling, cold_s: float) -> None:
        self.pool, self.options, self.cold_s = pool, options, cold_s
        self._recommended: deque[tuple[float, int]] = deque()  # (when, how many replicas)
        self._added: deque[tuple[float, int]] = deque()

    def start(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._meter = LoadMeter(cluster, self.pool, self.options)
        self._recommended.clear()
        self._added.clear()
        self._recommended.append((cluster.clock.now, len(cluster.living(self.pool))))
        cluster.every(self.options.interval_s, self._look)

    def _look(self) -> None:
        cluster = self._cluster
        ready = cluster.living(self.pool)
        starting = cluster.orders.pending(self.pool)
        current = len(ready) + len(starting)
        wanted = self._limited(self._stabilised(self._wanted(ready, len(starting)), current), current)
        if wanted > current:
            self._added.append((cluster.clock.now, wanted - current))
            for _ in range(wanted - current):
                cluster.orders.place(self.pool, self.cold_s)
        elif wanted < current:
            self._shrink(ready, starting, current - wanted)

    def _wanted(self, ready: list[Replica], starting: int) -> int:
        options = self.options
        total, current = self._meter.total(ready), len(ready) + starting
        if not current:  # KEDA: from none to one as soon as somebody waits
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
        if abs(ratio - 1.0) <= self.options.tolerance:
            return current
        return ceil(wanted - 1e-9)

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

    def _shrink(self, ready: list[Replica], starting: list[Order], n: int) -> None:
        for order in starting[::-1][:n]:
            self._cluster.orders.cancel(order)
        left = n - min(n, len(starting))
        for replica in ready[::-1][:left]:
            self._cluster.drain(replica)
