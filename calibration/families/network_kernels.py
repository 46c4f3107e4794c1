"""The kernels of networks as torch runs them: products, convolutions and memory-bound kernels at scattered shapes.

Each family is a set of tables by label (dtype and kind of kernel), each with log utilisation of the roofline at its
measured points. A label that was not measured has the table of a related one, and origin 2.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import prod
from typing import TYPE_CHECKING, Any, ClassVar, Final, Self

import numpy as np
import numpy.typing as npt

from calibration.families.base import Parts
from calibration.families.nonnegative import nonnegative
from calibration.families.scattered import ScatteredValues
from calibration.operators.cost import ROOFLINE, broadcast
from calibration.operators.operators import Convolution, Matmul, Operator, Streaming, numbers
from calibration.operators.roofline import roofline_s
from calibration.rows.dataset import operators_of
from catalogs.arrays import FloatArray
from catalogs.hardware.specs import Accelerator

if TYPE_CHECKING:
    import pandas as pd


#: Weight of coordinates that choose another kernel (extents of a window, groups) over those that grow with a batch. A
#: judgement: a batch twice as large runs the same kernel, and another window does not.
OTHER_KERNEL: Final = 2.0


def _log(*values: object) -> FloatArray:
    return np.stack([np.log2(np.maximum(x, 1e-3)) for x in broadcast(*values)], axis=-1)


@dataclass(frozen=True, slots=True)
class NetworkKernelModel(ABC):
    """Log utilisation at scattered points, and the least measured seconds, both by label."""

    kind: ClassVar[type[Operator]]

    tables: dict[str, ScatteredValues]
    floors_s: dict[str, float]

    @property
    def family(self) -> str:
        """Return the name of the operator family."""
        return self.kind.family

    @classmethod
    @abstractmethod
    def labels(cls, op: Any) -> tuple[str, ...]:
        """Return the table of an operator, and after it what other tables may stand in for, as starts of labels."""

    @classmethod
    @abstractmethod
    def coordinates(cls, op: Any) -> FloatArray:
        """Return the coordinates of an operator in doublings, Shape (..., d) where its fields have Shape (...)."""

    def covers(self, op: Any) -> bool:
        """Return whether the kind of an operator was measured in its dtype."""
        own = self.labels(op)[0]
        return own in self.tables or any(name.startswith(self.labels(op)[1]) for name in self.tables)

    def cost(self, op: Any, accelerator: Accelerator) -> tuple[FloatArray, FloatArray]:
        """Return (seconds, origin), both in the broadcast shape of the operator."""
        where = self.coordinates(op)
        flat = where.reshape(-1, where.shape[-1])
        own, *related = self.labels(op)
        names = [own] if own in self.tables else _first_match(related, self.tables)
        found = [self.tables[name].at(flat) for name in names]
        log_u = np.mean([value for value, _ in found], axis=0)
        origin = found[0][1] if names == [own] else np.full(len(flat), ROOFLINE)
        floor = min(self.floors_s.values())  # of any kernel: the least size that was measured of this one may be large
        seconds = np.maximum(_bound_s(op, accelerator) / np.exp(log_u.reshape(where.shape[:-1])), floor)
        return seconds, origin.reshape(where.shape[:-1])

    def to_parts(self) -> Parts:
        """Return readable facts and arrays that `from_parts` reads."""
        names = sorted(self.tables)
        arrays = [self.tables[name].to_arrays(f"table{i}") for i, name in enumerate(names)]
        return {"tables": names, "floors_s": self.floors_s}, {k: a for part in arrays for k, a in part.items()}

    @classmethod
    def from_parts(cls, facts: Mapping[str, Any], arrays: Mapping[str, npt.NDArray[Any]]) -> Self:
        """Return the model in facts and arrays."""
        tables = {n: ScatteredValues.from_arrays(f"table{i}", arrays) for i, n in enumerate(facts["tables"])}
        return cls(tables, {n: float(facts["floors_s"][n]) for n in tables})

    @classmethod
    def fit(cls, rows: pd.DataFrame, accelerator: Accelerator) -> Self:
        """Fit one table to the rows of each label."""
        points: dict[str, list[FloatArray]] = {}
        values: dict[str, list[FloatArray]] = {}
        floors: dict[str, float] = {}
        seconds = rows.seconds.to_numpy(float)
        for op, index in operators_of(cls.kind.family, rows):
            label = cls.labels(op)[0]
            points.setdefault(label, []).append(cls.coordinates(op))
            values.setdefault(label, []).append(np.log(_bound_s(op, accelerator) / seconds[index]))
            floors[label] = min(floors.get(label, np.inf), float(seconds[index].min()))
        tables = {k: ScatteredValues.of(np.concatenate(points[k]), np.concatenate(values[k])) for k in points}
        return cls(tables, floors)


def _bound_s(op: Any, accelerator: Accelerator) -> FloatArray:
    """Return the roofline of an operator, or the time of one byte where it moves none. Shape as its fields."""
    return np.maximum(roofline_s(op, accelerator), 1.0 / accelerator.memory_bandwidth_bytes_per_s)


def _first_match(starts: Iterable[str], names: Iterable[str]) -> list[str]:
    """Return the names with the first of several starts that any name has; every name has the empty start."""
    known = sorted(names)
    return next(found for start in (*starts, "") if (found := [n for n in known if n.startswith(start)]))


@dataclass(frozen=True, slots=True)
class MatmulModel(NetworkKernelModel):
    """Matrix products of networks; a shared second factor makes one product of all rows of the batch."""

    kind: ClassVar[type[Operator]] = Matmul

    @classmethod
    def labels(cls, op: Matmul) -> tuple[str, ...]:
        """Return the table by dtype and by whether the second factor is shared."""
        return f"{op.dtype}/{'shared' if op.shared else 'own'}", f"{op.dtype}/"

    @classmethod
    def coordinates(cls, op: Matmul) -> FloatArray:
        """Return rows, columns, depth and number of products in doublings, Shape (..., 4)."""
        if op.shared:
            return _log(np.asarray(op.m) * np.asarray(op.batch), op.n, op.k, 1.0)
        return _log(op.m, op.n, op.k, op.batch)


@dataclass(frozen=True, slots=True)
class ConvolutionModel(NetworkKernelModel):
    """Convolutions, by dtype and by how groups divide the channels."""

    kind: ClassVar[type[Operator]] = Convolution

    @classmethod
    def labels(cls, op: Convolution) -> tuple[str, ...]:
        """Return the table by dtype, number of dimensions, direction, and division of the channels."""
        each = op.out_channels // op.groups
        groups = "all" if op.groups == 1 else "each" if each <= 2 else "groups"
        start = f"{op.dtype}/{len(numbers(op.window))}d{'_transposed' if op.transposed else ''}/"
        return f"{start}{groups}", start, f"{op.dtype}/"

    @classmethod
    def coordinates(cls, op: Convolution) -> FloatArray:
        """Return the extents of the implicit product, window, stride and groups in doublings, Shape (..., 7)."""
        taps, stride = prod(numbers(op.window)), prod(numbers(op.stride))
        places = prod(numbers(op.input if op.transposed else op.output))
        channels = _log(op.batch, places, op.in_channels / op.groups, op.out_channels / op.groups, op.groups)
        fixed = OTHER_KERNEL * _log(np.broadcast_to(taps, np.shape(op.batch)), stride)
        return np.concatenate([channels, fixed], axis=-1)


@dataclass(frozen=True, slots=True)
class StreamingModel(NetworkKernelModel):
    """Memory-bound kernels by torch's name and dtype; another kernel of the same kind stands in for an unknown one."""

    kind: ClassVar[type[Operator]] = Streaming

    @classmethod
    def labels(cls, op: Streaming) -> tuple[str, ...]:
        """Return the table by kind, dtype and name."""
        return f"{op.kind}/{op.dtype}/{op.operator}", f"{op.kind}/{op.dtype}/", f"{op.kind}/"

    @classmethod
    def coordinates(cls, op: Streaming) -> FloatArray:
        """Return bytes moved, bytes read over bytes written, and elements of a mean in doublings, Shape (..., 3)."""
        read, written = broadcast(op.read_bytes, op.written_bytes)
        ratio = np.clip((read + 1.0) / (written + 1.0), 1.0 / 64, 64.0)
        return np.concatenate([_log(read + written, ratio), 0.25 * _log(np.asarray(op.width) + 0 * read + 1.0)], -1)


