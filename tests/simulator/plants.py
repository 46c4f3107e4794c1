"""Hand-made worlds for the cost and memory tests: small models, a toy calibration, no files."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from calibration.operators.cost import INTERPOLATED, Cost
from calibration.operators.operators import DecodeAttention, Operator
from calibration.operators.roofline import roofline_s
from catalogs.deployments.resolve import resolve
from catalogs.deployments.resolved import ResolvedDeployment
from catalogs.deployments.schema import Deployment
from catalogs.hardware.specs import Accelerator


class ToySource:
    """Every operator takes 2 us more than 1.25 x its roofline and draws 500 W; uneven decodes cost a little more."""

    def __init__(self, accelerator: Accelerator, joins: bool = False) -> None:
        self.accelerator = accelerator
        self.joins = joins

    def cost(self, op: Operator) -> Cost:
        seconds = roofline_s(op, self.accelerator) * 1.25 + 2e-6
        if isinstance(op, DecodeAttention):
            mean = np.asarray(op.context_tokens) / np.maximum(op.sequences, 1)
            seconds = seconds + 1e-9 * np.asarray(op.sequences) * (np.asarray(op.max_context_tokens) - mean)
        return Cost(seconds, np.full_like(seconds, 500.0), np.full_like(seconds, INTERPOLATED))

    def relative_error(self, family: str) -> float:  # noqa: ARG002 - one error for all
        return 0.1

    borrowed_error: float | None = None
    attention_writes_cache: bool = False
    experts_are_chosen: bool = False

    def joins_decodes(self, head_dim: int, kv_dtype: str) -> bool:  # noqa: ARG002 - one kernel for all
        return self.joins


def resolved(model: str = "llama-2-7b", hardware: str = "h100x1", **keys: object) -> ResolvedDeployment:
    """A deployment on real catalog entries, sized so that tables stay small."""
    limits = {"max_num_seqs": 64, "max_num_batched_tokens": 1024, "max_model_len": 4096, "weight_dtype": "bf16"}
    return resolve(Deployment(model=model, hardware=hardware, **(limits | keys)))  # type: ignore[arg-type]


def with_host(deployment: ResolvedDeployment, step_s: float, async_scheduling: bool = True) -> ResolvedDeployment:
    """The same deployment with another host time per step."""
    host = replace(deployment.engine.host, step_s=step_s)
    return replace(deployment, engine=replace(deployment.engine, host=host, async_scheduling=async_scheduling))
