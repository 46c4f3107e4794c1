"""A network as stages of operators, and the same at given sizes.

Every extent and every number of bytes is a polynomial in the network's sizes (batch, height, frames, ...). Bytes may
also contain `itemsize`, the bytes of one element of the dtype that the network computes in; what the model keeps in a
dtype of its own (indices, masks, sums in fp32) is a plain number of bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, reduce
from math import ceil, floor
from operator import mul
from typing import Final, Literal

from catalogs.errors import InputError, nearest_name
from catalogs.networks.polynomials import Polynomial
from catalogs.networks.shapes import LISTED, Kind, Shape, shape_class

#: The name that stands for the bytes of one element in polynomials of bytes.
ITEMSIZE: Final = "itemsize"


@dataclass(frozen=True, slots=True)
class JobSize:
    """One size that the user of a network chooses: its default, and the values it may take.

    Valid values are `minimum`, `minimum + multiple_of`, ... up to `maximum`.
    """

    name: str
    default: int
    minimum: int = 1
    maximum: int | None = None
    multiple_of: int = 1
    meaning: str = ""

    def check(self, value: int) -> int:
        """Return a valid value.

        Raises:
            InputError: The value is out of range or between two steps; the message names the nearest valid one.
        """
        steps = max(0, (2 * (value - self.minimum) + self.multiple_of) // (2 * self.multiple_of))
        if self.maximum is not None:
            steps = min(steps, (self.maximum - self.minimum) // self.multiple_of)
        nearest = self.minimum + steps * self.multiple_of
        if nearest != value:
            upper = "" if self.maximum is None else f" to {self.maximum}"
            step = f" in steps of {self.multiple_of}" if self.multiple_of > 1 else ""
            raise InputError(f"{self.name} is {self.minimum}{upper or ' or more'}{step}", value, str(nearest))
        return value


@dataclass(frozen=True, slots=True)
class DerivedSize:
    """A size that follows from others: a quotient rounded down or up, or the smaller or larger of two.

    `floor` and `ceil` divide `first` by the number `second`.
    """

    name: str
    function: Literal["floor", "ceil", "min", "max"]
    first: Polynomial
    second: Polynomial

    def value(self, sizes: Mapping[str, int]) -> int:
        """Return the value at the given sizes.

        Raises:
            InputError: A size is missing, or the divisor is zero.
        """
        first, second = self.first.value(sizes), self.second.value(sizes)
        if self.function in ("min", "max"):
            chosen = min(first, second) if self.function == "min" else max(first, second)
            return floor(chosen)
        if not second:
            raise InputError(f"size {self.name} divides by zero", str(self.second))
        return floor(first / second) if self.function == "floor" else ceil(first / second)


@dataclass(frozen=True, slots=True)
class Operator:
    """One kernel launch in eager mode, as a function of the sizes.

    `name` is the module where it runs, with `*` for the index of a repeated layer, and `operator` the name that the
    library gives it. `reads` and `writes` are the bytes of activations, `weights` the elements of parameters that it
    reads. `dtype` is stated where the operator computes in another one than the stage.
    """

    name: str
    kind: Kind
    operator: str
    dims: Mapping[str, Polynomial | tuple[Polynomial, ...]]
    reads: Polynomial
    writes: Polynomial
    weights: int = 0
    dtype: str | None = None

    def at(self, sizes: Mapping[str, int], times: int = 1) -> SizedOperator:
        """Return the operator at sizes that hold every name, `itemsize` included.

        Raises:
            InputError: A size is missing, or an extent is not a count.
        """
        values = {
            key: tuple(d.count(sizes) for d in dim) if isinstance(dim, tuple) else dim.count(sizes)
            for key, dim in self.dims.items()
        }
        shape = shape_class(self.kind)(**values)  # type: ignore[arg-type]  # the reader has checked the keys
        reads, writes = self.reads.count(sizes), self.writes.count(sizes)
        return SizedOperator(self.name, self.kind, self.operator, shape, reads, writes, self.weights, self.dtype, times)


@dataclass(frozen=True, slots=True)
class SizedOperator:
    """An operator at given sizes; `times` is how often it runs in one run of its stage."""

    name: str
    kind: Kind
    operator: str
    shape: Shape
    read_bytes: int
    written_bytes: int
    weights: int
    dtype: str | None
    times: int

    @property
    def flops(self) -> int:
        """The FLOPs of all its runs in one run of the stage, as torch counts them."""
        return self.times * self.shape.flops


@dataclass(frozen=True, slots=True)
class Repeat:
    """A sequence of operators and of inner repeats that runs `times` times, as equal layers do."""

    times: Polynomial
    items: tuple[Operator | Repeat, ...]


@dataclass(frozen=True)
class Stage:
    """A part of the network that runs as one: an encoder, one step of a denoiser, a decoder.

    Attributes:
        name: Its name in the network.
        runs: How often one job runs it.
        items: Its operators in the order of launch, equal layers folded.
        parameters: The number of parameters, each counted once.
        dtype: The dtype in which it was traced, and for which `itemsize` stands.
        peak: Bytes of activations that live at once, the largest of these; inputs included, parameters not.
        module: The class that was traced.
        notices: What a user of the numbers must know, such as operators of unknown kind.
    """

    name: str
    runs: Polynomial
    items: tuple[Operator | Repeat, ...]
    parameters: int
    dtype: str
    peak: tuple[Polynomial, ...]
    module: str = ""
    notices: tuple[str, ...] = ()

    @cached_property
    def operators(self) -> tuple[tuple[Operator, Polynomial], ...]:
        """Every distinct operator with how often it runs in one run of the stage."""
        return tuple(_unfolded(self.items, Polynomial.of(1)))

    def at(self, sizes: Mapping[str, int], itemsize: int = 2, kind: Kind | None = None) -> SizedStage:
        """Return the stage at complete sizes (those of `NeuralNetwork.sizes_of`), or its operators of one kind only.

        Raises:
            InputError: A size is missing, or an extent is not a count.
        """
        complete = {**sizes, ITEMSIZE: itemsize}
        chosen = (pair for pair in self.operators if kind in (None, pair[0].kind))
        counted = [(operator, times.count(complete)) for operator, times in chosen]
        return SizedStage(
            self.name,
            self.runs.count(complete),
            tuple(operator.at(complete, times) for operator, times in counted if times),
            self.parameters,
            max((p.count(complete) for p in self.peak), default=0),
        )


def _unfolded(items: tuple[Operator | Repeat, ...], times: Polynomial) -> Iterator[tuple[Operator, Polynomial]]:
    for item in items:
        if isinstance(item, Repeat):
            yield from _unfolded(item.items, times * item.times)
        else:
            yield item, times


@dataclass(frozen=True, slots=True)
class SizedStage:
    """A stage at given sizes: its operators with their repetitions, and how often one job runs it."""

    name: str
    runs: int
    operators: tuple[SizedOperator, ...]
    parameters: int
    peak_activation_bytes: int

    @property
    def flops(self) -> int:
        """The FLOPs of one run, as torch counts them."""
        return sum(operator.flops for operator in self.operators)


@dataclass(frozen=True)
class NeuralNetwork:
    """A network of any kind, traced from its module without weights.

    Attributes:
        name: Its name in the catalog.
        family: What it does, such as "image classification" or "text to video".
        sizes: The sizes that a job has, with their defaults: the default job.
        derived: Sizes that follow from those, in the order of computation.
        stages: Its stages in the order in which a job runs them.
        source: Where the configuration comes from.
        traced_with: The libraries with their versions.
    """

    name: str
    family: str
    sizes: tuple[JobSize, ...]
    stages: tuple[Stage, ...]
    derived: tuple[DerivedSize, ...] = ()
    source: str = ""
    traced_with: str = ""

    @property
    def parameters(self) -> int:
        """The parameters of all stages."""
        return sum(stage.parameters for stage in self.stages)

    @property
    def default_job_flops(self) -> int:
        """The floating-point operations of a job of default sizes, as torch counts them."""
        return sum(stage.runs * stage.flops for stage in self.at())

    def stage(self, name: str) -> Stage:
        """Return a stage by name.

        Raises:
            InputError: The network has no stage of this name.
        """
        found = {stage.name: stage for stage in self.stages}
        if name not in found:
            raise InputError(f"{self.name} has no such stage", name, nearest_name(name, found) or ", ".join(found))
        return found[name]

    def sizes_of(self, job: Mapping[str, int] | None = None) -> dict[str, int]:
        """Return every size of a job, derived ones included; sizes that the job leaves out have their defaults.

        Raises:
            InputError: A size is unknown or has an invalid value.
        """
        known = {size.name: size for size in self.sizes}
        for name in job or {}:
            if name not in known:
                raise InputError(f"{self.name} has no such size", name, nearest_name(name, known) or ", ".join(known))
        sizes = {name: size.check((job or {}).get(name, size.default)) for name, size in known.items()}
        for derived in self.derived:
            sizes[derived.name] = derived.value(sizes)
        return sizes

    def at(self, job: Mapping[str, int] | None = None, itemsize: int = 2) -> tuple[SizedStage, ...]:
        """Return every stage at the sizes of a job.

        Raises:
            InputError: A size is unknown or has an invalid value.
        """
        sizes = self.sizes_of(job)
        return tuple(stage.at(sizes, itemsize) for stage in self.stages)


def usual_traffic(
    kind: str, dims: Mapping[str, Polynomial | tuple[Polynomial, ...]], weights: int
) -> tuple[Polynomial, Polynomial]:
    """Return the bytes that an operator of these dims reads and writes where nothing else is stated.

    A product and a convolution read their factors once, of which parameters are counted apart, attention reads
    queries, keys and values, and all others read as much as they write.
    """

    def size(*keys: str) -> Polynomial:
        found = [dims.get(key, Polynomial.of(1)) for key in keys]
        flat = [d for dim in found for d in (dim if isinstance(dim, tuple) else (dim,))]
        return reduce(mul, flat, Polynomial.name(ITEMSIZE))

    if kind == "gemm":
        second = Polynomial() if weights else size("batch", "n", "k")
        return size("batch", "m", "k") + second, size("batch", "m", "n")
    if kind == "convolution":
        return size("batch", "in_channels", "input"), size("batch", "out_channels", "output")
    if kind == "attention":
        read = size("batch", "heads", "queries", "head_dim") + size("batch", "kv_heads", "keys", "head_dim")
        read += size("batch", "kv_heads", "keys", "value_dim")
        return read, size("batch", "heads", "queries", "value_dim")
    return size("elements"), size("elements")


def listed_dims(kind: str) -> frozenset[str]:
    """Return the dims of a kind that have one entry per dimension."""
    return LISTED & frozenset(shape_class(kind).__dataclass_fields__)
