"""Matrix products as a network in torch runs them: a linear layer with the weights of its module, or `torch.bmm`.

Weights are rotated through memory; activations are not, because the preceding kernel has just written them.
"""

from __future__ import annotations

from calibration.profile.kernels.inputs import input_sets, random
from calibration.profile.machine.device import ProfiledDevice
from calibration.profile.machine.timing import Call, Work
from calibration.profile.session.shape import Shape


def work(shape: Shape, device: ProfiledDevice) -> Work:
    """Return the product in the shape's dtype.

    Raises:
        DoesNotFit: If the inputs do not fit in the device's memory.
    """
    m, n, k, batch, shared = shape.ints("m", "n", "k", "batch", "shared")
    dtype = device.sixteen_bit(str(shape["dtype"]))
    torch, size = device.torch, float(dtype.itemsize)
    linear = torch.nn.functional.linear
    if shared:
        rows = m * batch
        sets = input_sets(device, size * n * k + size * rows * (k + n) / 8)
        x, bias = random(device, (rows, k), dtype), random(device, (n,), dtype)

        def product() -> Call:
            w = random(device, (n, k), dtype)
            return lambda: linear(x, w, bias)

        return Work([product() for _ in sets], "torch linear")
    input_sets(device, size * batch * (m * k + k * n + m * n))  # this raises DoesNotFit for inputs that are too large
    a, b = random(device, (batch, m, k), dtype), random(device, (batch, k, n), dtype)
    return Work([lambda: torch.bmm(a, b)], "torch bmm")
