"""Settings of deployment.yaml that replace a default of the engine version: scheduling ahead, and which kernels run.

They are facts of a launch, not choices of the planner: the planner leaves the engine's defaults.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final, Literal

from catalogs.deployments.schema import Deployment
from catalogs.engines.profile import EngineProfile
from catalogs.errors import InputError
from catalogs.hardware.specs import Accelerator
from catalogs.models.spec import ModelSpec

#: The engine with flags for these settings.
ENGINE: Final = "vllm"

#: Number formats of MXFP4 experts' inputs: the device needs 4-bit operands for `mxfp8`.
ActivationDtype = Literal["bf16", "mxfp8"]

KEYS: Final = ("async_scheduling", "activation_dtype", "fused_allreduce")


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """The settings of a deployment; None is the engine's default.

    Attributes:
        async_scheduling: The next step is scheduled while one is in flight (--async-scheduling).
        activation_dtype: Number format of the inputs of MXFP4 experts (VLLM_USE_FLASHINFER_MOE_MXFP4_MXFP8).
        fused_allreduce: In CUDA graphs, the all-reduce kernel adds the residual and normalises (fuse_allreduce_rms).
    """

    async_scheduling: bool | None = None
    activation_dtype: ActivationDtype | None = None
    fused_allreduce: bool | None = None

    @classmethod
    def of(cls, deployment: Deployment) -> EngineSettings:
        """Return the settings of a deployment as written."""
        return cls(deployment.async_scheduling, deployment.activation_dtype, deployment.fused_allreduce)

    @property
    def given(self) -> list[str]:
        """Return the keys that are set."""
        return [key for key in KEYS if getattr(self, key) is not None]

    def applied(self, engine: EngineProfile, model: ModelSpec, unit: Accelerator) -> EngineProfile:
        """Return the engine with these settings in place of its defaults.

        Raises:
            InputError: The engine has no such flag, the model has no experts in MXFP4, or the device cannot multiply
                8-bit by 4-bit operands.
        """
        if not self.given:
            return engine
        if engine.name != ENGINE:
            raise InputError(f"{self.given[0]} is a setting of vLLM; {engine.name} has none", engine.name, ENGINE)
        changed: dict[str, Any] = {}
        if self.async_scheduling is not None:
            changed["async_scheduling"] = self.async_scheduling
        if self.fused_allreduce is not None:
            changed["fuses_norms"] = self.fused_allreduce
        if self.activation_dtype is not None:
            _check_activations(self.activation_dtype, model, unit)
            changed["mxfp8_activations"] = self.activation_dtype == "mxfp8"
        return replace(engine, **changed)


#: The settings of a deployment that leaves all of them to the engine.
DEFAULTS: Final = EngineSettings()


def _check_activations(dtype: ActivationDtype, model: ModelSpec, unit: Accelerator) -> None:
    if not model.is_moe:
        raise InputError(f"activation_dtype is that of experts; {model.name} has none", dtype, hint="leave it out")
    if dtype == "mxfp8" and "fp4" not in unit.peak_flops:
        raise InputError(f"{unit.name} does not multiply 4-bit operands: activation_dtype", dtype, "bf16")
