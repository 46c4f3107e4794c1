"""What an autoscaler measures of a pool, look by look."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from catalogs.scaling import Autoscaling
from simulator.replica import Replica
from simulator.results import UNFINISHED

if TYPE_CHECKING:
    from simulator.cluster import Cluster


class LoadMeter:
    """Reads one metric of catalogs/scaling.py. Look at it at equal intervals."""

    def __init__(self, cluster: Cluster, pool: int, options: Autoscaling) -> None:
        self._cluster, self._pool, self._options = cluster, pool, options
        self._busy = BusyMeter()
        self._tokens = FirstTokens(cluster, pool, options.quantile)

    def total(self, ready: Sequence[Replica]) -> float:
        """Over all ready replicas together; of ttft, as much a replica as was seen, times their number."""
        metric = self._options.metric
        if metric == "queue":
            return float(sum(replica.n_waiting for replica in ready) + self._cluster.n_stranded(self._pool))
        if metric == "outstanding":
            return float(sum(replica.outstanding for replica in ready) + self._cluster.n_stranded(self._pool))
        if metric == "kv":
            return sum(replica.kv_used_fraction for replica in ready)
        if metric == "busy":
            return sum(self._busy.fraction(replica, self._options.interval_s) for replica in ready)
        return self._tokens.ttft_s() * max(1, len(ready))


class BusyMeter:
    """Share of the time since the last look in which a replica computed."""

    def __init__(self) -> None:
        self._seen: dict[
            int, tuple[list[int], float]
        ] = {}  # by replica: rows read of each log, busy seconds until then

    def fraction(self, replica: Replica, interval_s: float) -> float:
        """Of a pipeline: of its batches on average."""
        rows, before_s = self._seen.get(replica.index, ([0] * len(replica.lanes), 0.0))
        logged_s, now = 0.0, replica.now
        for i, lane in enumerate(replica.lanes):
            logged_s += lane.log.total_since(rows[i])
            rows[i] = len(lane.log)
        running_s = sum(lane.running_s for lane in replica.lanes)
        busy_s = logged_s + running_s - before_s
        self._seen[replica.index] = (rows, running_s)
        window_s = min(interval_s, now - replica.born_s)
        return min(1.0, max(0.0, busy_s / (window_s * len(replica.lanes)))) if window_s > 0.0 else 0.0


class FirstTokens:
    """Times to first token since the last look, of those who wait for theirs: so long as they have waited."""

    def __init__(self, cluster: Cluster, pool: int, quantile: float) -> None:
        self._cluster, self._pool, self._quantile = cluster, pool, quantile
        self._open: list[int] = []
        self._next = 0  # the first request of the workload that had not been sent

    def ttft_s(self) -> float:
        """The quantile; 0 where nobody got one and nobody waits."""
        results, now = self._cluster.results, self._cluster.clock.now
        sent = results.arrival_s
        while self._next < len(sent) and sent[self._next] <= now:
            if self._cluster.goes_to(self._next, self._pool):
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
        if not found:
            return 0.0
        found.sort()
        return found[min(len(found) - 1, int(self._quantile * len(found)))]
