"""Memory-bound kernels of networks, one by one, by the name that torch gives them.

A kernel runs on inputs with the elements, bytes and dtype of its shape. What a network file does not state is chosen:
a smaller second factor is one value per row or, where it is a parameter, per column; a copy exchanges two dimensions
and keeps rows of COPIED_ROW elements; a table is read at random rows. A name without an entry in MAKERS runs as the
usual kernel of its kind.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any, Final

from calibration.profile.kernels.inputs import (
    ActivationSets,
    Unavailable,
    input_sets,
    into_memory,
    random,
    writable_random,
)
from calibration.profile.machine.device import TORCH_DTYPES, ProfiledDevice
from calibration.profile.machine.timing import Call, Work
from calibration.profile.session.shape import Shape

COPIED_ROW: Final = 64  # elements that a copy keeps together: a head, or the channels of a small map

ROW: Final = 768  # elements of a row where the shape does not state one

#: Groups of a group norm.
GROUPS: Final = 32

#: Rows of a table of embeddings.
TABLE_ROWS: Final = 16384

#: Functions of one tensor with further arguments.
ARGUMENTS: Final[Mapping[str, tuple[Any, ...]]] = {
    "pow": (2.0,),
    "clamp": (-1.0, 1.0),
    "leaky_relu": (0.1,),
    "fill": (1.0,),
    "full_like": (1.0,),
}


#: Pointwise functions of two tensors.
BINARY: Final = (
    *("add", "sub", "rsub", "mul", "div", "maximum", "minimum", "pow", "atan2", "remainder"),
    *("lt", "gt", "le", "ge", "eq", "ne", "bitwise_and", "logical_and"),
)


@dataclass(frozen=True, slots=True)
class KernelSize:
    """The size of one kernel: elements written and read, elements that share a mean, and torch's dtype."""

    elements: int
    read: int
    width: int
    dtype: Any


Maker = Callable[[KernelSize, ProfiledDevice], Call]


