"""The price of attention without a mask, by backend: measured kernels, published rates, or the causal table."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from pydantic import PositiveFloat

from calibration.bundles.bundle import Bundle
from calibration.families.noncausal_attention import WITHOUT_MASK, NonCausalAttentionModel
from calibration.operators.cost import ROOFLINE, CostSource
from calibration.operators.operators import NonCausalAttention, PrefillAttention
from calibration.operators.roofline import compute_s, roofline_s
from catalogs.errors import InputError, nearest_name
from catalogs.io.yaml_files import DATA, YamlBlock, read_yaml, validate_as
from catalogs.networks.shapes import AttentionShape
from simulator.networks.written_attention import WRITTEN_OUT


class BackendEntry(YamlBlock):
    """One entry of the file: the kernel that stands for a backend on some architectures."""

    kernel: str
    architectures: tuple[str, ...] = ()
    relative_speed: PositiveFloat = 1.0
    matrix_share: PositiveFloat = 1.0  # of the peak of the matrix units, at most
    assumed: bool = False  # the speed is an assumption of ours, which the source does not state
    source: str = ""


class BackendFile(YamlBlock):
    """The file of attention kernels: the entries of each backend, one for each group of architectures."""

    backends: dict[str, tuple[BackendEntry, ...]]


@lru_cache(maxsize=1)
def load_backends() -> dict[str, tuple[BackendEntry, ...]]:
    """Return the entries of every backend.

    Raises:
        InputError: The file is damaged.
    """
    path = DATA / "attention_backends.yaml"
    return validate_as(BackendFile, read_yaml(path), path.name).backends


#: Backends that the causal tables stand for, whose kernels are FlashAttention 2 on the boards without other tables.
LIKE_FLASH_2: Final = (None, "fa2", "sdpa", "efficient", "tensorrt")


@dataclass(frozen=True, slots=True)
class AttentionPrice:
    """The price of one attention.

    Attributes:
        seconds: Its time.
        origin: Where the time comes from (calibration/operators/cost.py).
        watts: Power demand while it runs.
        notice: What was not measured.
    """

    seconds: float
    origin: float
    watts: float
    notice: str | None = None


def attention_price(
    shape: AttentionShape, backend: str | None, bundle: Bundle, source: CostSource | None = None
) -> AttentionPrice:
    """Return the price of attention in 16 bits on the accelerator of a bundle.

    Args:
        shape: The attention.
        backend: A backend of the file, None for the best measured one.
        bundle: The costs of the accelerator.
        source: The same costs at another clock; None: those of the bundle.

    Raises:
        InputError: The backend is unknown.
    """
    source = source or bundle
    if backend in WRITTEN_OUT:  # one kernel where a caller asks for one
        backend = None
    if backend is not None and backend not in load_backends():
        known = (*load_backends(), *WRITTEN_OUT)
        raise InputError("unknown attention backend", backend, nearest_name(backend, known))
    if shape.causal and shape.queries == shape.keys:
        return _causal(shape, source)
    model = bundle.models.get("noncausal_attention")
    if isinstance(model, NonCausalAttentionModel):
        entry = _entry(backend, model, bundle)
        if entry is not None:
            kernel, speed = entry.kernel, entry.relative_speed
            op = _operator(shape, kernel)
            cost = source.cost(op)
            seconds, watts = float(cost.seconds), float(cost.watts)
            if speed == 1.0:
                return AttentionPrice(seconds, float(cost.origin), watts)
            unbound, matrix = model.vector_bound(op, bundle.accelerator)[0], compute_s(op, bundle.accelerator)
            longer = seconds / float(bundle.cost(op).seconds)  # at a lower clock
            seconds = longer * max(float(unbound) / speed, float(matrix) / entry.matrix_share)
            rate = "an assumed rate" if entry.assumed else "a published rate"
            note = f"attention backend {backend}: {rate}, {speed:g} times that of the measured {kernel}"
            return AttentionPrice(seconds, ROOFLINE, watts, note)
    elif "prefill_attention" in bundle.models and backend in LIKE_FLASH_2:
        note = f"attention without a mask: from the causal table of {bundle.name}, {WITHOUT_MASK:g} times its rate"
        cost = source.cost(_as_prompt(shape))
        return AttentionPrice(float(cost.seconds) / WITHOUT_MASK, ROOFLINE, float(cost.watts), note)
    op = _operator(shape, "fa2")
    watts = float(source.cost(op).watts)
    efficiency = 0.5  # as calibration/families/uncalibrated.py
    note = f"attention backend {backend or 'default'}: not measured on {bundle.accelerator.name}, half of its roofline"
    return AttentionPrice(float(roofline_s(op, bundle.accelerator)) / efficiency + 8e-6, ROOFLINE, watts, note)


def default_backend(bundle: Bundle) -> str | None:
    """Return the backend that an engine prefers on the accelerator of a bundle, None where none was measured."""
    return bundle.unmasked_kernel


def _entry(backend: str | None, model: NonCausalAttentionModel, bundle: Bundle) -> BackendEntry | None:
    """Return the measured kernel that stands for a backend; None where nothing is known of the pair."""
    if backend is None:
        kernel = default_backend(bundle)
        return BackendEntry(kernel=kernel) if kernel else None
    architecture = bundle.accelerator.architecture
    for entry in load_backends()[backend]:
        if (not entry.architectures or architecture in entry.architectures) and entry.kernel in model.kernels:
            return entry
    return None


def _operator(shape: AttentionShape, kernel: str) -> NonCausalAttention:
    dim = (shape.head_dim + shape.value_dim) // 2
    return NonCausalAttention(shape.batch, shape.queries, shape.keys, shape.heads, dim, kernel)


def _causal(shape: AttentionShape, source: CostSource) -> AttentionPrice:
    tokens, pairs = shape.batch * shape.queries, shape.batch * shape.queries * shape.keys / 2
    op = PrefillAttention(shape.batch, tokens, pairs, shape.heads, shape.kv_heads, shape.head_dim, "bf16")
    cost = source.cost(op)
    return AttentionPrice(float(cost.seconds), float(cost.origin), float(cost.watts))


def _as_prompt(shape: AttentionShape) -> PrefillAttention:
    tokens, pairs = shape.batch * shape.queries, shape.batch * shape.queries * shape.keys
    return PrefillAttention(shape.batch, tokens, pairs, shape.heads, shape.heads, shape.head_dim, "bf16")
