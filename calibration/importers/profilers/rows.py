"""Operator rows of a profiler's trace: every operator with its sizes, and the rows that a calibration can be fitted to.

The time of a call is that of the kernels that it and the calls inside it started. On a host without an accelerator it
is the time between its start and its end. A row is the median over the calls of one operator with the same sizes.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from calibration.importers.profilers.trace import KERNEL, ProfiledCall, ProfilerTrace, dtype_in, parents
from calibration.operators.operators import extents

if TYPE_CHECKING:
    import pandas as pd

#: The family of a row with its columns.
Row = tuple[str, dict[str, Any]]

#: Most names of kernels in a row.
_NAMED: Final = 4


class NoRow(Exception):
    """A call that gives no row, with the reason."""


def operator_table(trace: ProfilerTrace) -> pd.DataFrame:
    """Return one row per operator, sizes and number formats, the longest in total first.

    The columns are operator, sizes, dtypes, calls, seconds (median of a call, with the calls inside it), own_seconds
    (total without the calls inside it), kernels (their names) and kernels_per_call. Kernels without a call are rows
    with the operator "".
    """
    import pandas as pd

    times = CallTimes(trace)
    groups: dict[tuple[str, str, str], list[int]] = defaultdict(list)
    for i, call in enumerate(trace.calls):
        groups[call.name, _text(call.sizes), _text(call.dtypes)].append(i)
    rows = [
        {
            "operator": name,
            "sizes": sizes,
            "dtypes": dtypes,
            "calls": len(members),
            "seconds": float(np.median([times.whole_s[i] for i in members])),
            "own_seconds": float(sum(times.own_s[i] for i in members)),
            "kernels": times.kernel_names(members),
            "kernels_per_call": sum(len(times.kernels[i]) for i in members) / len(members),
        }
        for (name, sizes, dtypes), members in groups.items()
    ]
    loose: dict[str, list[float]] = defaultdict(list)
    for each in trace.work:
        if each.call is None and each.kind == KERNEL:
            loose[each.name].append(each.duration_s)
    rows += [
        {
            "operator": "",
            "sizes": "",
            "dtypes": dtype_in(name),
            "calls": len(durations),
            "seconds": float(np.median(durations)),
            "own_seconds": float(sum(durations)),
            "kernels": name,
            "kernels_per_call": 1.0,
        }
        for name, durations in loose.items()
    ]
    columns = ["operator", "sizes", "dtypes", "calls", "seconds", "own_seconds", "kernels", "kernels_per_call"]
    table = pd.DataFrame(rows, columns=columns)
    return table.sort_values("own_seconds", ascending=False, kind="stable").reset_index(drop=True)


def family_rows(trace: ProfilerTrace) -> tuple[dict[str, pd.DataFrame], dict[str, int]]:
    """Return the rows by family in the columns of a calibration, and the number of calls left out by reason.

    A call inside another one that gives a row is part of that one.
    """
    import pandas as pd

    times, enclosing = CallTimes(trace), parents(trace.calls)
    found: dict[tuple[str, tuple[tuple[str, Any], ...]], list[float]] = defaultdict(list)
    kernels: dict[tuple[str, tuple[tuple[str, Any], ...]], str] = {}
    left_out: Counter[str] = Counter()
    is_row = [call.name in CONVERTERS for call in trace.calls]
    for i, call in enumerate(trace.calls):
        if not is_row[i] or _inside_row(i, enclosing, is_row):
            continue
        names = times.kernel_names([i])
        try:
            family, columns = CONVERTERS[call.name](_typed(call, names), trace.on_device)
            if not times.whole_s[i] > 0:
                raise NoRow("no kernel belongs to the call")
        except NoRow as reason:
            left_out[str(reason)] += 1
            continue
        key = family, tuple(columns.items())
        found[key].append(times.whole_s[i])
        kernels.setdefault(key, names or call.name)
    tables: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for key, seconds in found.items():
        values = {"seconds": float(np.median(seconds)), "source": f"{trace.profiler} {trace.source}"}
        tables[key[0]].append({"kernel": kernels[key], **dict(key[1]), **values})
    return {family: pd.DataFrame(rows) for family, rows in sorted(tables.items())}, dict(left_out)


def _inside_row(i: int, enclosing: list[int | None], is_row: list[bool]) -> bool:
    parent = enclosing[i]
    while parent is not None:
        if is_row[parent]:
            return True
        parent = enclosing[parent]
    return False


class CallTimes:
    """The times of the calls of a trace.

    Attributes:
        whole_s: Seconds of each call with those inside it.
        own_s: Seconds of each call without those inside it.
        kernels: Names of the kernels that each call and the calls inside it started.
    """

    def __init__(self, trace: ProfilerTrace) -> None:
        n, enclosing = len(trace.calls), parents(trace.calls)
        self.kernels: list[list[str]] = [[] for _ in range(n)]
        if trace.on_device:
            self.own_s = [0.0] * n
            self.whole_s = [0.0] * n
            for each in trace.work:
                call = each.call
                if call is not None:
                    self.own_s[call] += each.duration_s
                while call is not None:
                    self.whole_s[call] += each.duration_s
                    self.kernels[call].append(each.name)
                    call = enclosing[call]
            return
        self.whole_s = [call.duration_s for call in trace.calls]
        self.own_s = list(self.whole_s)
        for i, parent in enumerate(enclosing):
            if parent is not None:
                self.own_s[parent] -= self.whole_s[i]

    def kernel_names(self, members: list[int]) -> str:
        """Return the names of the kernels of some calls, the most frequent first."""
        counts = Counter(name for i in members for name in self.kernels[i])
        return ", ".join(name for name, _ in counts.most_common(_NAMED))


def _text(values: tuple[Any, ...]) -> str:
    return ";".join(extents(v) if isinstance(v, tuple) else str(v) for v in values)


def _typed(call: ProfiledCall, kernels: str) -> ProfiledCall:
    """Return a call whose trace states no number formats (an NVTX range) with that in the names of its kernels."""
    if any(call.dtypes):
        return call
    found = dtype_in(kernels)
    return ProfiledCall(
        call.name, call.thread, call.start_s, call.end_s, call.sizes, tuple(found if s else "" for s in call.sizes)
    )


def _tensors(call: ProfiledCall, ranks: Mapping[int, int]) -> list[tuple[int, ...]]:
    """Return the sizes of the arguments at positions with their expected number of dimensions.

    Raises:
        NoRow: The trace does not state them.
    """
    if not call.sizes:
        raise NoRow("the trace states no sizes")
    found = [call.sizes[i] if i < len(call.sizes) else () for i in ranks]
    if any(len(sizes) != rank or 0 in sizes for sizes, rank in zip(found, ranks.values(), strict=True)):
        raise NoRow("the sizes are not those of this operator")
    return found


def _dtype(call: ProfiledCall, position: int) -> str:
    dtype = call.dtypes[position] if position < len(call.dtypes) else ""
    if not dtype:
        raise NoRow("the number format is not known")
    return dtype


def _value(call: ProfiledCall, position: int) -> str:
    return call.values[position] if position < len(call.values) else ""


def _product(first: int) -> Callable[[ProfiledCall, bool], Row]:
    """Return the converter of a product of two matrices whose first factor is the argument `first`."""

    def convert(call: ProfiledCall, on_device: bool) -> Row:
        (m, k), (k2, n) = _tensors(call, {first: 2, first + 1: 2})
        if k != k2:
            raise NoRow("the sizes are not those of this operator")
        sizes: dict[str, Any] = {"m": float(m), "n": float(n), "k": float(k)}
        dtype = _dtype(call, first)
        # an engine on an accelerator and plain torch on a host are families of their own
        return ("gemm", {**sizes, "dtype": dtype}) if on_device else ("matmul", _matmul(sizes, 1.0, 1, dtype))

    return convert


def _matmul(sizes: dict[str, Any], batch: float, shared: int, dtype: str) -> dict[str, Any]:
    return {**sizes, "batch": batch, "shared": shared, "dtype": dtype}


def _batched(first: int) -> Callable[[ProfiledCall, bool], Row]:
    def convert(call: ProfiledCall, _: bool) -> Row:
        (batch, m, k), (b2, k2, n) = _tensors(call, {first: 3, first + 1: 3})
        if (batch, k) != (b2, k2):
            raise NoRow("the sizes are not those of this operator")
        sizes = {"m": float(m), "n": float(n), "k": float(k)}
        return "matmul", _matmul(sizes, float(batch), 0, _dtype(call, first))

    return convert


def _attention(causal: int, mask: int | None, kernel: str) -> Callable[[ProfiledCall, bool], Row]:
    """Return the converter of scaled_dot_product_attention with `is_causal` and a mask at these positions."""

    def convert(call: ProfiledCall, _: bool) -> Row:
        query, key, _value_sizes = _tensors(call, {0: 4, 1: 4, 2: 4})
        sequences, n_heads, queries, head_dim = query
        n_kv_heads, keys = key[1], key[2]
        dtype, masked = _dtype(call, 0), mask is not None and len(call.sizes) > mask and bool(call.sizes[mask])
        heads = {"n_heads": n_heads, "n_kv_heads": n_kv_heads, "head_dim": head_dim}
        if queries == 1 and not masked:
            contexts = {"sequences": float(sequences), "context_tokens": float(sequences * keys)}
            lengths = {**contexts, "max_context_tokens": float(keys)}
            return "decode_attention", {**lengths, **heads, "kv_dtype": dtype, "window_tokens": 0}
        is_causal = _value(call, causal)
        if is_causal not in ("True", "False"):
            raise NoRow("the trace does not state whether attention is causal")
        if is_causal == "True":
            if queries != keys:
                raise NoRow("causal attention after a context is not known to torch")
            pairs = sequences * queries**2 / 2.0
            counts = {"chunks": float(sequences), "tokens": float(sequences * queries), "pairs": pairs}
            return "prefill_attention", {**counts, **heads, "kv_dtype": dtype, "window_tokens": 0}
        if n_kv_heads != n_heads:
            raise NoRow("attention without a causal mask has as many heads of keys as of queries")
        lengths = {"sequences": float(sequences), "query_tokens": float(queries), "key_tokens": float(keys)}
        name = f"{kernel}_masked" if masked else kernel
        sizes = {"n_heads": n_heads, "head_dim": head_dim, "kernel": name, "dtype": dtype}
        return "noncausal_attention", {**lengths, **sizes}

    return convert


def _convolution(call: ProfiledCall, _: bool) -> Row:
    """Convert aten::convolution(input, weight, bias, stride, padding, dilation, transposed, output_padding, groups)."""
    rank = len(call.sizes[0]) if call.sizes else 0
    if not 3 <= rank <= 5:
        raise NoRow("the sizes are not those of this operator")
    image, weight = _tensors(call, {0: rank, 1: rank})
    stride, padding, dilation, extra = (_listed(_value(call, i), rank - 2) for i in (3, 4, 5, 7))
    transposed, groups = _value(call, 6) == "True", _value(call, 8)
    if not groups.isdigit():
        raise NoRow("the trace does not state the strides of a convolution")
    window = weight[2:]
    spans = [d * (w - 1) + 1 for d, w in zip(dilation, window, strict=True)]
    if transposed:
        sides = zip(image[2:], stride, padding, spans, extra, strict=True)
        output = tuple((size - 1) * s - 2 * p + span + e for size, s, p, span, e in sides)
    else:
        output = tuple(
            (size + 2 * p - span) // s + 1 for size, s, p, span in zip(image[2:], stride, padding, spans, strict=True)
        )
    return "convolution", {
        "batch": float(image[0]),
        "in_channels": image[1],
        "out_channels": weight[1] * int(groups) if transposed else weight[0],
        "groups": int(groups),
        "window": extents(window),
        "input": extents(image[2:]),
        "output": extents(output),
        "stride": extents(stride),
        "dilation": extents(dilation),
        "transposed": int(transposed),
        "dtype": _dtype(call, 0),
    }


def _listed(text: str, n: int) -> tuple[int, ...]:
    """Return a list such as "[1, 1]", or one number for all of the `n` dimensions.

    Raises:
        NoRow: The text is neither.
    """
    words = text.strip("[]").replace(" ", "").split(",")
    if not all(word.lstrip("-").isdigit() for word in words) or len(words) not in (1, n):
        raise NoRow("the trace does not state the strides of a convolution")
    return tuple(int(word) for word in words) * (n if len(words) == 1 else 1)


#: The converter of each torch operator that gives rows: it gets the call and whether it ran on an accelerator.
CONVERTERS: Final[Mapping[str, Callable[[ProfiledCall, bool], Row]]] = {
    "aten::mm": _product(0),
    "aten::addmm": _product(1),
    "aten::_scaled_mm": _product(0),
    "aten::bmm": _batched(0),
    "aten::baddbmm": _batched(1),
    "aten::_scaled_dot_product_flash_attention": _attention(4, None, "fa2"),
    "aten::_scaled_dot_product_efficient_attention": _attention(6, 3, "sdpa"),
    "aten::_scaled_dot_product_cudnn_attention": _attention(6, 3, "sdpa"),
    "aten::_scaled_dot_product_flash_attention_for_cpu": _attention(4, 5, "sdpa"),
    "aten::convolution": _convolution,
}
