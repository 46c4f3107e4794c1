"""Rates of the machine that every cost depends on: memory bandwidth, arithmetic peaks, copies and kernel launches."""

from __future__ import annotations

from typing import Final

from calibration.profile.kernels import gemm
from calibration.profile.kernels.inputs import DoesNotFit, random
from calibration.profile.machine.device import ProfiledDevice
from calibration.profile.machine.timing import Work
from calibration.profile.session.shape import CHECKS, Shape
from catalogs.units import GIB, KIB, MIB

#: Bytes of the stream that measures memory bandwidth: more than usual last-level caches.
STREAM_BYTES: Final = {"cpu": 256 * MIB, "cuda": 1 * GIB}

SQUARE: Final = {"cpu": 1536, "cuda": 8192}  # side of the square matrices that measure the arithmetic peak

COPY_BYTES: Final = (4 * KIB, 64 * KIB, MIB, 16 * MIB, 256 * MIB)

#: Trivial kernels of one run, over which the time of a launch is divided.
LAUNCHES: Final = 100

PEER: Final = "first device to second"


def shapes(device: ProfiledDevice) -> list[Shape]:
    """Return the machine shapes: the peaks of memory and of every dtype, and on a GPU copies and kernel launches."""
    found = [Shape.of("peak", CHECKS, kind=k, dtype="bf16") for k in ("copy", "read")]
    found += [Shape.of("peak", CHECKS, kind="arithmetic", dtype=d) for d in device.dtypes]
    if device.is_cuda:
        ways = [f"{way} {memory}" for way in ("host to device", "device to host") for memory in ("pageable", "pinned")]
        ways += [PEER] if device.torch.cuda.device_count() > 1 else []
        found += [Shape.of("copy", CHECKS, kind=way, message_bytes=int(size)) for way in ways for size in COPY_BYTES]
        found += [Shape.of("launch", CHECKS, kind=k) for k in ("eager", "graph replay", "graph of one")]
    return found


def amount(shape: Shape, device_kind: str) -> float:
    """Return the bytes or floating-point operations of one execution of a "peak" shape."""
    if shape["kind"] == "arithmetic":
        return 2.0 * float(SQUARE[device_kind]) ** 3
    return STREAM_BYTES[device_kind] * (2.0 if shape["kind"] == "copy" else 1.0)


def peak(shape: Shape, device: ProfiledDevice) -> Work:
    """Return a plain read or copy of a large array, or a large square matrix product.

    Raises:
        DoesNotFit: If the device has too little free memory.
    """
    torch, kind = device.torch, device.kind
    if shape["kind"] == "arithmetic":
        side = SQUARE[kind]
        return gemm.work(Shape.of("gemm", m=side, n=side, k=side, dtype=str(shape["dtype"])), device)
    size = int(STREAM_BYTES[kind])
    if 2 * size > 0.5 * device.free_bytes():
        raise DoesNotFit(f"the shape needs {2 * size / 1e9:.2g} GB")
    x = random(device, (size // 4,), torch.float32)
    if shape["kind"] == "read":
        return Work([lambda: x.sum()], "torch sum")
    y = torch.empty_like(x)
    return Work([lambda: y.copy_(x)], "torch copy")


def copy(shape: Shape, device: ProfiledDevice) -> Work:
    """Return a copy between the host and a GPU, or between two GPUs."""
    torch = device.torch
    way, _, memory = str(shape["kind"]).rpartition(" ")
    size = int(shape["message_bytes"])
    if shape["kind"] == PEER:
        source, target = (torch.empty(size, dtype=torch.uint8, device=f"cuda:{i}").random_(0, 255) for i in (0, 1))
        direct = torch.cuda.can_device_access_peer(0, 1)
        return Work([lambda: target.copy_(source)], "peer copy" if direct else "copy through the host", graph=False)
    host = torch.empty(size, dtype=torch.uint8, pin_memory=memory == "pinned").random_(0, 255)
    remote = torch.empty(size, dtype=torch.uint8, device="cuda")
    pair = (remote, host) if way.startswith("host") else (host, remote)
    return Work([lambda: pair[0].copy_(pair[1], non_blocking=memory == "pinned")], f"{memory} copy", graph=False)


def launch(shape: Shape, device: ProfiledDevice) -> Work:
    """Return LAUNCHES trivial kernels, launched one by one or replayed from a graph, or a graph of one kernel."""
    torch = device.torch
    x = torch.ones(32, device="cuda")
    n = 1 if shape["kind"] == "graph of one" else LAUNCHES

    def launches() -> None:
        for _ in range(n):
            x.add_(1.0)

    if shape["kind"] == "eager":
        return Work([launches], "add", n, graph=False)
    launches()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        launches()
    return Work([graph.replay], "graph", n, graph=False)
