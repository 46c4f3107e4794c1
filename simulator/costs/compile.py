"""Choose the step-cost model of a deployment and compile it."""

from __future__ import annotations

from dataclasses import replace

from calibration.operators.cost import CostSource
from catalogs.deployments.resolved import ResolvedDeployment
from simulator.costs.speculative import SpeculativeCost, draft_tables
from simulator.costs.step_cost import EncoderCost, StepCost
from simulator.costs.tables import StepTables


def compile_step_cost(resolved: ResolvedDeployment, source: CostSource) -> StepCost:
    """Compile the step costs of a deployment, with the drafter's passes where it decodes speculatively.

    Raises:
        InputError: The model has a property that serving does not cover.
    """
    tables = StepTables.build(resolved, source)
    if not resolved.runs_language_model:
        return EncoderCost(tables)
    if resolved.speculation is None:
        return StepCost(tables)
    return SpeculativeCost(replace(tables, draft=draft_tables(tables, source)))
