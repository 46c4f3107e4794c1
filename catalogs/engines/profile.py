"""EngineProfile: the default behaviour of a serving engine, with its policy, limits, host times and flags.

These classes are also the schema of the files in data/engines/. Where the key of a file differs from the field, for
example by its unit, the annotation of the field states the key and the factor that converts it to SI.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Final, Literal

from pydantic import (
    AliasPath,
    BeforeValidator,
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    validate_call,
)

from catalogs.engines.flags import flags_of
from catalogs.engines.model_defaults import STRICT, Device, ModelDefaults, ReceiveIntervals
from catalogs.errors import InputError
from catalogs.io.yaml_files import times
from catalogs.units import GIB, MIB

#: Factors of the prefixes milli, micro and nano.
_MILLI, _MICRO, _NANO = 1e-3, 1e-6, 1e-9


@dataclass(frozen=True, slots=True)
class HostTimes:
    """Time that the host spends, in seconds, as calibrated terms of the engine profile (never silently zero).

    `step_s + step_s_per_sequence * n` is the CPU work of one engine step (schedule, prepare inputs, sample, output).
    With `async_scheduling` it overlaps the device and only the excess adds to the step; without it, all of it does.
    An engine file must state every positive time; the default of zero is for engines without host times.
    """

    __pydantic_config__ = STRICT

    step_s: Annotated[PositiveFloat, Field(alias="step_ms"), times(_MILLI)] = 0.0
    step_s_per_sequence: Annotated[PositiveFloat, Field(alias="step_ms_per_sequence"), times(_MILLI)] = 0.0
    #: Between two steps, never overlapped: sampling, input copies, device idle.
    step_gap_s: Annotated[NonNegativeFloat, Field(alias="step_gap_ms"), times(_MILLI)] = 0.0
    #: Per request: HTTP, validation, transfer to the engine core.
    request_s: Annotated[PositiveFloat, Field(alias="request_ms"), times(_MILLI)] = 0.0
    #: Tokenisation, one prompt at a time.
    request_s_per_input_token: Annotated[PositiveFloat, Field(alias="request_us_per_input_token"), times(_MICRO)] = 0.0
    #: The same for prompts of random tokens; 0: as for text.
    request_s_per_random_token: Annotated[
        NonNegativeFloat, Field(alias="request_us_per_random_token"), times(_MICRO)
    ] = 0.0
    #: From the end of a step to the client, without the work per token.
    output_s: Annotated[PositiveFloat, Field(alias="output_ms"), times(_MILLI)] = 0.0
    #: The part of request_s that occupies the API process.
    api_request_s: Annotated[PositiveFloat, Field(alias="api_request_ms"), times(_MILLI)] = 0.0
    #: Work of the API process on the output of a step.
    api_step_s: Annotated[PositiveFloat, Field(alias="api_step_ms"), times(_MILLI)] = 0.0
    #: Work per output token: detokenise, serialise, send.
    api_token_s: Annotated[PositiveFloat, Field(alias="api_token_us"), times(_MICRO)] = 0.0
    #: Wait per collective for the last rank to arrive.
    collective_skew_s: Annotated[NonNegativeFloat, Field(alias="collective_skew_us"), times(_MICRO)] = 0.0
    #: Per kernel outside CUDA graphs, on GPUs; 0: hidden by the device.
    kernel_launch_s: Annotated[NonNegativeFloat, Field(alias="kernel_launch_us"), times(_MICRO)] = 0.0
    #: The same in models with latent attention, whose layers launch more than is counted; 0: as in all models.
    latent_launch_s: Annotated[NonNegativeFloat, Field(alias="latent_launch_us"), times(_MICRO)] = 0.0
    #: Per layer of experts in MXFP4 outside CUDA graphs, on GPUs that do not multiply 4-bit operands: Triton's Python
    #: code, beyond the launches of its kernels.
    triton_experts_s: Annotated[NonNegativeFloat, Field(alias="triton_experts_us"), times(_MICRO)] = 0.0
    #: Per layer of a step in piecewise CUDA graphs, beyond its time in a whole one: the device waits for the attention,
    #: which is launched between two graphs.
    piece_s: Annotated[NonNegativeFloat, Field(alias="piece_us"), times(_MICRO)] = 0.0
    #: N-gram drafting: search for the last tokens, per sequence.
    ngram_s_per_sequence: Annotated[NonNegativeFloat, Field(alias="ngram_us_per_sequence"), times(_MICRO)] = 0.0
    #: N-gram drafting: per token of the sequence.
    ngram_s_per_token: Annotated[NonNegativeFloat, Field(alias="ngram_ns_per_token"), times(_NANO)] = 0.0
    source: str = ""
    measured: bool = False  # measured on this machine, by a probe of the engine

    def launch_s(self, latent: bool) -> float:
        """Return the host seconds per kernel outside CUDA graphs, of a model with or without latent attention."""
        return self.latent_launch_s or self.kernel_launch_s if latent else self.kernel_launch_s


@dataclass(frozen=True, slots=True)
class DefaultLimits:
    """Default limits of the API server on devices with at least `min_memory_bytes`; rules are tried in order."""

    __pydantic_config__ = STRICT

    kind: Literal["gpu", "cpu"]
    min_memory_bytes: Annotated[float, Field(alias="min_memory_gib"), times(GIB)]
    max_num_batched_tokens: PositiveInt
    max_num_seqs: PositiveInt
    except_accelerators: tuple[str, ...] = ()  # parts of the names of excluded accelerators
    per_rank: bool = False  # multiplied by tensor x pipeline ranks

    def holds(self, memory_bytes: float, accelerator_name: str, kind: str) -> bool:
        """Return whether the rule applies to this device."""
        excepted = any(part in accelerator_name for part in self.except_accelerators)
        return self.kind == kind and memory_bytes >= self.min_memory_bytes and not excepted


@dataclass(frozen=True, slots=True)
class StaticReserve:
    """Memory in bytes that an engine leaves outside its static share (weights and KV) for activations and graphs."""

    __pydantic_config__ = STRICT

    base_bytes: Annotated[PositiveFloat, Field(alias="base_mib"), times(MIB)]
    bytes_per_batched_token: Annotated[PositiveFloat, Field(alias="mib_per_batched_token"), times(MIB)]
    bytes_per_rank: Annotated[PositiveFloat, Field(alias="mib_per_rank"), times(MIB)]
    #: The minimum on accelerators with at least `least_from_bytes`.
    least_bytes: Annotated[PositiveFloat, Field(alias="least_mib"), times(MIB)]
    least_from_bytes: Annotated[PositiveFloat, Field(alias="least_from_memory_gib"), times(GIB)]

    def share(self, memory_bytes: float, batched_tokens: int, ranks: int) -> float:
        """Return the remaining fraction of the memory, rounded to three digits as SGLang does."""
        reserved = self.base_bytes + self.bytes_per_batched_token * batched_tokens + self.bytes_per_rank * ranks
        if memory_bytes >= self.least_from_bytes:
            reserved = max(reserved, self.least_bytes)
        return round(1.0 - reserved / memory_bytes, 3)


@dataclass(frozen=True, slots=True)
class EncoderServer:
    """How the engine runs a server that only encodes images, videos and audio (an encoder pool).

    Attributes:
        most_requests: The most requests of one pass; null: as many as the limits of a step hold.
        tensor_parallel: Whether several ranks can share such a server.
    """

    __pydantic_config__ = STRICT

    most_requests: PositiveInt | None = None
    tensor_parallel: bool = False


#: Which first token a client receives under disaggregation. "prefill": that of the prefill replica, at once;
#: "admission": the same when the decode replica schedules the request for the first time; "decode": one that the decode
#: replica computes from the last prompt token.
FirstToken = Literal["prefill", "admission", "decode"]

#: When blocks leave a prefill replica: at the end of the prompt, at the end of each chunk, or after each layer.
TransferMoment = Literal["at_end", "chunkwise", "layerwise"]

#: How requests are distributed over data-parallel ranks with one scheduler each (simulator/schedulers/dp_dispatch.py).
#: "balanced": one scheduler represents all ranks, which share every step evenly.
RankDispatch = Literal["balanced", "round_robin", "least_requests", "queue_score", "least_tokens", "random"]

#: Methods of speculative decoding.
Method = Literal["draft_model", "eagle", "eagle3", "mtp", "ngram"]

#: Orders of waiting requests.
Order = Literal["fcfs", "priority", "deadline", "prefix"]

#: The words of an engine file for whether steps are scheduled ahead of the device with a method of drafting.
_AHEAD: Final = BeforeValidator({"ahead": True, "in turn": False}.get)


#: Multiples of this are captured beyond an engine's own sizes (vllm/config, _set_cudagraph_sizes).
_FURTHER_SIZES: Final = 16


@validate_call
def capture_sizes(
    first: list[int], step: PositiveInt, to: PositiveInt, then_step: PositiveInt, most: PositiveInt
) -> tuple[int, ...]:
    """Return the sizes of CUDA graphs: `first`, multiples of `step` up to `to`, and of `then_step` up to `most`."""
    return (*first, *range(step, to + 1, step), *range(to + then_step, most + 1, then_step))


@dataclass(frozen=True, slots=True)
class EngineProfile:
    """The default behaviour of one engine version."""

    __pydantic_config__ = STRICT

    name: str  # "vllm"
    version: str
    policy: str  # scheduler class: "vllm-v1"
    block_size_tokens: PositiveInt
    gpu_memory_utilization: Annotated[float, Field(gt=0, le=1)]
    async_scheduling: bool  # the next step is scheduled while one is in flight
    prefix_caching: bool
    chunked_prefill: bool
    #: Decode batches are padded up to the next of these; () means no graphs.
    graph_capture_sizes: Annotated[tuple[int, ...], BeforeValidator(lambda rule: capture_sizes(**rule) if rule else ())]
    max_graph_tokens: int  # the largest of graph_capture_sizes
    host: Annotated[HostTimes, Field(alias="host_times")]
    #: CUDA context and graphs, on one GPU.
    non_torch_bytes_single: Annotated[
        PositiveFloat, Field(validation_alias=AliasPath("memory", "non_torch_gib_single")), times(GIB)
    ]
    #: Per GPU of several (communicators).
    non_torch_bytes_parallel: Annotated[
        PositiveFloat, Field(validation_alias=AliasPath("memory", "non_torch_gib_parallel")), times(GIB)
    ]
    admit_whole_prompt: bool  # a waiting request starts only if its whole prompt fits in free KV
    limits: Annotated[tuple[DefaultLimits, ...], Field(alias="default_limits")]
    kv_dtypes: tuple[str, ...]
    source: str
    #: Graphs end at twice the tokens of max_num_seqs decodes. False: a launch or the engine's configuration of a model
    #: states the largest size (vLLM, _set_cudagraph_sizes).
    graphs_follow_seats: bool = True
    #: Steps with prefill run in graphs too, up to max_graph_tokens (piecewise capture).
    graphs_with_prefill: bool = False
    #: Decodes run in piecewise CUDA graphs too, instead of whole ones (cudagraph_mode, or the model's attention).
    graphs_in_pieces: bool = False
    chunks_in_pieces: bool = False  # no CUDA graph holds chunked attention, so models with it run in pieces
    #: While the host prepares chunked attention it waits for the device, so that nothing of a step overlaps.
    chunks_wait: bool = False
    overlaps_host: bool = True  # the host prepares a step beside the one in flight, where steps are scheduled ahead
    calls_generate: bool = False  # runs `generate` of transformers, whose host time a profile measures
    packs_weights: bool = True  # on a CPU, lays weights out for oneDNN when it loads them; plain torch does not
    #: Factors on the host times per kernel for nodes with accelerators of an architecture, whose hosts are slower or
    #: faster than those on which the times were fitted.
    launch_factors: dict[str, PositiveFloat] = field(default_factory=dict)
    top_p_by_sort: bool = False  # top_p sampling sorts all logits, instead of using a kernel without a sort
    fuses_norms: bool = False  # in graphs, the all-reduce kernel also adds the residual and normalises
    #: The largest message whose all-reduce does so, in bytes, by architecture of a card with HBM ("all": any card) and
    #: by the largest group of ranks. Architectures that are not named never do so; {}: all messages of graphs.
    fused_norm_bytes: dict[str, dict[int, PositiveInt]] = field(default_factory=dict)
    fuses_norms_of_ranks: bool = True  # False: not with several data-parallel ranks
    fuses_norms_of_stages: bool = True  # False: not with several pipeline stages
    fuses_quantisation: bool = False  # norms and activations write per-tensor FP8 for the product that follows
    modelopt_checkpoints: bool = False  # fp8 weights of a 16-bit model are NVIDIA's: one scale a tensor, fp8 KV cache
    mxfp8_activations: bool = False  # MXFP4 experts take 8-bit inputs where the device multiplies 4-bit operands
    marlin_experts: bool = False  # Marlin's kernels unpack 4-bit experts to 16 bit, as moe_backend can ask for
    #: FlashInfer's kernel of fixed tiles computes dense products in block-scaled FP8 on Blackwell, as gemm_backend can
    #: ask for.
    flashinfer_products: bool = False
    shared_experts_beside_tokens: NonNegativeInt = 0  # up to this size, shared experts overlap the routed ones
    #: What happens to block scales where a rank's share of the weights ends inside a block (scale_blocks.py).
    cut_scale_blocks: Literal["refused", "refined", "padded"] = "padded"
    #: Linear attention projects q, k and v, the gate, and each kind of scalar of a head in products of their own.
    splits_scan_inputs: bool = False
    #: Kernels of PyTorch compute the gated norm of Mamba-2 one after the other, not one fused kernel.
    mamba_norm_in_torch: bool = False
    #: One operator of a library launches the routing and all kernels of the routed experts, without Python in between.
    launches_experts_at_once: bool = False
    model_defaults: tuple[ModelDefaults, ...] = ()  # rules by model and accelerator, in order
    receiving: ReceiveIntervals | None = None  # None: requests are received before every step
    #: The thread that schedules ahead launches a step before it processes the outputs of the one before it (SGLang,
    #: TensorRT-LLM). False: outputs are processed when their step ends, whatever is being launched.
    launches_before_outputs: bool = False
    default_kv_dtype: str | None = None  # unless the checkpoint declares one; None: that of the activations
    #: Flag of each key of deployment.yaml; in files, also the name of a table (catalogs/engines/flags.py).
    flags: Annotated[dict[str, str], BeforeValidator(flags_of)] = field(default_factory=dict)
    #: What gpu_memory_utilization is a fraction of. "profiled": all memory, for weights, activations of a start-up run
    #: and KV (vLLM). "static": all memory, for weights and KV only (SGLang). "free": the memory that weights and
    #: activations leave, for KV (TensorRT-LLM). "slots": all memory, of which KV takes exactly max_num_seqs contexts of
    #: max_model_len (llama.cpp).
    memory_rule: Literal["profiled", "static", "free", "slots"] = "profiled"
    static_reserve: StaticReserve | None = None  # where the default fraction follows from the limits
    rank_dispatch: RankDispatch = "balanced"
    #: Attention ranks gather and scatter the tokens of a step with prompts by all-reduces of a buffer for all tokens.
    sums_prompts: bool = False
    gathers_quantised: bool = False  # attention ranks quantise tokens for FP4 and FP8 experts before they gather them
    ranks_share_limits: bool = False  # default limits are those of all attention ranks together
    prefill_rank_dispatch: RankDispatch | None = None  # of replicas that only prefill; None: as on all others
    prefills_ahead: bool = True  # replicas that only prefill schedule ahead where others do; False: they do not
    balance_steps: NonNegativeInt = 0  # steps that attention ranks wait to start prompts together; 0: no wait
    physical_batch_tokens: NonNegativeInt = 0  # most tokens per device pass; 0: a step is one pass
    #: The stages of pipeline_parallel compute one batch, one stage after the other, and no second batch enters before
    #: it leaves: a model cut by layers in one process (llama.cpp's --split-mode layer, device_map of transformers).
    stages_in_turn: bool = False
    #: Stages that get the layers that are left over where they do not divide evenly
    #: (catalogs/deployments/resolution/stages.py).
    spare_layers: Literal["before last", "all on last", "last", "first", "with output"] = "before last"
    first_token: FirstToken = "prefill"
    kv_transfer: TransferMoment = "at_end"
    #: Send queues of a prefill replica, chosen by destination; each sends the blocks of one request at a time. None:
    #: the blocks of all finished prompts share the link.
    transfer_queues: PositiveInt | None = None
    #: Prefill replicas whose KV blocks a decode replica can read, where one tensor-parallel size is a multiple of the
    #: other: all; those that do not hold copies of KV heads; those that are not wider (transfer_refusal).
    kv_readers: Literal["all", "no copies", "as wide"] = "all"
    caches_states: bool = True  # prefix_caching is the default for models with recurrent layers as well
    shares_prefixes: bool = True  # False: the engine's prompt reuse is not simulated, so caching stays off
    holds_longest_prompt: bool = False  # max_num_batched_tokens is at least max_model_len
    orders: tuple[Order, ...] = ("fcfs",)  # supported orders of waiting requests (catalogs/deployments/queueing.py)
    batches_wait: bool = False  # the engine can wait for a batch to fill up
    scales_api_servers: bool = False  # several API server processes may serve one engine (api_server_count)
    #: Supported methods of speculative decoding, and whether steps are still scheduled ahead with them.
    speculates: Annotated[dict[Method, Annotated[bool, _AHEAD]], Field(alias="speculation")] = field(
        default_factory=dict
    )
    drafts_after_prompts: bool = True  # a step that contains only prompts drafts as well
    draft_trees: bool = False  # drafts may form trees (speculative.topk above 1)
    speculation_max_num_seqs: PositiveInt | None = None  # default of max_num_seqs with speculation; None: the same
    #: Architectures whose encoder reads the prompt (T5, BART, NLLB) that the engine serves; "any": all of them.
    encoder_decoders: tuple[str, ...] = ()
    #: Kinds of items besides text that the engine serves, where a model reads them.
    modalities: tuple[Literal["image", "video", "audio"], ...] = ("image", "video", "audio")
    #: Architectures that read audio and that the engine serves; None: all of them.
    audio_architectures: tuple[str, ...] | None = None
    #: Size of the cache of embeddings, which whole requests fill without a budget (SGLang). None: the cache follows the
    #: token budget of a step (vLLM).
    embedding_cache_mib: PositiveInt | None = None
    encoder_server: EncoderServer | None = None  # None: the engine has no server that only encodes
    reserves_for_towers: bool = False  # the default fraction of memory is smaller with a vision tower
    #: Makers of the cards that the engine runs on, and "cpu"; (): all of them.
    runs_on: tuple[Literal["nvidia", "amd", "intel", "google", "cpu"], ...] = ()
    #: The engine with the public operator tables that price the steps of this one, in its version if there are any.
    operator_tables: str = "vllm"
    #: The release of those tables with the kernels of experts that this version runs; None: that of all other tables.
    experts_release: str | None = None
    #: Rows of the blocks in which experts with block-scaled FP8 weights are computed, by architecture of a card with
    #: HBM; rows that hold no token are computed too (calibration/operators/roofline.py). {}: only rows of tokens.
    expert_block_rows: dict[str, PositiveInt] = field(default_factory=dict)
    #: The engine whose tables time the kernel that computes experts with block-scaled FP8 weights here where ranks cut
    #: every expert, by architecture of a card with HBM. {}: the engine of `operator_tables` does.
    cut_experts_tables: dict[str, str] = field(default_factory=dict)
    notice: str = ""  # shown with every result of this profile
    cpu_block_size_tokens: PositiveInt | None = None  # block size on CPUs; None: the same profile on CPUs

    @property
    def embedding_cache_bytes(self) -> float | None:
        """Return the size of the cache of embeddings; None where it follows the token budget of a step."""
        return None if self.embedding_cache_mib is None else self.embedding_cache_mib * MIB

    def default_rank_dispatch(self, prefills_only: bool) -> RankDispatch:
        """Return how requests are distributed over attention ranks by default."""
        own = self.prefill_rank_dispatch if prefills_only else None
        return own or self.rank_dispatch

    def on(self, kind: str) -> EngineProfile:
        """Return the profile on a kind of device; on CPUs engines schedule step by step and capture no graphs."""
        if kind != "cpu" or self.cpu_block_size_tokens is None:
            return self
        return replace(
            self,
            async_scheduling=False,
            graph_capture_sizes=(),
            max_graph_tokens=0,
            block_size_tokens=self.cpu_block_size_tokens,
        )

    def for_model(self, architecture: str, device: Device) -> EngineProfile:
        """Return the profile with its defaults for models of an architecture on an accelerator; later rules win."""
        found: dict[str, Any] = {}
        for rule in self.model_defaults:
            if rule.holds(architecture, device):
                stated = {
                    "fuses_norms": rule.fuses_norms,
                    "default_kv_dtype": rule.kv_dtype,
                    "receiving": rule.receiving,
                    "launches_experts_at_once": rule.launches_experts_at_once,
                    "flashinfer_products": rule.flashinfer_products,
                }
                found |= {name: value for name, value in stated.items() if value is not None}
                found |= self.graphs_up_to(rule.max_cudagraph_capture_size)
        return replace(self, **found) if found else self

    def graphs_up_to(self, most: int | None) -> dict[str, Any]:
        """Return the fields that change where graphs are captured up to `most` tokens, however many seats there are.

        Sizes beyond the engine's own are multiples of 16. There is nothing to change with None or without graphs.
        """
        if most is None or not self.graph_capture_sizes:
            return {}
        last = self.graph_capture_sizes[-1]
        further = range(last - last % _FURTHER_SIZES + _FURTHER_SIZES, most + 1, _FURTHER_SIZES)
        sizes = (*(size for size in self.graph_capture_sizes if size <= most), *further)
        return {"graph_capture_sizes": sizes, "max_graph_tokens": max(sizes, default=0), "graphs_follow_seats": False}

    def launch_s(self, latent: bool, device: Device) -> float:
        """Return the host seconds per kernel outside CUDA graphs on nodes with a device.

        Args:
            latent: Whether the model has latent attention.
            device: The accelerator of the nodes.
        """
        return self.host.launch_s(latent) * self.launch_factors.get(device.architecture, 1.0)

    def triton_experts_s(self, device: Device) -> float:
        """Return the host seconds of Triton's experts in a layer, beyond their launches, on nodes with a device."""
        return self.host.triton_experts_s * self.launch_factors.get(device.architecture, 1.0)

    def runs_on_device(self, kind: str, maker: str) -> bool:
        """Return whether the engine runs on a CPU, or on the cards of a maker."""
        return not self.runs_on or ("cpu" if kind == "cpu" else maker) in self.runs_on

    def serves_text_encoder(self, architecture: str) -> bool:
        """Return whether the engine serves an architecture whose encoder reads the prompt."""
        return "any" in self.encoder_decoders or architecture in self.encoder_decoders

    @property
    def splits_text_encoders(self) -> bool:
        """Return whether tensor ranks can share a model whose encoder reads the prompt."""
        return "tensor_parallel" in self.flags

    def default_utilization(self, memory_bytes: float, batched_tokens: int, ranks: int) -> float:
        """Return the fraction of memory that the engine uses where the deployment gives none."""
        if self.static_reserve is None:
            return self.gpu_memory_utilization
        return self.static_reserve.share(memory_bytes, batched_tokens, ranks)

    def default_limits(self, memory_bytes: float, accelerator_name: str, kind: str) -> tuple[int, int]:
        """Return (max_num_batched_tokens, max_num_seqs) of the API server for this device, per rank on CPUs.

        Raises:
            InputError: The engine has no rule for this kind of device.
        """
        rule = self.limits_rule(memory_bytes, accelerator_name, kind)
        return rule.max_num_batched_tokens, rule.max_num_seqs

    def limits_rule(self, memory_bytes: float, accelerator_name: str, kind: str) -> DefaultLimits:
        """Return the first rule that applies to this device.

        Raises:
            InputError: The engine has no rule for this kind of device.
        """
        for rule in self.limits:
            if rule.holds(memory_bytes, accelerator_name, kind):
                return rule
        raise InputError(f"{self.name} has no default limits for this kind of device", kind)
