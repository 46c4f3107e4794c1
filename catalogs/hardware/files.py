"""Reading of hardware files: one YAML per accelerator in data/hardware/, converted from human units to SI."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Literal

from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from catalogs.errors import LIKE_NAME, InputError, nearest_in_family, nearest_name
from catalogs.hardware.specs import Accelerator, Node, RoutedPeers
from catalogs.io.yaml_files import DATA, StrictYamlBlock, read_yaml, validate_as
from catalogs.units import GIB, GIGA, MIB, TERA

FOLDER = DATA / "hardware"


class RoutedFile(StrictYamlBlock):
    """Traffic between accelerators that the host routes: the rate of each in gb_per_s, and hop_us per message."""

    gb_per_s: PositiveFloat
    hop_us: PositiveFloat
    source: str


class NodeFile(StrictYamlBlock):
    """The usual server of the accelerator; link and network rates are per accelerator and direction."""

    max_accelerators: PositiveInt
    link: str
    link_gb_per_s: PositiveFloat
    link_per_peer: bool = False  # a mesh: link_gb_per_s is the sum of equal links, one to each peer
    reach: PositiveInt | None = None  # accelerators joined by a link that spans nodes (a rack of trays)
    bridge: str | None = None  # a link between pairs of accelerators only
    bridge_gb_per_s: PositiveFloat | None = None
    network_cards: PositiveInt | None = None  # per node, where there are fewer than accelerators
    network_gb_per_s: PositiveFloat
    host_gb_per_s: PositiveFloat | None = None  # accelerator to host memory; null: link_gb_per_s (PCIe links)
    host_cores: PositiveInt | None = None  # CPU cores per node, as shipped in NVIDIA's own system; null: not known
    host_memory_gib: PositiveFloat | None = None  # per node, as shipped in NVIDIA's own system; null: not known
    host_idle_w: PositiveFloat
    host_w_per_accelerator: PositiveFloat
    routed: RoutedFile | None = None

    @property
    def to_host_gb_per_s(self) -> float:
        """Return the rate from an accelerator to host memory in GB/s."""
        return self.host_gb_per_s or self.link_gb_per_s

    @model_validator(mode="after")
    def _way_to_the_host(self) -> NodeFile:
        if self.host_gb_per_s is None and self.link.startswith("nvlink") and "c2c" not in self.link:
            raise ValueError("a node with NVLink needs host_gb_per_s: its link does not lead to the host")
        return self


class MigProfile(StrictYamlBlock):
    """One MIG instance: its reported memory, multiprocessors, eighths of the memory system, and the most per GPU."""

    memory_mib: PositiveInt
    sms: PositiveInt
    memory_eighths: PositiveInt = Field(le=8)
    max_per_gpu: PositiveInt = Field(le=7)


class HardwareFile(StrictYamlBlock):
    """One accelerator as written in data/hardware/NAME.yaml; peak_tflops_* are dense, never sparse."""

    name: str
    full_name: str
    aliases: tuple[str, ...] = Field(default=(), strict=False)
    kind: Literal["gpu", "cpu"] = "gpu"
    architecture: str
    maker: Literal["nvidia", "amd", "intel", "google"] = "nvidia"  # of a card; CPUs have none
    calibrated_like: str | None = None  # file whose calibration is used where this one has none; same architecture only
    releases_like: str | None = None  # file whose tables price engines that were not timed here; a board of one chip
    driver_names: tuple[str, ...] = Field(default=(), strict=False)  # names that the driver reports, for `local`
    memory_mib: PositiveFloat
    bandwidth_gb_per_s: PositiveFloat
    l2_mib: PositiveFloat | None = None  # second-level cache, from the vendor's whitepaper; null: not known
    peak_tflops_fp32: PositiveFloat
    peak_tflops_fp16: PositiveFloat | None = None
    peak_tflops_bf16: PositiveFloat | None = None
    peak_tflops_fp8: PositiveFloat | None = None
    peak_tflops_int8: PositiveFloat | None = None
    peak_tflops_fp4: PositiveFloat | None = None
    sms: PositiveInt | None = None
    tdp_w: PositiveFloat
    idle_w: PositiveFloat
    high_clocks: bool = False  # as GeForce, RTX and Ada boards; its watts follow another curve over the clock
    node: NodeFile
    mig: dict[str, MigProfile] = Field(default_factory=dict)
    source: str
    as_of: str
    notes: str = ""

    @model_validator(mode="after")
    def _mig_needs_sms(self) -> HardwareFile:
        if self.mig and self.sms is None:
            raise ValueError("mig profiles need sms, the multiprocessors of the whole GPU")
        return self

    @property
    def peak_flops(self) -> dict[str, float]:
        """Return the dense peak flops by dtype, for the dtypes with a fast path."""
        found = {d: getattr(self, f"peak_tflops_{d}") for d in ("bf16", "fp16", "fp8", "int8", "fp4", "fp32")}
        return {d: v * TERA for d, v in found.items() if v is not None}


@cache
def _read_file(stem: str) -> HardwareFile:
    path = FOLDER / f"{stem}.yaml"
    return validate_as(HardwareFile, read_yaml(path), path.name)


@cache
def hardware_file_names() -> tuple[str, ...]:
    """Return the names of all shipped hardware files, sorted."""
    return tuple(sorted(p.stem for p in FOLDER.glob("*.yaml")))


def hardware_spellings() -> dict[str, str]:
    """Return every accepted spelling (names and aliases) and the file it refers to; this reads every file."""
    found = {alias: stem for stem in hardware_file_names() for alias in _read_file(stem).aliases}
    return found | {stem: stem for stem in hardware_file_names()}


def find_hardware_file(name: str) -> str | None:
    """Return the file that a spelling refers to, or None; case and `_` instead of `-` do not matter."""
    folded = name.strip().lower().replace("_", "-")
    if folded in hardware_file_names():
        return folded
    return hardware_spellings().get(folded)


def _nearest_spelling(name: str) -> str | None:
    """Return the spelling that a name is almost, or the longest in it (nvidia-h100), or else a similar one."""
    spellings = [*hardware_spellings(), "local"]
    contained = max((known for known in spellings if known in name.lower()), key=len, default=None)
    return nearest_name(name, spellings, LIKE_NAME) or contained or nearest_in_family(name, spellings, 0.45)


def read_hardware_file(name: str) -> HardwareFile:
    """Return the file of a name or alias.

    Raises:
        InputError: The name is unknown; the message names the nearest one.
    """
    stem = find_hardware_file(name)
    if stem is None:
        nearest = _nearest_spelling(name)
        raise InputError("unknown hardware", name, nearest, None if nearest else "`catalog list hardware` lists all")
    return _read_file(stem)


def cache_bytes(name: str) -> float:
    """Return the second-level cache of a shipped accelerator, also under its MIG names; 0 where it is not known."""
    stem = name.partition(":")[0]
    l2_mib = _read_file(stem).l2_mib if stem in hardware_file_names() else None
    return (l2_mib or 0.0) * MIB


def build_accelerator(file: HardwareFile) -> Accelerator:
    """Return the accelerator that a file describes, not divided into slices."""
    return Accelerator(
        name=file.name,
        full_name=file.full_name,
        memory_bytes=file.memory_mib * MIB,
        memory_bandwidth_bytes_per_s=file.bandwidth_gb_per_s * GIGA,
        peak_flops=file.peak_flops,
        tdp_w=file.tdp_w,
        idle_w=file.idle_w,
        high_clocks=file.high_clocks,
        kind=file.kind,
        maker=file.maker,
        architecture=file.architecture,
        source=f"{file.source} (as of {file.as_of})",
        cache_bytes=cache_bytes(file.name),
        multiprocessors=file.sms or 0,
        calibrated_like=file.calibrated_like,
        releases_like=file.releases_like,
    )


def build_node(file: HardwareFile, count: int) -> Node:
    """Return the server with `count` accelerators; a pair uses the bridge where the product has one."""
    n = file.node
    link, speed = n.link, n.link_gb_per_s
    if count <= 2 and n.bridge is not None and n.bridge_gb_per_s is not None:
        link, speed = n.bridge, n.bridge_gb_per_s
    return Node(
        accelerator=build_accelerator(file),
        max_accelerators=n.max_accelerators,
        link_name=link,
        link_bytes_per_s=speed * GIGA,
        network_bytes_per_s=n.network_gb_per_s * GIGA,
        host_idle_w=n.host_idle_w,
        host_w_per_accelerator=n.host_w_per_accelerator,
        routed=RoutedPeers(n.routed.gb_per_s * GIGA, n.routed.hop_us * 1e-6) if n.routed else None,
        host_bytes_per_s=n.to_host_gb_per_s * GIGA,
        host_memory_bytes=n.host_memory_gib * GIB if n.host_memory_gib else None,
        host_cores=n.host_cores,
        pair_bytes_per_s=(n.bridge_gb_per_s or 0.0) * GIGA,
        linked_accelerators=n.reach or 0,
        cards=n.network_cards or 0,
        link_per_peer=n.link_per_peer,
    )


def build_mig_node(file: HardwareFile, profile: str) -> Node:
    """Return one GPU cut into equal MIG instances as a node.

    An instance has sms/all of the peak flops and memory_eighths/8 of the bandwidth. Of the GPU's power, its limit
    follows its fraction of multiprocessors, and its idle power its fraction of memory. The host is shared by all GPUs
    of the server, so only the part of one GPU counts.
    """
    mig, whole = file.mig[profile], build_accelerator(file)
    assert file.sms is not None
    compute, memory = mig.sms / file.sms, mig.memory_eighths / 8
    instance = replace(
        whole,
        name=f"{file.name}:{profile}",
        full_name=f"{file.full_name} MIG {profile}",
        memory_bytes=mig.memory_mib * MIB,
        memory_bandwidth_bytes_per_s=whole.memory_bandwidth_bytes_per_s * memory,
        peak_flops={d: v * compute for d, v in whole.peak_flops.items()},
        tdp_w=whole.tdp_w * compute,
        idle_w=whole.idle_w * memory,
        multiprocessors=mig.sms,
    )
    n = file.node
    return Node(
        accelerator=instance,
        max_accelerators=mig.max_per_gpu,
        link_name="none",
        link_bytes_per_s=n.to_host_gb_per_s * GIGA / mig.max_per_gpu,  # through the host, over the GPU's single slot
        network_bytes_per_s=n.network_gb_per_s * GIGA / mig.max_per_gpu,
        cards=1,  # the GPU's, shared by its instances
        host_idle_w=n.host_idle_w / n.max_accelerators,
        host_w_per_accelerator=n.host_w_per_accelerator * compute,
        host_bytes_per_s=n.to_host_gb_per_s * GIGA / mig.max_per_gpu,
    )
