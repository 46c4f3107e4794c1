"""Hardware files: human units in, SI out. One YAML per accelerator in data/hardware/."""

from __future__ import annotations

from functools import cache
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, PositiveFloat, PositiveInt, model_validator

from catalogs.errors import InputError, nearest_name
from catalogs.hardware.specs import Accelerator, Node, RoutedPeers
from catalogs.io.yaml_files import DATA, read_yaml, validate_as
from catalogs.units import GIB, GIGA, MIB, TERA

FOLDER = DATA / "hardware"


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class RoutedFile(_Strict):
    """Traffic between accelerators that the host routes: each sends gb_per_s, a message takes hop_us besides."""

    gb_per_s: PositiveFloat
    hop_us: PositiveFloat
    source: str


class NodeFile(_Strict):
    """The usual server around the accelerator. Link and network: per accelerator, one direction."""

    max_accelerators: PositiveInt
    link: str
    link_gb_per_s: PositiveFloat
    reach: PositiveInt | None = None  # accelerators the link joins, where it leaves the node (a rack of trays)
    bridge: str | None = None  # a link between pairs only
    bridge_gb_per_s: PositiveFloat | None = None
    network_cards: PositiveInt | None = None  # of the whole node, where they are fewer than its accelerators
    network_gb_per_s: PositiveFloat
    host_gb_per_s: PositiveFloat | None = None  # accelerator to host memory; null: the link, where that is PCIe
    host_memory_gib: PositiveFloat | None = None  # of the node as NVIDIA's own system ships it; null: not known
    host_idle_w: PositiveFloat
    host_w_per_accelerator: PositiveFloat
    routed: RoutedFile | None = None

    @property
    def to_host_gb_per_s(self) -> float:
        return self.host_gb_per_s or self.link_gb_per_s

    @model_validator(mode="after")
    def _way_to_the_host(self) -> NodeFile:
        if self.host_gb_per_s is None and self.link.startswith("nvlink") and "c2c" not in self.link:
            raise ValueError("a node with NVLink needs host_gb_per_s: its link does not lead to the host")
        return self


class MigProfile(_Strict):
    """One MIG instance: memory as reported inside it, multiprocessors, eighths of the memory system, most per GPU."""

    memory_mib: PositiveInt
    sms: PositiveInt
    memory_eighths: PositiveInt = Field(le=8)
    max_per_gpu: PositiveInt = Field(le=7)


class HardwareFile(_Strict):
    """One accelerator as written in data/hardware/NAME.yaml. peak_tflops_*: dense, never the sparse figure."""

    name: str
    full_name: str
    aliases: tuple[str, ...] = Field(default=(), strict=False)
    kind: Literal["gpu", "cpu"] = "gpu"
    architecture: str
    driver_names: tuple[str, ...] = Field(default=(), strict=False)  # as the driver names it, for `local`
    memory_mib: PositiveFloat
    bandwidth_gb_per_s: PositiveFloat
    peak_tflops_fp32: PositiveFloat
    peak_tflops_fp16: PositiveFloat | None = None
    peak_tflops_bf16: PositiveFloat | None = None
    peak_tflops_fp8: PositiveFloat | None = None
    peak_tflops_int8: PositiveFloat | None = None
    peak_tflops_fp4: PositiveFloat | None = None
    sms: PositiveInt | None = None
    tdp_w: PositiveFloat
    idle_w: PositiveFloat
    node: NodeFile
    mig: dict[str, MigProfile] = {}
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
        """Dense flops by dtype, of the dtypes with a fast path."""
        found = {d: getattr(self, f"peak_tflops_{d}") for d in ("bf16", "fp16", "fp8", "int8", "fp4", "fp32")}
        return {d: v * TERA for d, v in found.items() if v is not None}

    @property
    def provenance(self) -> str:
        return f"{self.source} (as of {self.as_of})"


@cache
def _read_file(stem: str) -> HardwareFile:
    path = FOLDER / f"{stem}.yaml"
    return validate_as(HardwareFile, read_yaml(path), path.name)


