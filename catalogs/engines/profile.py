"""EngineProfile: the default behaviour of a serving engine, with its policy, limits, host times and flags."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

from catalogs.errors import InputError


@dataclass(frozen=True, slots=True)
class HostTimes:
    """Time that the host spends, in seconds, as calibrated terms of the engine profile (never silently zero).

    `step_s + step_s_per_sequence * n` is the CPU work of one engine step (schedule, prepare inputs, sample, output).
    With `async_scheduling` it overlaps the device and only the excess adds to the step; without it, all of it does.
    """

    step_s: float
    step_s_per_sequence: float
    step_gap_s: float  # between two steps, never overlapped: sampling, input copies, device idle
    request_s: float  # per request: HTTP, validation, transfer to the engine core
    request_s_per_input_token: float  # tokenisation, one prompt at a time
    output_s: float  # from the end of a step to the client, without the work per token
    api_request_s: float = 0.0  # the part of request_s that occupies the API process
    api_step_s: float = 0.0  # work of the API process on the output of a step
    api_token_s: float = 0.0  # work per output token: detokenise, serialise, send
    collective_skew_s: float = 0.0  # wait per collective for the last rank to arrive
    kernel_launch_s: float = 0.0  # per kernel outside CUDA graphs, on GPUs; 0: hidden by the device
    ngram_s_per_sequence: float = 0.0  # n-gram drafting: search for the last tokens, per sequence
    ngram_s_per_token: float = 0.0  # n-gram drafting: per token of the sequence
    source: str = ""
    measured: bool = False  # measured on this machine, by a probe of the engine


@dataclass(frozen=True, slots=True)
class ReceiveIntervals:
    """How often a busy engine receives new requests, in decode-only steps (SGLang's scheduler_recv_interval).

    The engine also receives requests after every step with a prompt, and at once when it is idle.
    """

    steps: int
    busy_steps: int  # where the engine holds at least `busy_requests`
    busy_requests: int

    def interval(self, requests: int) -> int:
        """Return the steps until requests are received again, with `requests` in the engine after this step."""
        return self.busy_steps if requests >= self.busy_requests else self.steps


@dataclass(frozen=True, slots=True)
class DefaultLimits:
    """Default limits of the API server on devices with at least `min_memory_bytes`; rules are tried in order."""

    kind: str  # "gpu" | "cpu"
    min_memory_bytes: float
    max_num_batched_tokens: int
    max_num_seqs: int
    except_accelerators: tuple[str, ...] = ()  # parts of the names of excluded accelerators
    per_rank: bool = False  # multiplied by tensor x pipeline ranks
    receiving: ReceiveIntervals | None = None  # None: requests are received before every step

    def holds(self, memory_bytes: float, accelerator_name: str, kind: str) -> bool:
        """Return whether the rule applies to this device."""
        excepted = any(part in accelerator_name for part in self.except_accelerators)
        return self.kind == kind and memory_bytes >= self.min_memory_bytes and not excepted


@dataclass(frozen=True, slots=True)
class StaticReserve:
    """Memory in bytes that an engine leaves outside its static share (weights and KV) for activations and graphs."""

    base_bytes: float
    bytes_per_batched_token: float
    bytes_per_rank: float
    least_bytes: float  # minimum on accelerators with at least `least_from_bytes`
    least_from_bytes: float

    def share(self, memory_bytes: float, batched_tokens: int, ranks: int) -> float:
        """Return the remaining fraction of the memory, rounded to three digits as SGLang does."""
        reserved = self.base_bytes + self.bytes_per_batched_token * batched_tokens + self.bytes_per_rank * ranks
        if memory_bytes >= self.least_from_bytes:
            reserved = max(reserved, self.least_bytes)
        return round(1.0 - reserved / memory_bytes, 3)


#: Which first token a client receives under disaggregation. "prefill": that of the prefill replica, at once; "arrival":
#: the same when its blocks have arrived; "decode": one that the decode replica computes from the last prompt token.
FirstToken = Literal["prefill", "arrival", "decode"]

#: When blocks leave a prefill replica: at the end of the prompt, at the end of each chunk, or after each layer.
KvTransfer = Literal["at_end", "chunkwise", "layerwise"]

#: How requests are distributed over data-parallel ranks with one scheduler each (simulator/schedulers/dp_dispatch.py).
#: "balanced": one scheduler represents all ranks, which share every step evenly.
RankDispatch = Literal["balanced", "round_robin", "least_requests", "queue_score", "least_tokens"]


@dataclass(frozen=True, slots=True)
class EngineProfile:
    """The default behaviour of one engine version."""

    name: str  # "vllm"
    version: str
    policy: str  # scheduler class: "vllm-v1"
    block_size_tokens: int
    gpu_memory_utilization: float
    async_scheduling: bool  # the next step is scheduled while one is in flight
    prefix_caching: bool
    chunked_prefill: bool
    graph_capture_sizes: tuple[int, ...]  # decode batches are padded up to the next of these; () = no graphs
    max_graph_tokens: int
    graphs_with_prefill: bool  # steps with prefill run in graphs too, up to max_graph_tokens (piecewise capture)
    host: HostTimes
    non_torch_bytes_single: float  # CUDA context and graphs, at TP1
    non_torch_bytes_parallel: float  # per GPU at TP > 1 (communicators)
    top_p_by_sort: bool = False  # top_p sampling sorts all logits, instead of using a kernel without a sort
    fuses_norms: bool = False  # in graphs, the all-reduce kernel also adds the residual and normalises
    mxfp8_activations: bool = False  # MXFP4 experts take 8-bit inputs where the device multiplies 4-bit operands
    shared_experts_beside_tokens: int = 0  # up to this size, shared experts overlap the routed ones
    admit_whole_prompt: bool = False  # a waiting request starts only if its whole prompt fits in free KV
    limits: tuple[DefaultLimits, ...] = ()
    kv_dtypes: tuple[str, ...] = ("bf16",)
    flags: dict[str, str] = field(default_factory=dict)  # deployment key -> command-line flag
    source: str = ""
    #: What gpu_memory_utilization is a fraction of. "profiled": all memory, for weights, activations of a start-up run
    #: and KV (vLLM). "static": all memory, for weights and KV only (SGLang). "free": the memory that weights and
    #: activations leave, for KV (TensorRT-LLM). "slots": all memory, of which KV takes exactly max_num_seqs contexts of
    #: max_model_len (llama.cpp).
    memory_rule: str = "profiled"
    static_reserve: StaticReserve | None = None  # where the default fraction follows from the limits
    rank_dispatch: RankDispatch = "balanced"
    balance_steps: int = 0  # steps that attention ranks wait to start prompts together; 0: no wait
    physical_batch_tokens: int = 0  # most tokens per device pass; 0: a step is one pass
    first_token: FirstToken = "prefill"
    kv_transfer: KvTransfer = "at_end"
    #: Send queues of a prefill replica, chosen by destination; each sends the blocks of one request at a time. None:
    #: the blocks of all finished prompts share the link.
    transfer_queues: int | None = None
    shares_prefixes: bool = True  # False: the engine's prompt reuse is not simulated, so caching stays off
    holds_longest_prompt: bool = False  # max_num_batched_tokens is at least max_model_len
    orders: tuple[str, ...] = ("fcfs",)  # supported orders of waiting requests (catalogs/deployments/queueing.py)
    batches_wait: bool = False  # the engine can wait for a batch to fill up
    #: Supported methods of speculative decoding, and whether steps are still scheduled ahead with them.
    speculates: dict[str, bool] = field(default_factory=dict)
    notice: str = ""  # shown with every result of this profile
    cpu_block_size_tokens: int | None = None  # block size on CPUs; None: the same profile on CPUs

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
