"""The accelerator, the node and the cluster: peaks, memory, links and power, in SI units."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Final

#: Cards of Hopper and Blackwell with HBM have at least this bandwidth, in bytes per second.
_HBM_RATE: Final = 2e12


@dataclass(frozen=True, slots=True)
class Accelerator:
    """One GPU, MIG slice or CPU socket, in SI units."""

    name: str  # "h100"
    full_name: str
    memory_bytes: float  # total that the driver reports; engines take a fraction of it
    memory_bandwidth_bytes_per_s: float
    peak_flops: dict[str, float]  # dense, by dtype: "bf16", "fp8", ...; missing dtypes have no fast path
    tdp_w: float
    idle_w: float
    kind: str = "gpu"  # "gpu" | "cpu"; TPUs and other cards count as "gpu"
    maker: str = "nvidia"  # "nvidia" | "amd" | "intel" | "google", of a card; engines run on some of them only
    architecture: str = ""  # "hopper", "blackwell", ...
    source: str = ""
    cache_bytes: float = 0.0  # last-level cache, from the catalog or read from the machine; 0: not known
    multiprocessors: int = 0  # streaming multiprocessors or compute units; 0: not known
    high_clocks: bool = False  # clocks as high as those of GeForce, RTX and Ada boards
    calibrated_like: str | None = None  # hardware whose calibration stands in where this one has none
    releases_like: str | None = None  # hardware whose tables price engines of which this one has none

    def flops_for(self, dtype: str) -> float:
        """Return the peak dense flops per second of a matrix product of `dtype` operands, else of bf16, fp16 or fp32.

        Raises:
            KeyError: The accelerator has a peak for none of these dtypes.
        """
        for d in (dtype, "bf16", "fp16", "fp32"):
            if d in self.peak_flops:
                return self.peak_flops[d]
        raise KeyError(dtype)

    @property
    def has_hbm(self) -> bool:
        """Return whether a card of Hopper or Blackwell has HBM, by the bandwidth of its memory.

        Kernels for data-centre cards, such as DeepGEMM, run on these. They do not run on RTX boards and GB10, whose
        Blackwell is another one (sm_120, sm_121).
        """
        return self.memory_bandwidth_bytes_per_s >= _HBM_RATE

    @property
    def is_data_center_blackwell(self) -> bool:
        """Return whether it is Blackwell with HBM (sm_100, sm_103), for which FlashInfer has TensorRT-LLM's kernels."""
        return self.architecture == "blackwell" and self.has_hbm

    @property
    def is_slice(self) -> bool:
        """Return whether this is a MIG instance, which has its own memory and cores but no peer-to-peer link."""
        return ":" in self.name


@dataclass(frozen=True, slots=True)
class RoutedPeers:
    """Measured traffic between accelerators without a link, which the host routes."""

    bytes_per_s: float  # one direction
    hop_s: float  # latency of one message


@dataclass(frozen=True, slots=True)
class HostCopyRate:
    """The rate of copies between an accelerator and host memory with pages of one size, as measured on a machine."""

    pages: str  # "4KB", "2MB", "1GB"
    to_device: bool
    bytes_per_s: float | None  # None: not measured
    reason: str = ""  # why it was not measured


@dataclass(frozen=True, slots=True)
class Node:
    """Accelerators that share a host: up to `max_accelerators`, joined by a link."""

    accelerator: Accelerator
    max_accelerators: int
    link_name: str  # "nvlink4", "pcie5", ...
    link_bytes_per_s: float  # per accelerator, one direction
    network_bytes_per_s: float  # per accelerator, one direction, to other nodes
    host_idle_w: float  # CPUs, fans, NICs of the whole node at idle
    host_w_per_accelerator: float  # further host power per busy accelerator
    routed: RoutedPeers | None = None  # where traffic between accelerators passes through the host
    host_bytes_per_s: float = 16e9  # accelerator to host memory, one direction; default: PCIe 3
    host_memory_bytes: float | None = None  # None: not known
    host_cores: int | None = None  # CPU cores of the whole node; None: not known
    pair_bytes_per_s: float = 0.0  # bridge between two neighbours, one direction; 0: none
    linked_accelerators: int = 0  # accelerators joined by a link that spans nodes; 0: those of one node
    cards: int = 0  # network cards shared by all accelerators of a node; 0: one each
    host_copies: tuple[HostCopyRate, ...] = ()  # as measured on this machine; () elsewhere
    link_per_peer: bool = False  # the link is a mesh: only its part to each peer carries traffic to that peer

    def link_bytes_per_s_of(self, ranks: int) -> float:
        """Return the rate of each of `ranks` accelerators to all others of them, bytes per second."""
        if not self.link_per_peer or self.max_accelerators < 2:
            return self.link_bytes_per_s
        return self.link_bytes_per_s * min(max(ranks - 1, 1) / (self.max_accelerators - 1), 1.0)


@dataclass(frozen=True, slots=True)
class Hardware:
    """The hardware that `--hw` names: `n_nodes` nodes of one type with `accelerators_per_node` each."""

    text: str  # "h100x8", "2*h100x8"
    node: Node = field(hash=False)  # its peaks are a dict, which has no hash; the text and the counts identify hardware
    accelerators_per_node: int
    n_nodes: int = 1
    notices: tuple[str, ...] = field(default=(), hash=False)

    @property
    def accelerator(self) -> Accelerator:
        """Return the accelerator of each node."""
        return self.node.accelerator

    @property
    def n_accelerators(self) -> int:
        """Return the number of accelerators of all nodes."""
        return self.n_nodes * self.accelerators_per_node

    @property
    def host_memory_bytes(self) -> float | None:
        """The host memory that comes with the accelerators: their part of the memory of a whole node; None: not known.

        A node that is not rented whole is shared with others, who have the memory of the remaining accelerators.
        """
        whole = self.node.host_memory_bytes
        return None if whole is None else whole * self.n_accelerators / max(self.node.max_accelerators, 1)

    @property
    def link_domain(self) -> int:
        """The number of accelerators that one link joins: those of a node, or more where the link spans nodes."""
        return max(self.accelerators_per_node, min(self.node.linked_accelerators, self.n_accelerators))

    def without_notices(self) -> Hardware:
        """Return the same hardware without the notices that have been shown already."""
        return replace(self, notices=()) if self.notices else self
