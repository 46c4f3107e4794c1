"""What a serving engine does by default: policy, limits by device memory, overheads, flags."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

from catalogs.errors import InputError


@dataclass(frozen=True, slots=True)
class HostTimes:
    """Time the host spends, as calibrated terms of the engine profile (never silently zero). Seconds.

    step_s + step_s_per_sequence * n: CPU work of one engine step (schedule, prepare inputs, sample, output).
    With `async_scheduling` it overlaps the device and only the excess shows; without, it adds.
    """

    step_s: float
    step_s_per_sequence: float
    step_gap_s: float  # between two steps, hidden by nothing: sampling, input copies, device idle
    request_s: float  # HTTP, validation, hand-over to the engine core, per request
    request_s_per_input_token: float  # tokenisation, one prompt at a time
    output_s: float  # from the end of a step to the client, beyond the work of its tokens
    api_request_s: float = 0.0  # the part of request_s that keeps the API process busy
    api_step_s: float = 0.0  # work of the API process on what an engine step put out
    api_token_s: float = 0.0  # and on each token of it: detokenise, serialise, send
    collective_skew_s: float = 0.0  # ranks wait for the last one to arrive, per collective, beyond its lone-run time
    kernel_launch_s: float = 0.0  # per kernel of a step outside CUDA graphs, on GPUs; 0: not slower than the device
    ngram_s_per_sequence: float = 0.0  # looking in a sequence for its last tokens, to draft what followed them
    ngram_s_per_token: float = 0.0  # and per token of it
    source: str = ""
    measured: bool = False  # on this machine, by a probe of the engine


@dataclass(frozen=True, slots=True)
class ReceiveIntervals:
    """How often a busy engine looks for new requests (SGLang's scheduler_recv_interval). Steps of decodes alone; it
    looks after every step with a prompt, and at once when idle."""

    steps: int
    busy_steps: int  # with at least `busy_requests` in the engine
    busy_requests: int

    def interval(self, requests: int) -> int:
        """Steps to the next look, with so many requests in the engine after this one."""
        return self.busy_steps if requests >= self.busy_requests else self.steps


@dataclass(frozen=True, slots=True)
class DefaultLimits:
    """Limits of the API server where device memory is at least `min_memory_bytes`; rules are tried in order."""

    kind: str  # "gpu" | "cpu"
    min_memory_bytes: float
    max_num_batched_tokens: int
    max_num_seqs: int
    except_accelerators: tuple[str, ...] = ()  # parts of names the rule does not hold for
    per_rank: bool = False  # multiplied by tensor x pipeline ranks
    receiving: ReceiveIntervals | None = None  # None: it looks for new requests before every step

    def holds(self, memory_bytes: float, accelerator_name: str, kind: str) -> bool:
        excepted = any(part in accelerator_name for part in self.except_accelerators)
        return self.kind == kind and memory_bytes >= self.min_memory_bytes and not excepted


@dataclass(frozen=True, slots=True)
class StaticReserve:
    """Memory an engine leaves outside its static share (weights and KV cache) for activations and graphs. Bytes."""

    base_bytes: float
    bytes_per_batched_token: float
    bytes_per_rank: float
    least_bytes: float  # on accelerators of at least `least_from_bytes`
    least_from_bytes: float

    def share(self, memory_bytes: float, batched_tokens: int, ranks: int) -> float:
        """What is left of the memory, as a share rounded to three digits as SGLang does."""
        reserved = self.base_bytes + self.bytes_per_batched_token * batched_tokens + self.bytes_per_rank * ranks
        if memory_bytes >= self.least_from_bytes:
            reserved = max(reserved, self.least_bytes)
        return round(1.0 - reserved / memory_bytes, 3)


#: Whose first token a client sees where prompts are computed apart: the prefill replica's as soon as it is there
#: ("prefill") or when its blocks have arrived ("arrival"), or one that the decode replica computes from the last prompt
#: token ("decode").
FirstToken = Literal["prefill", "arrival", "decode"]

#: When blocks leave a prefill replica: with the prompt's end, with each chunk's, or as each layer is computed.
KvTransfer = Literal["at_end", "chunkwise", "layerwise"]

#: How requests come to data-parallel ranks that each schedule for themselves (simulator/schedulers/dp_dispatch.py);
#: "balanced":
#: one scheduler stands for all of them, which share every step evenly.
RankDispatch = Literal["balanced", "round_robin", "least_requests", "queue_score", "least_tokens"]


@dataclass(frozen=True, slots=True)
class EngineProfile:
    """One engine version."""

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
    non_torch_bytes_single: float  # context, graphs, at TP1
    non_torch_bytes_parallel: float  # per GPU at TP > 1 (communicators)
    top_p_by_sort: bool = False  # top_p is drawn by sorting all logits, not by a kernel that draws without
    fuses_norms: bool = False  # the all-reduce kernel of a graphed step adds the residual and normalises too
    mxfp8_activations: bool = False  # MXFP4 experts take 8-bit inputs where the device multiplies 4-bit operands
    shared_experts_beside_tokens: int = 0  # up to so many tokens shared experts run beside the routed ones
    admit_whole_prompt: bool = False  # a waiting request starts only if its whole prompt fits in free KV
    limits: tuple[DefaultLimits, ...] = ()
    kv_dtypes: tuple[str, ...] = ("bf16",)
    flags: dict[str, str] = field(default_factory=dict)  # deployment key -> command-line flag
    source: str = ""
    #: What gpu_memory_utilization is a share of. "profiled": all memory, for weights, activations of a start-up run and
    #: KV (vLLM); "static": all memory, for weights and KV only (SGLang); "free": what weights and activations leave,
    #: for KV (TensorRT-LLM); "slots": all memory, of which KV takes max_num_seqs contexts of max_model_len and no more
    #: (llama.cpp).
    memory_rule: str = "profiled"
    static_reserve: StaticReserve | None = None  # where the default share follows from the limits
    rank_dispatch: RankDispatch = "balanced"
    balance_steps: int = 0  # steps that attention ranks wait to start prompts together; 0: they do not
    physical_batch_tokens: int = 0  # most tokens of one pass of the device within a step; 0: a step is one pass
    first_token: FirstToken = "prefill"
    kv_transfer: KvTransfer = "at_end"
    #: Of a prefill replica, by where they go, that each send the blocks of one request after the other; None: those of
    #: all requests that are done share the link.
    transfer_queues: int | None = None
    shares_prefixes: bool = True  # False: the engine reuses prompts in a way that is not simulated; caching stays off
    holds_longest_prompt: bool = False  # max_num_batched_tokens is at least max_model_len
    orders: tuple[str, ...] = (
        "fcfs",
    )  # in which its waiting requests can be served (catalogs/deployments/queueing.py)
    batches_wait: bool = False  # can wait for a batch to fill up
    #: Methods of speculative decoding, and whether steps are still scheduled ahead with them.
    speculates: dict[str, bool] = field(default_factory=dict)
    notice: str = ""  # what the reader of every result must know of this profile
    cpu_block_size_tokens: int | None = None  # on CPUs; None: this engine does nothing else there

    def on(self, kind: str) -> EngineProfile:
        """The profile on a kind of device. On CPUs an engine schedules step by step and captures no graphs."""
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
        """The share of memory the engine takes where none is given."""
        if self.static_reserve is None:
            return self.gpu_memory_utilization
        return self.static_reserve.share(memory_bytes, batched_tokens, ranks)

    def default_limits(self, memory_bytes: float, accelerator_name: str, kind: str) -> tuple[int, int]:
        """(max_num_batched_tokens, max_num_seqs) of the API server for this device memory, per rank on CPUs.

        Raises InputError where the engine has no rule for this kind of device.
        """
        rule = self.limits_rule(memory_bytes, accelerator_name, kind)
        return rule.max_num_batched_tokens, rule.max_num_seqs

    def limits_rule(self, memory_bytes: float, accelerator_name: str, kind: str) -> DefaultLimits:
        """The first rule that holds."""
        for rule in self.limits:
            if rule.holds(memory_bytes, accelerator_name, kind):
                return rule
        raise InputError(f"{self.name} has no default limits for this kind of device", kind)
