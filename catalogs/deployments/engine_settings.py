"""Settings of deployment.yaml that replace a default of the engine version: scheduling ahead, graphs and kernels.

They are facts of a launch, not choices of the planner: the planner leaves the engine's defaults.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Final, Literal

from catalogs.deployments.schema import AttentionBackend, CudaGraphMode, Deployment, GemmBackend, MoeBackend
from catalogs.engines.profile import EngineProfile
from catalogs.errors import InputError
from catalogs.hardware.specs import Accelerator
from catalogs.models.mixers import PARTS, Part
from catalogs.models.spec import ModelSpec, WeightFormat

#: Number formats of MXFP4 experts' inputs: the device needs 4-bit operands for `mxfp8`.
ActivationDtype = Literal["bf16", "mxfp8"]

_GRAPHS: Final = ("cudagraph_mode", "cudagraph_capture_sizes", "max_cudagraph_capture_size")

_KERNELS: Final = ("moe_backend", "attention_backend")

#: Kernels of dense products in block-scaled FP8 that are priced: those of the tables, and FlashInfer's of fixed tiles.
_PRICED_PRODUCTS: Final = ("deepgemm", "flashinfer")

_DENSE: Final[tuple[Part, ...]] = tuple(part for part in PARTS if part != "experts")

#: Kernels of experts with rows of their own in the operator tables, where they are not the engine's choice.
_PRICED_EXPERTS: Final = "marlin"


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """The settings of a deployment; None is the engine's default.

    Attributes:
        async_scheduling: The next step is scheduled while one is in flight (--async-scheduling).
        activation_dtype: Number format of the inputs of MXFP4 experts (VLLM_USE_FLASHINFER_MOE_MXFP4_MXFP8).
        fused_allreduce: In CUDA graphs, the all-reduce kernel adds the residual and normalises (fuse_allreduce_rms).
        enforce_eager: The engine neither compiles the model nor captures graphs (--enforce-eager).
        cudagraph_mode: Which steps run in CUDA graphs (--compilation-config, cudagraph_mode).
        cudagraph_capture_sizes: Tokens of the captured batches (--cudagraph-capture-sizes).
        max_cudagraph_capture_size: The largest captured batch (--max-cudagraph-capture-size).
        gemm_backend: Kernels of dense products in block-scaled FP8 (SGLang's --fp8-gemm-backend). Those of DeepGEMM and
            FlashInfer are priced. Others are recorded, not priced.
        moe_backend: Kernels of experts (--moe-backend). Marlin's are priced for experts in MXFP4. Where an engine pads
            the rows of block-scaled experts, only DeepGEMM does. Others are recorded, not priced.
        attention_backend: Kernels of attention (--attention-backend); recorded, not priced.
    """

    async_scheduling: bool | None = None
    activation_dtype: ActivationDtype | None = None
    fused_allreduce: bool | None = None
    enforce_eager: bool | None = None
    cudagraph_mode: CudaGraphMode | None = None
    cudagraph_capture_sizes: tuple[int, ...] | None = None
    max_cudagraph_capture_size: int | None = None
    gemm_backend: GemmBackend | None = None
    moe_backend: MoeBackend | None = None
    attention_backend: AttentionBackend | None = None

    @classmethod
    def of(cls, deployment: Deployment) -> EngineSettings:
        """Return the settings of a deployment as written."""
        sizes = deployment.cudagraph_capture_sizes
        own = {key: getattr(deployment, key) for key in KEYS}
        return cls(**own | {"cudagraph_capture_sizes": None if sizes is None else tuple(sorted(set(sizes)))})

    @property
    def given(self) -> list[str]:
        """Return the keys that are set."""
        return [key for key in KEYS if getattr(self, key) is not None]

    def notices(self, stored: WeightFormat, engine: EngineProfile, unit: Accelerator) -> tuple[str, ...]:
        """Return notices about settings that are recorded without an effect on the times of steps, kernels in one.

        Args:
            stored: The storage of the weights: Marlin's kernels are priced for experts in MXFP4 only, and rows that
                DeepGEMM pads for experts, and kernels of dense products, for block-scaled FP8 only.
            engine: The engine with its own defaults, before the settings replace any.
            unit: The device.
        """
        pads = stored.has_scale_blocks("experts") and padded_expert_rows(engine, unit) > 0
        marlin = self.moe_backend == _PRICED_EXPERTS and stored.has_mxfp4("experts")
        dense = self.gemm_backend in _PRICED_PRODUCTS and any(stored.has_scale_blocks(part) for part in _DENSE)
        priced = ("moe_backend",) * (pads or marlin) + ("gemm_backend",) * dense
        named = [(key, getattr(self, key)) for key in ("gemm_backend", *_KERNELS) if key not in priced]
        kernels = ", ".join(f"{key} {value}" for key, value in named if value is not None)
        found = [f"recorded, not priced: {kernels}; steps take the kernels of the operator tables"] if kernels else []
        return tuple(found)

    def applied(self, engine: EngineProfile, model: ModelSpec, unit: Accelerator) -> EngineProfile:
        """Return the engine with these settings in place of its defaults.

        Raises:
            InputError: The engine has no such option, two settings contradict each other, the model has no experts in
                MXFP4, or the device cannot multiply 8-bit by 4-bit operands or has no such kernel.
        """
        if not self.given:
            return engine
        for key in self.given:
            if key not in ENGINES.get(engine.name, ()):
                having = [name for name, keys in ENGINES.items() if key in keys]
                raise InputError(
                    f"{key} is a setting of {', '.join(having)}; {engine.name} has none", engine.name, having[0]
                )
        changed: dict[str, Any] = {}
        if self.async_scheduling is not None:
            changed["async_scheduling"] = self.async_scheduling
        if self.fused_allreduce is not None:
            changed["fuses_norms"] = self.fused_allreduce
        if self.activation_dtype is not None:
            _check_activations(self.activation_dtype, model, unit)
            changed["mxfp8_activations"] = self.activation_dtype == "mxfp8"
        if self.gemm_backend == "flashinfer" and not unit.is_data_center_blackwell:
            rule = f"FlashInfer's block-scaled FP8 products need Blackwell with HBM, not {unit.name}: gemm_backend"
            raise InputError(rule, self.gemm_backend, "deepgemm")
        if self.gemm_backend is not None:
            changed["flashinfer_products"] = self.gemm_backend == "flashinfer"
        if self.moe_backend is not None and not model.is_moe:
            raise InputError(f"moe_backend applies to experts; {model.name} has none", self.moe_backend, "null")
        if self.moe_backend is not None:
            changed["marlin_experts"] = self.moe_backend == _PRICED_EXPERTS
        if self.moe_backend not in (None, "deepgemm"):
            changed["expert_block_rows"] = {}  # only DeepGEMM computes padded blocks
        if self.moe_backend not in (None, "flashinfer"):
            changed["cut_experts_tables"] = {}  # those of FlashInfer's kernel, which the engine chooses itself
        return replace(engine, **(changed | self._graphs(engine)))

    def _graphs(self, engine: EngineProfile) -> dict[str, Any]:
        """Return the fields of a profile that CUDA graphs decide.

        With enforce_eager, vLLM neither compiles nor captures (config/vllm.py, __post_init__), so no pass fuses norms,
        activations and quantisation.
        """
        if self.enforce_eager:
            given = [key for key in (*_GRAPHS, "fused_allreduce") if getattr(self, key) not in (None, False, "none")]
            if given:
                raise InputError("enforce_eager turns CUDA graphs and fused passes off", given[0], f"{given[0]}: null")
            return _no_graphs() | {"fuses_quantisation": False, "fuses_norms": False}
        if self.cudagraph_mode == "none":
            return _no_graphs()
        found: dict[str, Any] = {}
        if self.cudagraph_mode is not None:
            found["graphs_with_prefill"] = self.cudagraph_mode != "full_decode_only"
            found["graphs_in_pieces"] = self.cudagraph_mode == "piecewise"
        if self.cudagraph_capture_sizes:
            most = self.max_cudagraph_capture_size or max(self.cudagraph_capture_sizes)
            sizes = tuple(size for size in self.cudagraph_capture_sizes if size <= most)
            stated = {"graph_capture_sizes": sizes, "max_graph_tokens": max(sizes, default=0)}
            return found | stated | {"graphs_follow_seats": False}
        return found | engine.graphs_up_to(self.max_cudagraph_capture_size)


#: The keys of deployment.yaml that are settings.
KEYS: Final = tuple(f.name for f in fields(EngineSettings))

#: The settings that each engine has an option for, by the name of its profile.
ENGINES: Final[Mapping[str, tuple[str, ...]]] = {
    "vllm": tuple(key for key in KEYS if key != "gemm_backend"),
    "vllm-v0": ("enforce_eager", "attention_backend"),
    "sglang": ("async_scheduling", *_GRAPHS, "gemm_backend", *_KERNELS),
    "trtllm": ("async_scheduling", *_GRAPHS, *_KERNELS),
    "trtllm-max-utilization": ("async_scheduling", *_GRAPHS, *_KERNELS),
}

#: The settings of a deployment that leaves all of them to the engine.
DEFAULTS: Final = EngineSettings()


def for_attention(engine: EngineProfile, model: ModelSpec) -> EngineProfile:
    """Return the engine as it runs the attention of a model: in pieces, or in turn with the device, where it must."""
    if not model.has_chunked_attention:
        return engine
    pieces = engine.graphs_in_pieces or (engine.chunks_in_pieces and bool(engine.graph_capture_sizes))
    return replace(engine, graphs_in_pieces=pieces, overlaps_host=engine.overlaps_host and not engine.chunks_wait)


def padded_expert_rows(engine: EngineProfile, unit: Accelerator) -> int:
    """Return the rows of the blocks in which an engine computes block-scaled experts on a device, or 0."""
    return engine.expert_block_rows.get(unit.architecture, 0) if unit.has_hbm else 0


def _no_graphs() -> dict[str, Any]:
    return {"graph_capture_sizes": (), "max_graph_tokens": 0, "graphs_with_prefill": False}


def _check_activations(dtype: ActivationDtype, model: ModelSpec, unit: Accelerator) -> None:
    if not model.is_moe:
        raise InputError(f"activation_dtype applies to experts; {model.name} has none", dtype, hint="leave it out")
    if dtype == "mxfp8" and "fp4" not in unit.peak_flops:
        raise InputError(f"{unit.name} does not multiply 4-bit operands: activation_dtype", dtype, "bf16")
