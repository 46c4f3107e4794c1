"""The measured cost of a network's operators, where the calibration of this machine holds their families.

`calibrate run` measures the kernels of torch: products and convolutions with the weights of the module, attention
without a causal mask, and memory-bound kernels one by one. They stand for eager mode. torch.compile calls the same
kernels for products, convolutions and attention, and fuses the others; TensorRT has kernels of its own.
"""

from __future__ import annotations

from typing import Final

from calibration.bundles.bundle import Bundle
from calibration.families.network_kernels import HostLaunchModel, NetworkKernelModel
from calibration.families.noncausal_attention import NonCausalAttentionModel
from calibration.operators.cost import Cost, CostSource
from calibration.operators.network_operators import TORCH_ATTENTION, network_operator
from calibration.operators.operators import NonCausalAttention, Streaming
from catalogs.networks.network import SizedOperator
from simulator.networks.execution import Execution

#: The measured dtype of each precision; the others have kernels that were not measured.
MEASURED_DTYPE: Final = {"fp32": "fp32", "bf16": "bf16", "fp16": "bf16"}

#: Backends that are torch's own attention.
TORCH_BACKENDS: Final = (None, TORCH_ATTENTION)


def measured_cost(op: SizedOperator, execution: Execution, bundle: Bundle, source: CostSource) -> Cost | None:
    """Return the cost of one run of an operator, or None where the calibration does not hold its kernel.

    Args:
        op: The operator.
        execution: How the network runs.
        bundle: The calibration.
        source: The same costs, perhaps at another clock.
    """
    dtype = MEASURED_DTYPE.get(execution.precision)
    if dtype is None or execution.mode == "tensorrt":
        return None
    found = network_operator(op, dtype)
    if found is None:
        return None
    model = bundle.models.get(found.family)
    if isinstance(found, NonCausalAttention):
        wanted = execution.attention_backend in TORCH_BACKENDS
        known = wanted and isinstance(model, NonCausalAttentionModel) and model.covers(found)
    elif isinstance(found, Streaming):
        known = execution.mode == "eager" and isinstance(model, NetworkKernelModel) and model.covers(found)
    else:
        known = isinstance(model, NetworkKernelModel) and model.covers(found)
    return source.cost(found) if known else None


def host_launch_s(execution: Execution, bundle: Bundle) -> float | None:
    """Return the host's seconds for one kernel in eager mode, or None where they were not measured.

    Compiled modes launch in other ways, whose times are stated (factors.py).
    """
    model = bundle.models.get("host_launch")
    if execution.mode != "eager" or not isinstance(model, HostLaunchModel):
        return None
    return model.beyond_calls_s(on_host=bundle.accelerator.kind == "cpu")
