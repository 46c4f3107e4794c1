"""What an accelerator, a node and a cluster are: peaks, memory, links, power."""

from __future__ import annotations

from dataclasses import dataclass, field, replace


@dataclass(frozen=True, slots=True)
class Accelerator:
    """One GPU, MIG slice or CPU socket, in SI units."""

    name: str  # "h100"
    full_name: str
    memory_bytes: float  # what the driver reports as total: the base of an engine's memory share
    memory_bandwidth_bytes_per_s: float
    peak_flops: dict[str, float]  # dense, by dtype: "bf16", "fp8", ...; a dtype that is missing has no fast path
    tdp_w: float
    idle_w: float
    kind: str = "gpu"  # "gpu" | "cpu"
    architecture: str = ""  # "hopper", "blackwell", ...
    source: str = ""
    cache_bytes: float = 0.0  # last-level cache where it was read from the machine; 0: not known here

    def flops_for(self, dtype: str) -> float:
        """Peak dense flops of a matrix product whose operands are `dtype`; falls back to bf16, then fp16, fp32."""
        for d in (dtype, "bf16", "fp16", "fp32"):
            if d in self.peak_flops:
                return self.peak_flops[d]
        raise KeyError(dtype)

    @property
    def is_slice(self) -> bool:
        """A MIG instance: its memory and cores are its own, but it has no peer-to-peer link."""
        return ":" in self.name


@dataclass(frozen=True, slots=True)
class RoutedPeers:
    """What accelerators without a link of their own send each other where the host routes it, as measured there."""

    bytes_per_s: float  # one direction
    hop_s: float  # of one message between two of them


@dataclass(frozen=True, slots=True)
class Node:
    """Accelerators that share a host: up to `max_accelerators`, joined by `link`."""

    accelerator: Accelerator
    max_accelerators: int
    link_name: str  # "nvlink4", "pcie5", ...
    link_bytes_per_s: float  # per accelerator, one direction
    network_bytes_per_s: float  # per accelerator, one direction, to other nodes
    host_idle_w: float  # CPUs, fans, NICs of the whole node at idle
    host_w_per_accelerator: float  # extra host power with a busy accelerator
    routed: RoutedPeers | None = None  # where traffic between accelerators passes the host
    host_bytes_per_s: float = 16e9  # accelerator to host memory, one direction; PCIe 3 where nothing is known
    host_memory_bytes: float | None = None  # None: not known
    pair_bytes_per_s: float = 0.0  # of a bridge between two neighbours, one direction; 0: there is none
    reach: int = 0  # accelerators, over several nodes, that the link joins; 0: those of a node
    cards: int = 0  # network cards that all accelerators of a node share; 0: one each


@dataclass(frozen=True, slots=True)
class Hardware:
    """What `--hw` names: `n_nodes` x `accelerators_per_node` of one node type."""

    text: str  # "h100x8", "2*h100x8"
    node: Node = field(hash=False)  # its peaks are a dict; the text and the counts tell hardware apart well enough
    accelerators_per_node: int
    n_nodes: int = 1
    notices: tuple[str, ...] = field(default=(), hash=False)

    @property
    def accelerator(self) -> Accelerator:
        return self.node.accelerator

    @property
    def n_accelerators(self) -> int:
        return self.n_nodes * self.accelerators_per_node

    @property
    def link_domain(self) -> int:
        """Accelerators of this hardware that one link joins: a node's, or those of several nodes where it reaches."""
        return max(self.accelerators_per_node, min(self.node.reach, self.n_accelerators))

    def without_notices(self) -> Hardware:
        """The same hardware, where nothing is to be told about it again."""
        return replace(self, notices=()) if self.notices else self

    def with_count(self, n: int) -> Hardware:
        """The same number of the same nodes with `n` accelerators each, without notices.

        Raises InputError for a count that is not 1..the node's maximum, and for this machine's own hardware.
        """
        return self._sized(n, self.n_nodes)

    def with_nodes(self, n: int) -> Hardware:
        """The same nodes, `n` of them, without notices. Raises InputError as `with_count` does, and for no node."""
        return self._sized(self.accelerators_per_node, n)

    def _sized(self, count: int, n_nodes: int) -> Hardware:
        from catalogs.hardware.catalog import resized  # reads the node's file: a pair may have a link of its own

        return resized(self, count, n_nodes)
