"""Matrix products as a network in torch runs them: a linear layer with the weights of its module, or `torch.bmm`.

Weights are rotated through memory, and on a CPU the activations too.
"""

from __future__ import annotations

from calibration.profile.kernels.inputs import ActivationSets, input_sets, random
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
    activations = ActivationSets(device)
    if shared:
        rows, linear = m * batch, torch.nn.functional.linear
        sets = input_sets(device, size * n * k + size * rows * (k + n) / 8)
        x, bias = activations.random((rows, k), dtype), random(device, (n,), dtype)

        def product() -> Call:
            w, own = random(device, (n, k), dtype), x()
            return lambda: linear(own, w, bias)

        return Work(activations.keeping([product() for _ in sets], size * rows * n), "torch linear")
    moved = size * batch * (m * k + k * n)
    input_sets(device, moved + size * batch * m * n)  # this raises DoesNotFit for inputs that are too large
    first, second = activations.random((batch, m, k), dtype), activations.random((batch, k, n), dtype)

    def own_factors() -> Call:
        a, b = first(), second()
        return lambda: torch.bmm(a, b)

    calls = [own_factors() for _ in activations.sets(moved)]
    return Work(activations.keeping(calls, size * batch * m * n), "torch bmm")
