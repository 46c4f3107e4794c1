"""Convolutions as a network in torch runs them: channels first, with the weights of the module.

Weights are rotated through memory; images are not, because the preceding kernel has just written them. The padding
follows from the extents: it is shared between both ends, the end taking the odd one by a crop of the output.
"""

from __future__ import annotations

from math import prod

from calibration.operators.operators import numbers
from calibration.profile.kernels.inputs import ActivationSets, input_sets, random
from calibration.profile.machine.device import ProfiledDevice
from calibration.profile.machine.timing import Call, Work
from calibration.profile.session.shape import Shape


def work(shape: Shape, device: ProfiledDevice) -> Work:
    """Return the convolution in the shape's dtype.

    Raises:
        DoesNotFit: If the inputs do not fit in the device's memory.
    """
    batch, inputs, outputs, groups, transposed = shape.ints(
        "batch", "in_channels", "out_channels", "groups", "transposed"
    )
    kernel, image, output, stride, dilation = (
        numbers(str(shape[name])) for name in ("window", "input", "output", "stride", "dilation")
    )
    dtype = device.sixteen_bit(str(shape["dtype"]))
    torch, size = device.torch, float(dtype.itemsize)
    weights = prod(kernel) * inputs * outputs // groups
    images = batch * (inputs * prod(image) + outputs * prod(output))
    sets = input_sets(device, size * weights + size * images / 8)
    input_sets(device, size * images)  # this raises DoesNotFit for images that are too large
    activations = ActivationSets(device)
    x, bias = activations.random((batch, inputs, *image), dtype), random(device, (outputs,), dtype)
    functional = torch.nn.functional
    dims = len(kernel)
    if transposed:
        call = getattr(functional, f"conv_transpose{dims}d")
        size_of = (inputs, outputs // groups, *kernel)
        padding = tuple(
            max(((i - 1) * s + d * (n - 1) + 1 - o + 1) // 2, 0)
            for i, s, d, n, o in zip(image, stride, dilation, kernel, output, strict=True)
        )
        options = {"stride": stride, "padding": padding, "groups": groups, "dilation": dilation}
    else:
        call = getattr(functional, f"conv{dims}d")
        size_of = (outputs, inputs // groups, *kernel)
        padding = tuple(
            max(-(-((o - 1) * s + d * (n - 1) + 1 - i) // 2), 0)
            for i, s, d, n, o in zip(image, stride, dilation, kernel, output, strict=True)
        )
        options = {"stride": stride, "padding": padding, "groups": groups, "dilation": dilation}

    def convolution() -> Call:
        w, own = random(device, size_of, dtype), x()
        return lambda: call(own, w, bias, **options)

    result_bytes = size * batch * outputs * prod(output)
    return Work(activations.keeping([convolution() for _ in sets], result_bytes), "torch convolution")