@dataclass(frozen=True, slots=True)
class HostLaunchModel:
    """Seconds of the host for one kernel, launched from modules or by calls of the functions.

    A decode step of `generate` takes `seconds` for each layer, and `fixed_s` in addition.
    """

    seconds: dict[str, float]
    fixed_s: dict[str, float] = field(default_factory=dict)
    family: str = field(default="host_launch", init=False)

    def cost(self, op: Any, accelerator: Accelerator) -> tuple[FloatArray, FloatArray]:  # noqa: ARG002 - of any
        """Return (seconds, origin) in the shape of `kernels`.

        A kind that was not measured takes the most seconds that a kernel of a measured kind without `fixed_s` takes.
        """
        (kernels,) = broadcast(op.kernels)
        known = self.seconds.get(op.kind)
        others = (seconds for kind, seconds in self.seconds.items() if kind not in self.fixed_s)
        each = max(others, default=0.0) if known is None else known
        fixed = self.fixed_s.get(op.kind, 0.0)
        return np.maximum(fixed + kernels * each, 1e-12), np.full(kernels.shape, ROOFLINE if known is None else 0.0)

    def beyond_calls_s(self, on_host: bool) -> float:
        """Return the host's seconds for one kernel of a module.

        Args:
            on_host: Whether the kernels run on the host, so that their measured times include the call.
        """
        modules = self.seconds.get("modules", 0.0)
        return max(modules - self.seconds.get("calls", 0.0), 0.0) if on_host else modules

    def generate_step_s(self, architecture: str, layers: int) -> float | None:
        """Return the seconds that the host takes for a decode step of `generate`; None where that was not measured."""
        kind = f"generate {architecture}"
        if kind not in self.seconds:
            return None
        return self.fixed_s.get(kind, 0.0) + layers * self.seconds[kind]

    def to_parts(self) -> Parts:
        """Return readable facts; there are no arrays."""
        return {"seconds": self.seconds, "fixed_s": self.fixed_s}, {}

    @classmethod
    def from_parts(cls, facts: Mapping[str, Any], arrays: Mapping[str, npt.NDArray[Any]]) -> Self:  # noqa: ARG003
        """Return the model in facts."""
        seconds, fixed_s = (
            {str(k): float(v) for k, v in facts.get(name, {}).items()} for name in ("seconds", "fixed_s")
        )
        return cls(seconds, fixed_s)

    @classmethod
    def fit(cls, rows: pd.DataFrame, accelerator: Accelerator) -> Self:  # noqa: ARG003 - the contract of families
        """Fit the seconds of one kernel of each kind; a kind with several numbers of kernels has a fixed part too."""
        seconds, fixed_s = {}, {}
        for kind, table in rows.groupby("kind"):
            median = table.groupby("kernels").seconds.median()
            counts, found = median.index.to_numpy(float), median.to_numpy(float)
            if len(counts) > 1:
                each, fixed_s[str(kind)] = nonnegative(np.stack([counts, np.ones_like(counts)], axis=1), found)
                seconds[str(kind)] = float(each)
            else:
                seconds[str(kind)] = float(found[0] / counts[0])
        return cls(seconds, fixed_s)
