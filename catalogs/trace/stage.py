"""A stage from recordings of its module: runs at a few sizes, exact polynomials, verification at others, folding."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from fractions import Fraction
from functools import cache
from itertools import product
from math import prod
from typing import Final

import numpy as np

from catalogs.arrays import FloatArray, IntArray
from catalogs.errors import InputError
from catalogs.networks.network import ITEMSIZE, DerivedSize, JobSize, Operator, Repeat
from catalogs.networks.polynomials import Polynomial
from catalogs.networks.shapes import shape_class
from catalogs.trace.fit import Axis, DegreeTooHigh, Fit, Index, points_needed
from catalogs.trace.fold import Fold, fold
from catalogs.trace.record import Amount, RecordedOperator, Recording

#: The bytes of an element for which the largest sets of live tensors are chosen.
CHOICE_ITEMSIZE: Final = 2

#: Steps of a size up to which the peak memory of a size without a maximum is looked at.
MOST_STEPS: Final = 4096

#: Runs a module at sizes and returns what it did.
Runner = Callable[[Mapping[str, int]], Recording]

#: What identifies an operator apart from its sizes.
Key = tuple[str, str, str, str | None, tuple[tuple[str, int], ...]]


@dataclass(frozen=True, slots=True)
class TracedStage:
    """The operators of a stage as polynomials, what may be its peak memory, and sizes that its formulas introduce."""

    items: tuple[Operator | Repeat, ...]
    peak: tuple[Polynomial, ...]
    derived: tuple[DerivedSize, ...] = ()
    unknown: tuple[str, ...] = ()


def trace_operators(run: Runner, sizes: Sequence[JobSize], whole: Runner | None = None) -> TracedStage:
    """Return the operators that a module launches as a function of the sizes.

    A size that may be 1, such as the batch, is treated apart at 1: tensors with an extent of 1 need fewer copies.

    Args:
        run: Runs the module; of equal modules it may run one and repeat what that did.
        sizes: The sizes of the job.
        whole: Runs every module; the formulas are verified by it. Without it `run` does so.

    Raises:
        InputError: The operators depend on the sizes in a way that polynomials do not describe.
    """
    base = {size.name: _axis(size).base for size in sizes}
    run(base)
    settled = _keys(run(base))
    steady = _steady(run, settled)
    flat = _fit(steady, [_axis(size) for size in sizes], {}, _corners(sizes, {}))
    several: tuple[DerivedSize, ...] = ()
    for size in sizes:
        least = {s.name: _axis(s).base for s in sizes} | {size.name: size.minimum}
        if _keys(steady(least)) == flat.keys:
            continue
        if size.minimum != 1 or several:
            raise _changes(size, flat.keys, _keys(steady(least)))
        rest = [_axis(s) for s in sizes if s.name != size.name]
        alone = _fit(steady, rest, {size.name: 1}, _corners(sizes, {size.name: 1}))
        name = f"several_{size.name}"
        several = (DerivedSize(name, "min", Polynomial.name(size.name) - 1, Polynomial.of(1)),)
        flat = _merged(flat, alone, size.name, Polynomial.name(name))
    _verify(_steady(whole or run, settled), flat, sizes, several)
    names = sorted({op.operator for op, _ in flat.operators if op.kind == "other"})
    return TracedStage(_folded(flat.operators), flat.peak, several, tuple(names))


def _axis(size: JobSize) -> Axis:
    """Return where a size is sampled: off 1, where broadcasting hides copies."""
    return Axis(size.name, size.minimum + size.multiple_of * (1 if size.minimum > 1 else 2), size.multiple_of)


def _steady(run: Runner, settled: Sequence[Key]) -> Runner:
    """Return `run` with its results kept, in the steady state: some modules fill caches in the first run of a size."""
    known: dict[tuple[tuple[str, int], ...], Recording] = {}

    def steady(sizes: Mapping[str, int]) -> Recording:
        key = tuple(sorted(sizes.items()))
        if key not in known:
            known[key] = run(sizes)
            if _keys(known[key]) != settled:
                known[key] = run(sizes)
        return known[key]

    return steady


@dataclass(frozen=True)
class _Flat:
    """Operators in order, each with how often it runs there (1, or an indicator), and candidates of the peak."""

    keys: tuple[Key, ...]
    operators: tuple[tuple[Operator, Polynomial], ...]
    peak: tuple[Polynomial, ...]


def _keys(recording: Recording) -> tuple[Key, ...]:
    return tuple(map(_key, recording.operators))


def _key(op: RecordedOperator) -> Key:
    return (op.module, op.kind, op.operator, op.dtype, op.widths)


def _values(recording: Recording) -> IntArray:
    """Return every number of a recording in one order, shape (n_values,)."""
    found: list[int] = []
    for op in recording.operators:
        for dim in op.dims.values():
            found.extend(dim if isinstance(dim, tuple) else (dim,))
        found += [op.reads.elements, op.reads.fixed_bytes, op.reads.weights]
        found += [op.writes.elements, op.writes.fixed_bytes, op.live.elements, op.live.fixed_bytes]
    return np.array(found, dtype=np.int64)


def _fit(run: Runner, axes: Sequence[Axis], fixed: Mapping[str, int], corners: Sequence[Mapping[str, int]]) -> _Flat:
    """Return the operators as polynomials in the sizes of the axes, where they are the same at all points."""

    def at(index: Index) -> Recording:
        return run({axis.name: axis.base + i * axis.step for axis, i in zip(axes, index, strict=True)} | dict(fixed))

    base = at((0,) * len(axes))
    keys = _keys(base)

    @cache
    def sample(index: Index) -> IntArray:
        recording = at(index)
        if (found := _keys(recording)) != keys:
            moved = next(axis for axis, i in zip(axes, index, strict=True) if i)
            raise _changes(JobSize(moved.name, moved.base), keys, found)
        return _values(recording)

    try:
        points = points_needed(axes, sample) if axes else [()]
    except DegreeTooHigh as error:
        op = _operator_of(base, error.position)
        raise InputError(
            f"an extent of {op.operator} in {op.module or 'the module'} is no polynomial in {error.axis.name}",
            f"{error.axis.name} in steps of {error.axis.step}",
            hint="give the size the multiple of which the network divides it, such as patch x window",
        ) from None
    fit = Fit(axes, points)
    samples = np.stack([sample(point) for point in fit.points])
    unique, place = np.unique(samples, axis=1, return_inverse=True)
    columns = place.reshape(-1).tolist()

    @cache
    def of_column(column: int) -> Polynomial:
        return fit.polynomial([int(v) for v in unique[:, column]])

    @cache
    def of_columns(elements: int, fixed: int) -> Polynomial:
        return of_column(elements) * Polynomial.name(ITEMSIZE) + of_column(fixed)

    def polynomial(position: int) -> Polynomial:
        return of_column(columns[position])

    def in_bytes(position: int) -> Polynomial:
        return of_columns(columns[position], columns[position + 1])

    operators, live, position = [], [], 0
    for op in base.operators:
        operator, position = _operator(op, polynomial, in_bytes, position)
        live.append(in_bytes(position - 2))
        operators.append((operator, Polynomial.of(1)))
    peak = _largest(live, corners)
    return _Flat(keys, tuple(operators), peak)


def _operator(
    op: RecordedOperator, polynomial: Callable[[int], Polynomial], in_bytes: Callable[[int], Polynomial], position: int
) -> tuple[Operator, int]:
    """Return an operator whose numbers begin at a position, and the position after it."""
    dims: dict[str, Polynomial | tuple[Polynomial, ...]] = {}
    for name, dim in op.dims.items():
        width = len(dim) if isinstance(dim, tuple) else 1
        found = tuple(polynomial(position + i) for i in range(width))
        dims[name] = found if isinstance(dim, tuple) else found[0]
        position += width
    ordered = {name: dims[name] for name in shape_class(op.kind).__dataclass_fields__ if name in dims}
    read, weights, written = in_bytes(position), polynomial(position + 2), in_bytes(position + 3)
    constant = weights.constant
    if constant is None:  # a part of a table that depends on the sizes
        read += weights * Polynomial.name(ITEMSIZE)
    return (
        Operator(op.module, op.kind, op.operator, ordered, read, written, int(constant or 0), op.dtype),  # type: ignore[arg-type]
        position + 7,
    )


def _largest(live: Sequence[Polynomial], corners: Sequence[Mapping[str, int]]) -> tuple[Polynomial, ...]:
    """Return the live bytes that may be the most: those that no others reach at every corner."""
    distinct = list(dict.fromkeys({id(p): p for p in live}.values()))
    totals = _approximate(distinct, [{**corner, ITEMSIZE: CHOICE_ITEMSIZE} for corner in corners])
    chosen: list[int] = []
    for row in sorted(range(len(distinct)), key=lambda r: -float(totals[r].sum())):
        if not any((totals[other] >= totals[row]).all() for other in chosen):
            chosen.append(row)
    return tuple(distinct[row] for row in chosen)


def _approximate(polynomials: Sequence[Polynomial], jobs: Sequence[Mapping[str, int]]) -> FloatArray:
    """Return the values of polynomials at several jobs, shape (n_polynomials, n_jobs)."""
    monomials = {m: i for i, m in enumerate(dict.fromkeys(m for p in polynomials for m, _ in p.terms))}
    powers = np.array([[float(prod(job[name] ** e for name, e in m)) for job in jobs] for m in monomials])
    coefficients = np.zeros((len(polynomials), len(monomials)))
    for row, polynomial in enumerate(polynomials):
        for monomial, coefficient in polynomial.terms:
            coefficients[row, monomials[monomial]] = float(coefficient)
    values: FloatArray = coefficients @ powers.reshape(len(monomials), len(jobs))
    return values


def _corners(sizes: Sequence[JobSize], fixed: Mapping[str, int]) -> list[dict[str, int]]:
    """Return jobs with every size at its smallest, its default, four times that, and a very large value."""

    def values(size: JobSize) -> list[int]:
        if size.name in fixed:
            return [fixed[size.name]]
        most = size.maximum or size.minimum + MOST_STEPS * size.multiple_of
        return sorted({size.minimum, size.default, min(most, 4 * size.default), most})

    return [dict(zip((s.name for s in sizes), job, strict=True)) for job in product(*map(values, sizes))]


def _operator_of(recording: Recording, position: int) -> RecordedOperator:
    for op in recording.operators:
        position -= sum(len(d) if isinstance(d, tuple) else 1 for d in op.dims.values()) + 7
        if position < 0:
            return op
    return recording.operators[-1]


def _changes(size: JobSize, expected: Sequence[Key], found: Sequence[Key]) -> InputError:
    """Return the error of a network whose sequence of operators depends on a size."""
    pairs = zip(expected, found, strict=False)
    i = next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(expected), len(found)) - 1)
    module, _, operator = (found[i] if i < len(found) else expected[i])[:3]
    return InputError(
        f"the sequence of operators depends on {size.name}, first at {operator} in {module or 'the module'}",
        f"{len(expected)} and {len(found)} operators",
        hint=f"fix {size.name}, or raise its minimum or its multiple",
    )


def _merged(many: _Flat, one: _Flat, name: str, indicator: Polynomial) -> _Flat:
    """Return the operators for any value of a size from those above 1 and those at 1.

    `indicator` is 1 above 1, else 0. What both have is kept once; the rest runs in one of the cases only.
    """
    otherwise = Polynomial.of(1) - indicator
    merged: list[tuple[Operator, Polynomial]] = []
    first = [op for op, _ in many.operators]
    second = [op for op, _ in one.operators]
    matcher = SequenceMatcher(None, many.keys, one.keys, autojunk=False)
    for tag, a0, a1, b0, b1 in matcher.get_opcodes():
        if tag == "equal":
            for a, b in zip(first[a0:a1], second[b0:b1], strict=True):
                if _at_one(a, name) == b:
                    merged.append((a, Polynomial.of(1)))
                else:
                    merged += [(a, indicator), (b, otherwise)]
        else:
            merged += [(op, indicator) for op in first[a0:a1]] + [(op, otherwise) for op in second[b0:b1]]
    peak = [p * indicator for p in many.peak] + [p * otherwise for p in one.peak]
    return _Flat(many.keys, tuple(merged), tuple(peak))


def _at_one(op: Operator, name: str) -> Operator:
    """Return an operator with one size set to 1."""

    def plain(p: Polynomial) -> Polynomial:
        return Polynomial.from_terms((tuple(f for f in monomial if f[0] != name), c) for monomial, c in p.terms)

    dims = {key: tuple(map(plain, d)) if isinstance(d, tuple) else plain(d) for key, d in op.dims.items()}
    return replace(op, dims=dims, reads=plain(op.reads), writes=plain(op.writes))


def _verify(run: Runner, flat: _Flat, sizes: Sequence[JobSize], derived: Sequence[DerivedSize]) -> None:
    """Check the polynomials at sizes that were not used to find them: the default job, the smallest, and larger ones.

    Raises:
        InputError: A formula differs from the recorded value.
    """
    jobs = [
        {size.name: size.default for size in sizes},
        {size.name: size.minimum for size in sizes},
        {size.name: _axis(size).base + (3 + i) * size.multiple_of for i, size in enumerate(sizes)},
        {size.name: _axis(size).base + (9 - i) * size.multiple_of for i, size in enumerate(sizes)},
    ]
    for job in jobs:
        if any(size.maximum is not None and job[size.name] > size.maximum for size in sizes):
            continue
        complete = job | {d.name: d.value(job) for d in derived}
        expected = [op for op, times in flat.operators if times.count(complete)]
        recording = run(job)
        where = ", ".join(f"{k}={v}" for k, v in job.items())
        found = recording.operators
        if len(found) != len(expected):
            rule = f"the sequence of operators at {where} differs from that at other sizes"
            raise InputError(rule, len(found), hint="raise the minimum of a size, or fix the size")
        value = _values_at(complete | {ITEMSIZE: CHOICE_ITEMSIZE})
        for a, b in zip(expected, found, strict=True):
            _verify_operator(a, b, value, where)
        peak = max(_bytes(op.live) for op in found)
        formula = max(p.count(complete | {ITEMSIZE: CHOICE_ITEMSIZE}) for p in flat.peak)
        if formula != peak:
            raise InputError(f"the formula of peak memory differs from the recorded {peak} bytes at {where}", formula)


def _values_at(sizes: Mapping[str, int]) -> Callable[[Polynomial], Fraction]:
    """Return a function that evaluates polynomials at sizes, each object once: operators share them."""
    known: dict[int, tuple[Polynomial, Fraction]] = {}  # with the polynomials, so that no other takes their addresses

    def value(polynomial: Polynomial) -> Fraction:
        if id(polynomial) not in known:
            known[id(polynomial)] = polynomial, polynomial.value(sizes)
        return known[id(polynomial)][1]

    return value


def _verify_operator(
    op: Operator, recorded: RecordedOperator, value: Callable[[Polynomial], Fraction], where: str
) -> None:
    dims = {k: tuple(map(value, d)) if isinstance(d, tuple) else value(d) for k, d in op.dims.items()}
    read = _bytes(recorded.reads) + recorded.reads.weights * CHOICE_ITEMSIZE
    known_read = value(op.reads) + op.weights * CHOICE_ITEMSIZE
    same = dims == recorded.dims and known_read == read and value(op.writes) == _bytes(recorded.writes)
    if not same or (op.name, op.operator) != (recorded.module, recorded.operator):
        raise InputError(
            f"the formulas of {op.operator} in {op.name or 'the module'} do not hold at {where}",
            hint="give each size the multiple of which the network divides it",
        )


def _bytes(amount: Amount) -> int:
    return amount.elements * CHOICE_ITEMSIZE + amount.fixed_bytes


def _folded(operators: Sequence[tuple[Operator, Polynomial]]) -> tuple[Operator | Repeat, ...]:
    """Return the operators with equal layers folded and with conditions around runs of operators that share one."""
    starred = [replace(op, name=_starred(op.name)) for op, _ in operators]
    numbers: dict[tuple[str, Polynomial], int] = {}
    symbols = []
    for op, (_, times) in zip(starred, operators, strict=True):
        symbols.append(numbers.setdefault((repr(op), times), len(numbers)))

    def build(items: Sequence[int | Fold], inside: bool) -> tuple[Operator | Repeat, ...]:
        built: list[Operator | Repeat] = []
        conditions: list[Polynomial | None] = []
        for item in items:
            if isinstance(item, Fold):
                built.append(Repeat(Polynomial.of(item.times), build(item.items, inside=True)))
                conditions.append(None)
                continue
            op, times = starred[item] if inside else operators[item][0], operators[item][1]
            if times == Polynomial.of(1):
                built.append(op)
                conditions.append(None)
            elif conditions and conditions[-1] == times and isinstance(last := built[-1], Repeat):
                built[-1] = Repeat(times, (*last.items, op))
            else:
                built.append(Repeat(times, (op,)))
                conditions.append(times)
        return tuple(built)

    return build(fold(symbols), inside=False)


def _starred(name: str) -> str:
    return ".".join("*" if part.isdigit() else part for part in name.split("."))
