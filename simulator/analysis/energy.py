"""Power and energy of a run, from first arrival to last token: accelerators of every pool, and their hosts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from simulator.cluster.compiled import CompiledDeployment
from simulator.cluster.run import Run
from simulator.core.step_log import StepLog
from simulator.costs.totals import StepTotals


@dataclass(frozen=True, slots=True)
class PoolEnergy:
    """The energy of one pool's steps.

    `replicas` is the mean number of replicas that lived or were starting.
    """

    compiled: CompiledDeployment
    totals: StepTotals
    replicas: float
    duration_s: float

    @property
    def accelerators(self) -> float:
        """Return the mean number of accelerators in use."""
        return self.compiled.resolved.accelerators_per_replica * self.replicas

    @property
    def idle_s(self) -> float:
        """Return the idle seconds, summed over the replicas."""
        return max(0.0, self.duration_s * self.replicas - self.totals.busy_s)

    @property
    def gpu_j(self) -> float:
        """Return the joules of the accelerators."""
        joules = self.totals.joules_per_accelerator + self.idle_s * self.totals.idle_w
        return self.compiled.resolved.accelerators_per_replica * joules

    @property
    def busy_host_j(self) -> float:
        """Return the joules of the hosts above idle, for busy accelerators."""
        resolved = self.compiled.resolved
        return resolved.hardware.node.host_w_per_accelerator * resolved.accelerators_per_replica * self.totals.busy_s


def pool_totals(run: Run, within_s: tuple[float, float] | None = None) -> tuple[StepTotals, ...]:
    """Return the sums over the steps of each pool, for the whole run or for a part of it."""
    found = []
    for number, compiled in enumerate(run.compiled_pools):
        logs = (log for r in run.replicas if r.pool == number for log in r.logs)
        merged = StepLog.merged(logs if within_s is None else (log.between(*within_s) for log in logs))
        found.append(compiled.cost.totals(merged))
    return tuple(found)


def pool_uses(
    run: Run, within_s: tuple[float, float] | None = None, totals: Sequence[StepTotals] | None = None
) -> tuple[PoolEnergy, ...]:
    """Return the energy of each pool, for the whole run or for a part of it.

    Args:
        run: The run.
        within_s: The part; None for the whole run.
        totals: The result of `pool_totals`, if the caller has it already.

    Raises:
        ValueError: The run has no compiled deployment.
    """
    if not run.compiled_pools:
        raise ValueError("a run without a compiled deployment has no energy and no calibration")
    totals = pool_totals(run, within_s) if totals is None else totals
    first_s, last_s = within_s or run.span_s
    whole_s = run.span_s[1] - run.span_s[0]
    found = []
    for number, compiled in enumerate(run.compiled_pools):
        mine = [r for r in run.replicas if r.pool == number]
        alive = float(sum(r.alive_fraction(first_s, last_s) for r in mine))
        if whole_s > 0:
            alive += run.starting_s(number) / whole_s
        found.append(PoolEnergy(compiled, totals[number], alive, last_s - first_s))
    return tuple(found)


def joules_drawn(uses: Sequence[PoolEnergy]) -> float:
    """Return the joules of all the hardware of the deployment, see `power_and_energy`."""
    return sum(use.gpu_j for use in uses) + _unused_j(uses) + _host_j(uses)


def power_and_energy(uses: Sequence[PoolEnergy], output_tokens: float) -> dict[str, Any]:
    """Return the blocks `power` and `energy` for all the hardware of the deployment.

    Accelerators without a live replica idle. The host draws its share of a whole node's idle power, and more for each
    busy accelerator. If a pool of a site is scaled, unused hardware is returned and does not count.
    """
    duration = uses[0].duration_s
    gpu_j, total_j = sum(use.gpu_j for use in uses), joules_drawn(uses)
    used = sum(use.accelerators for use in uses)
    return {
        "power": {
            "gpu_w_mean": gpu_j / used / duration if duration and used else None,
            "node_w_mean": total_j / duration if duration else None,
        },
        "energy": {
            "gpu_j": gpu_j,
            "gpu_j_per_output_token": gpu_j / output_tokens if output_tokens else None,
            "total_j_per_output_token": total_j / output_tokens if output_tokens else None,
        },
    }


def _sites(uses: Sequence[PoolEnergy]) -> list[list[PoolEnergy]]:
    """Return the pools grouped by the hardware that they share."""
    names = dict.fromkeys(use.compiled.resolved.site for use in uses)
    return [[use for use in uses if use.compiled.resolved.site == name] for name in names]


def _unused_j(uses: Sequence[PoolEnergy]) -> float:
    """Return the joules of accelerators without a replica."""
    unused = ((site[0], _held(site) - sum(use.accelerators for use in site)) for site in _sites(uses))
    return float(sum(n * first.totals.idle_w * first.duration_s for first, n in unused))


def _held(site: Sequence[PoolEnergy]) -> float:
    """Return the mean number of accelerators that are paid for."""
    used = sum(use.accelerators for use in site)
    scaled = any(use.compiled.resolved.scaling is not None for use in site)
    return used if scaled else max(used, site[0].compiled.resolved.hardware.n_accelerators)


def _host_j(uses: Sequence[PoolEnergy]) -> float:
    """Return the joules of the hosts."""
    total = 0.0
    for site in _sites(uses):
        node = site[0].compiled.resolved.hardware.node
        idle_w = node.host_idle_w * _held(site) / node.max_accelerators
        total += idle_w * site[0].duration_s + sum(use.busy_host_j for use in site)
    return total
