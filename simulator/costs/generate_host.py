"""The host's time of a decode step of `generate` of transformers on a CPU, from a profile of this machine.

A profile measures the whole host time of a small model of the same class (calibration/profile/kernels/generate.py).
That time includes launching the kernels of a step, and so do the measured times of the kernels. Only the difference
is therefore added to the price of the kernels.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from calibration.bundles.bundle import Bundle
from calibration.families.network_kernels import HostLaunchModel
from catalogs.deployments.resolved import ResolvedDeployment
from simulator.layers.shard import Shard
from simulator.layers.step import step_launches

#: A host time is never zero.
LEAST_S: Final = 1e-6


def with_generate_host(resolved: ResolvedDeployment, bundle: Bundle) -> ResolvedDeployment:
    """Return a deployment with the host times of `generate` where its engine calls that and a profile measured it."""
    model, host = bundle.models.get("host_launch"), resolved.engine.host
    is_cpu = resolved.hardware.accelerator.kind == "cpu"  # on a GPU, launches overlap the kernels
    if not (resolved.engine.calls_generate and is_cpu and isinstance(model, HostLaunchModel)) or host.measured:
        return resolved
    step_s = model.generate_step_s(resolved.model.architecture, resolved.model.n_layers)
    if step_s is None:
        return resolved
    launched_s = step_launches(Shard.of(resolved), encodes=False) * model.seconds.get("calls", 0.0)
    source = f"generate of a small {resolved.model.architecture}, measured on this machine"
    times = replace(
        host,
        step_s=max(step_s - launched_s, LEAST_S),
        step_s_per_sequence=0.0,
        step_gap_s=0.0,
        source=source,
        measured=True,
    )
    return replace(resolved, engine=replace(resolved.engine, host=times))