def hardware_file_names() -> list[str]:
    """Names of the shipped files."""
    return list(_stems())


@cache
def _stems() -> tuple[str, ...]:
    return tuple(sorted(p.stem for p in FOLDER.glob("*.yaml")))


def hardware_spellings() -> dict[str, str]:
    """Every accepted spelling (names and aliases) and the file it means. Reads every file."""
    found = {alias: stem for stem in hardware_file_names() for alias in _read_file(stem).aliases}
    return found | {stem: stem for stem in hardware_file_names()}


def find_hardware_file(name: str) -> str | None:
    """The file a spelling means, or None. Case and `_` against `-` do not matter."""
    folded = name.strip().lower().replace("_", "-")
    if folded in hardware_file_names():
        return folded
    return hardware_spellings().get(folded)


def read_hardware_file(name: str) -> HardwareFile:
    """The file of a name or alias. Raises InputError with the nearest name."""
    stem = find_hardware_file(name)
    if stem is None:
        raise InputError(
            "unknown hardware",
            name,
            nearest_name(name, [*hardware_spellings(), "local"]) or ", ".join(hardware_file_names()),
        )
    return _read_file(stem)


def build_accelerator(file: HardwareFile) -> Accelerator:
    """The whole accelerator."""
    return Accelerator(
        name=file.name,
        full_name=file.full_name,
        memory_bytes=file.memory_mib * MIB,
        memory_bandwidth_bytes_per_s=file.bandwidth_gb_per_s * GIGA,
        peak_flops=file.peak_flops,
        tdp_w=file.tdp_w,
        idle_w=file.idle_w,
        kind=file.kind,
        architecture=file.architecture,
        source=file.provenance,
    )


def build_node(file: HardwareFile, count: int) -> Node:
    """The server holding `count` of them; a pair uses the bridge where the product has one."""
    n = file.node
    bridged = count <= 2 and n.bridge is not None and n.bridge_gb_per_s is not None
    link, speed = (n.bridge, n.bridge_gb_per_s) if bridged else (n.link, n.link_gb_per_s)
    assert link is not None
    assert speed is not None
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
        pair_bytes_per_s=(n.bridge_gb_per_s or 0.0) * GIGA,
        reach=n.reach or 0,
        cards=n.network_cards or 0,
    )


def build_mig_node(file: HardwareFile, profile: str) -> Node:
    """One GPU cut into equal MIG instances, as a node of its own.

    An instance has sms/all of the peak, memory_eighths/8 of the bandwidth, and takes the GPU's power by its share of
    multiprocessors (limit) and of memory (idle). The host is shared by the server's GPUs, so it counts for one of them.
    """
    mig, whole = file.mig[profile], build_accelerator(file)
    assert file.sms is not None
    compute, memory = mig.sms / file.sms, mig.memory_eighths / 8
    instance = Accelerator(
        name=f"{file.name}:{profile}",
        full_name=f"{file.full_name} MIG {profile}",
        memory_bytes=mig.memory_mib * MIB,
        memory_bandwidth_bytes_per_s=whole.memory_bandwidth_bytes_per_s * memory,
        peak_flops={d: v * compute for d, v in whole.peak_flops.items()},
        tdp_w=whole.tdp_w * compute,
        idle_w=whole.idle_w * memory,
        architecture=whole.architecture,
        source=whole.source,
    )
    n = file.node
    return Node(
        accelerator=instance,
        max_accelerators=mig.max_per_gpu,
        link_name="none",
        link_bytes_per_s=n.to_host_gb_per_s * GIGA / mig.max_per_gpu,  # through the host, over the GPU's one slot
        network_bytes_per_s=n.network_gb_per_s * GIGA / mig.max_per_gpu,
        cards=1,  # the GPU's, shared by its instances
        host_idle_w=n.host_idle_w / n.max_accelerators,
        host_w_per_accelerator=n.host_w_per_accelerator * compute,
        host_bytes_per_s=n.to_host_gb_per_s * GIGA / mig.max_per_gpu,
    )
