"""What a serving engine does by default: policy, limits by device memory, overheads, flags."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class HostTimes:
    """Time the host spends, as calibrated terms of the engine profile (never silently zero). Seconds.

    step_s + step_s_per_sequence * n: CPU work of one engine step (schedule, prepare inputs, sample, output).
    With `async_scheduling` it overlaps the device and only the excess shows; without, it adds.
    """

    step_s: float
    step_s_per_sequence: float
    step_gap_s: float  # device idle between two steps that nothing hides
    request_s: float  # HTTP, validation, hand-over to the engine core, per request
    request_s_per_input_token: float  # tokenisation
    output_s: float  # detokenise, hand back, stream: from the end of a step to the client
    source: str = ""


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
    host: HostTimes
    activation_bytes_dense: float  # peak activation at 8192 batched tokens, 80 GB card rule
    activation_bytes_moe: float
    non_torch_bytes_single: float  # context, graphs, at TP1
    non_torch_bytes_parallel: float  # at TP > 1 (communicators)
    supported: bool = True  # False: known by name, refused with one line
    source: str = ""

    def default_limits(self, memory_bytes: float, accelerator_name: str, kind: str) -> tuple[int, int]:
        """(max_num_batched_tokens, max_num_seqs) of the API server for this device memory."""
        raise NotImplementedError