def work(shape: Shape, device: ProfiledDevice) -> Work:
    """Return the kernel that a shape names, or the usual one of its kind.

    Raises:
        DoesNotFit: If the tensors do not fit in the device's memory.
        Unavailable: If torch does not run the kernel on such tensors.
    """
    name, kind = str(shape["operator"]), str(shape["kind"])
    if str(shape["dtype"]) not in TORCH_DTYPES:
        raise Unavailable(f"no kernels in {shape['dtype']} are measured")
    dtype = device.sixteen_bit(str(shape["dtype"]))
    elements, width = max(int(shape["elements"]), 1), int(shape["width"])
    read = max(int(shape["read_bytes"]) // dtype.itemsize, 1)
    input_sets(device, 2.0 * dtype.itemsize * (elements + read))  # raises DoesNotFit for tensors that are too large
    size = KernelSize(elements, read, width, dtype)
    maker = MAKERS.get(name.removesuffix("_")) or MAKERS.get(name) or _pointwise(name, device) or USUAL[kind]
    sets = ActivationSets(device).sets(float(dtype.itemsize) * (read if name.endswith("_") else elements + read))
    calls = [maker(size, device) for _ in sets]
    if not name.endswith("_"):
        calls = into_memory(calls, float(elements * dtype.itemsize), device)
    return Work(calls, f"torch {name}", graph=kind != "sort")


def rows_of(elements: int, width: int) -> tuple[int, int]:
    """Return rows and columns of `elements` elements with about `width` columns, at least one row."""
    columns = min(max(width, 1), elements)
    return max(elements // columns, 1), columns


def _pointwise(name: str, device: ProfiledDevice) -> Maker | None:
    """Return what makes a pointwise kernel of torch's dispatcher; None where its arguments are not tensors alone."""
    packet = getattr(device.torch.ops.aten, name, None)
    if packet is None:
        return None
    overloads = packet.overloads()
    if "Tensor" in overloads and name.removesuffix("_") in BINARY:
        return lambda size, dev: _binary(packet, size, dev)
    base = name.removesuffix("_")
    arguments = ARGUMENTS.get(base, ())
    schema = next((getattr(packet, o)._schema for o in overloads), None)
    needed = [a for a in schema.arguments if not a.has_default_value()] if schema else []
    if len(needed) != 1 + len(arguments) or "Tensor" not in str(needed[0].type):
        return None

    def make(size: KernelSize, dev: ProfiledDevice) -> Call:
        x = writable_random(dev, (size.elements,), size.dtype)
        return lambda: packet(x, *arguments)

    return make


def _binary(packet: Any, size: KernelSize, device: ProfiledDevice) -> Call:
    second = size.read - size.elements
    if second <= 0:
        x = writable_random(device, (size.elements,), size.dtype)
        return lambda: packet(x, 1.5)
    if second >= size.elements:
        x, y = (writable_random(device, (size.elements,), size.dtype) for _ in range(2))
        return lambda: packet(x, y)
    columns = max(size.elements // second, 1)
    x, y = writable_random(device, (second, columns), size.dtype), random(device, (second, 1), size.dtype)
    return lambda: packet(x, y)


def _layer_norm(size: KernelSize, device: ProfiledDevice) -> Call:
    rows, columns = rows_of(size.elements, size.width or ROW)
    x = random(device, (rows, columns), size.dtype)
    weight, bias = (random(device, (columns,), size.dtype) for _ in range(2))
    norm = device.torch.nn.functional.layer_norm
    return lambda: norm(x, (columns,), weight, bias)


def _batch_norm(size: KernelSize, device: ProfiledDevice) -> Call:
    """Return a batch norm with stored statistics; the parameters that it reads state the channels."""
    channels = max((size.read - size.elements) // 4, 1)
    places = max(size.elements // channels, 1)
    x = random(device, (1, channels, places), size.dtype)
    weight, bias, mean = (random(device, (channels,), size.dtype) for _ in range(3))
    variance = random(device, (channels,), size.dtype).abs()
    norm = device.torch.nn.functional.batch_norm
    return lambda: norm(x, mean, variance, weight, bias, False)


def _group_norm(size: KernelSize, device: ProfiledDevice) -> Call:
    channels = max((size.read - size.elements) // 2, GROUPS)
    channels -= channels % GROUPS
    x = random(device, (1, channels, max(size.elements // channels, 1)), size.dtype)
    weight, bias = (random(device, (channels,), size.dtype) for _ in range(2))
    norm = device.torch.nn.functional.group_norm
    return lambda: norm(x, GROUPS, weight, bias)


def _softmax(size: KernelSize, device: ProfiledDevice) -> Call:
    x = random(device, rows_of(size.elements, ROW), size.dtype)
    return lambda: device.torch.softmax(x, dim=-1)


def _reduction(size: KernelSize, device: ProfiledDevice) -> Call:
    x = random(device, (size.elements, max(size.read // size.elements, 1)), size.dtype)
    return lambda: x.mean(dim=-1)


def _max_pool(size: KernelSize, device: ProfiledDevice) -> Call:
    return _pool(size, device, device.torch.nn.functional.max_pool2d)


def _average_pool(size: KernelSize, device: ProfiledDevice) -> Call:
    return _pool(size, device, device.torch.nn.functional.avg_pool2d)


def _pool(size: KernelSize, device: ProfiledDevice, pool: Any) -> Call:
    """Return a pooling by 2 in each dimension, with a window of 2; as wide as high, with COPIED_ROW channels."""
    stride = max(round((size.read / size.elements) ** 0.5), 1)
    channels = COPIED_ROW if size.elements >= COPIED_ROW else 1
    side = max(round((size.elements / channels) ** 0.5), 1)
    x = random(device, (1, channels, side * stride, side * stride), size.dtype)
    kernel, padding = (3, 1) if stride == 1 else (stride, 0)
    return lambda: pool(x, kernel, stride=stride, padding=padding)


def _clone(size: KernelSize, device: ProfiledDevice) -> Call:
    x = _exchanged(random(device, (prod(_blocks(size.elements)),), size.dtype), size.elements)
    return lambda: x.clone(memory_format=device.torch.contiguous_format)


def _blocks(elements: int) -> tuple[int, int, int]:
    columns = min(COPIED_ROW, elements)
    rows = max(elements // columns, 1)
    first = max(int(rows**0.5), 1)
    return first, max(rows // first, 1), columns


def _exchanged(flat: Any, elements: int) -> Any:
    return flat.view(_blocks(elements)).transpose(0, 1)


def _cat(size: KernelSize, device: ProfiledDevice) -> Call:
    half = max(size.elements // 2, 1)
    parts = [random(device, rows_of(half, ROW), size.dtype) for _ in range(2)]
    return lambda: device.torch.cat(parts, dim=-1)


def _pad(size: KernelSize, device: ProfiledDevice) -> Call:
    rows, columns = rows_of(size.elements, ROW)
    x = random(device, (rows, max(columns - 2, 1)), size.dtype)
    return lambda: device.torch.nn.functional.pad(x, (1, 1))


def _convert(size: KernelSize, device: ProfiledDevice) -> Call:
    torch = device.torch
    source = torch.bfloat16 if size.dtype == torch.float32 else torch.float32
    x = random(device, (size.elements,), source)
    return lambda: x.to(size.dtype)


def _repeat(size: KernelSize, device: ProfiledDevice) -> Call:
    times = max(size.elements // max(size.read, 1), 1)
    x = random(device, (max(size.elements // times, 1),), size.dtype)
    return lambda: x.repeat(times)


def _where(size: KernelSize, device: ProfiledDevice) -> Call:
    x, y = (random(device, (size.elements,), size.dtype) for _ in range(2))
    mask = x > 0
    return lambda: device.torch.where(mask, x, y)


def _embedding(size: KernelSize, device: ProfiledDevice) -> Call:
    rows, columns = rows_of(size.elements, ROW)
    table = random(device, (TABLE_ROWS, columns), size.dtype)
    ids = device.torch.randint(TABLE_ROWS, (rows,), device=device.kind)
    return lambda: device.torch.nn.functional.embedding(ids, table)


def _resize(size: KernelSize, device: ProfiledDevice) -> Call:
    return _interpolated(size, device, "nearest")


def _bicubic(size: KernelSize, device: ProfiledDevice) -> Call:
    return _interpolated(size, device, "bicubic")


def _bilinear(size: KernelSize, device: ProfiledDevice) -> Call:
    return _interpolated(size, device, "bilinear")


def _interpolated(size: KernelSize, device: ProfiledDevice, mode: str) -> Call:
    channels = COPIED_ROW if size.elements >= COPIED_ROW else 1
    side = max(round((size.elements / channels) ** 0.5), 1)
    small = max(round((min(size.read, size.elements) / channels) ** 0.5), 1)
    x = random(device, (1, channels, small, small), size.dtype)
    return lambda: device.torch.nn.functional.interpolate(x, size=(side, side), mode=mode)


def _gelu_tanh(size: KernelSize, device: ProfiledDevice) -> Call:
    x = random(device, (size.elements,), size.dtype)
    return lambda: device.torch.nn.functional.gelu(x, approximate="tanh")


def _fill(size: KernelSize, device: ProfiledDevice) -> Call:
    return lambda: device.torch.zeros(size.elements, dtype=size.dtype, device=device.kind)


def _arange(size: KernelSize, device: ProfiledDevice) -> Call:
    return lambda: device.torch.arange(size.elements, dtype=size.dtype, device=device.kind)


def _scan(size: KernelSize, device: ProfiledDevice) -> Call:
    x = random(device, rows_of(size.elements, ROW), size.dtype)
    return lambda: x.cumsum(dim=-1)


def _sort(size: KernelSize, device: ProfiledDevice) -> Call:
    x = random(device, rows_of(size.elements, ROW), size.dtype)
    return lambda: x.sort(dim=-1)


def _copy(size: KernelSize, device: ProfiledDevice) -> Call:
    x = random(device, (size.elements,), size.dtype)
    return lambda: x.clone()


def _square(size: KernelSize, device: ProfiledDevice) -> Call:
    x, y = (random(device, (size.elements,), size.dtype) for _ in range(2))
    return lambda: device.torch.mul(x, y)


#: What makes the kernel of a name.
MAKERS: Final[Mapping[str, Maker]] = {
    "gelu_tanh": _gelu_tanh,
    "native_layer_norm": _layer_norm,
    "native_batch_norm": _batch_norm,
    "native_group_norm": _group_norm,
    "max_pool2d_with_indices": _max_pool,
    "avg_pool2d": _average_pool,
    "clone": _clone,
    "stack": _cat,
    "cat": _cat,
    "constant_pad_nd": _pad,
    "to_copy": _convert,
    "_to_copy": _convert,
    "repeat": _repeat,
    "where": _where,
    "embedding": _embedding,
    "index": _embedding,
    "index_select": _embedding,
    "upsample_bicubic2d": _bicubic,
    "_upsample_bicubic2d_aa": _bicubic,
    "upsample_bilinear2d": _bilinear,
    "zeros": _fill,
    "ones": _fill,
    "full": _fill,
    "new_zeros": _fill,
    "arange": _arange,
}

#: What makes the kernel of a name that is neither in MAKERS nor pointwise, by its kind.
USUAL: Final[Mapping[str, Maker]] = {
    "pooling": _max_pool,
    "normalisation": _layer_norm,
    "softmax": _softmax,
    "pointwise": _square,
    "reduction": _reduction,
    "gather": _embedding,
    "copy": _copy,
    "resize": _resize,
    "sort": _sort,
    "scan": _scan,
    "other": _copy,
}
