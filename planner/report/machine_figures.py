"""Figures of the machine: memory, roofline, and time by operator and by layer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from catalogs.hardware.specs import Accelerator
from catalogs.ui import charts
from catalogs.ui.charts import COLOURS, number_text
from catalogs.ui.words import percent
from catalogs.units import TERA
from planner.answer.plan_schema import Memory
from planner.report.plots import MS, PlotlyFigure, Trace, bars, draw, line, names_axis, percent_axis
from simulator.analysis.operators import BOUND_WORDS, COMPUTE, FIXED, LINK, MEMORY, OperatorRow, together

#: Bytes of a gigabyte.
GB: Final = 1e9

CLASS_WORDS: Final = {
    "gemm": "matrix products",
    "attention_prefill": "attention, prompts",
    "attention_decode": "attention, generation",
    "moe": "experts",
    "collective": "communication",
    "elementwise": "norms, activation functions, sampling",
    "host": "host",
    "idle": "idle",
}

#: Names of the operators outside the layers, and of those in the feed-forward half of a layer; the others are in its
#: attention half.
OUTSIDE: Final = frozenset(
    {"embedding", "embedding_all_reduce", "final_norm", "stage_send", "lm_head", "logits_all_gather", "sampling"}
)

FEED_FORWARD: Final = frozenset(
    {"post_norm", "gate_up_proj", "up_proj", "activation", "down_proj", "ffn_all_reduce", "router", "routing"}
    | {"latent_in", "latent_out", "add_shared", "experts", "dispatch", "combine"}
    | {"ffn_stream_weights", "ffn_stream_update"}
)

#: Positions of the labels of marks, the preferred one first.
SIDES: Final = ("top center", "middle right", "middle left", "bottom center")

#: Marks that are nearer to each other have labels on different sides; factors of intensity and of rate.
NEAR: Final = (3.0, 1.6)

#: An operator with a larger share of the device time than this has a label.
LEAST_NAMED: Final = 0.03

#: Number of operators that each have a part of a stacked bar; the last part holds the other operators.
LARGEST: Final = 6

BOUND_COLOURS: Final = {COMPUTE: COLOURS[3], MEMORY: COLOURS[0], LINK: COLOURS[2], FIXED: COLOURS[6]}


def memory_bar(memory: Memory) -> PlotlyFigure:
    """Return one stacked bar of the memory of an accelerator in gigabytes."""
    rest = memory.device_bytes - memory.weights_bytes - memory.activation_bytes - memory.non_torch_bytes
    parts = (
        ("weights", memory.weights_bytes, charts.PALE[0]),
        ("activations", memory.activation_bytes, charts.PALE[1]),
        ("runtime", memory.non_torch_bytes, charts.PALE[2]),
        ("KV cache", memory.kv_bytes, charts.PALE[3]),
        ("free", max(rest - memory.kv_bytes, 0.0), "#eef0f3"),
    )
    traces = []
    for i, (name, size, colour) in enumerate(parts):
        text = f"{size / GB:.1f} GB" if size > 0.06 * memory.device_bytes else ""
        label = {"name": f"{name}: {size / GB:.2f} GB", "hoverinfo": "name"}
        traces.append(bars([("", size / GB, text)], i, colour, inside=True, **label))
    device, top = memory.device_bytes / GB, max(memory.device_bytes, sum(size for _, size, _ in parts)) / GB
    x_axis = charts.linear_axis("memory of one accelerator", "GB", range=[0, top * 1.005])
    figure = draw(traces, x_axis, {"showgrid": False}, -0.75, barmode="stack")
    if device < top:
        charts.vertical_line(figure, device, "total memory")
    return figure


def roofline(rows: Sequence[OperatorRow], unit: Accelerator) -> PlotlyFigure:
    """Return the roofline chart: achieved TFLOP/s over FLOP per byte of every operator that computes.

    The area of a mark is proportional to the time of the operator.

    Args:
        rows: The operators of one accelerator.
        unit: The accelerator, which sets the ceilings.
    """
    counted = [r for r in together(rows) if r.flops > 0]
    rates = [r.flops / r.seconds for r in counted] or [1.0]
    top = max(unit.peak_flops.values(), default=max(rates))
    ridge = top / unit.memory_bandwidth_bytes_per_s
    low = min([r.intensity for r in counted], default=1.0) / 2
    high = max([r.intensity for r in counted] + [ridge]) * 2
    total_s = sum(r.seconds for r in rows)
    traces = [*_ceilings(unit, low, high), *_marks(counted, total_s)]
    x_axis = charts.logarithmic_axis("operations per byte of memory traffic", "FLOP/B", [low, high])
    edges = [0.6 * min(rates) / TERA, top * 1.3 / TERA]
    return draw(traces, x_axis, charts.logarithmic_axis("achieved by one accelerator", "TFLOP/s", edges))


def _ceilings(unit: Accelerator, low: float, high: float) -> Iterator[Trace]:
    """Yield one line for each peak rate, between two intensities: the slope of the memory, then the peak."""
    bandwidth = unit.memory_bandwidth_bytes_per_s
    for i, (peak, dtypes) in enumerate(sorted(_peaks(unit).items(), reverse=True)):
        corners = [(low, low * bandwidth / TERA), (peak / bandwidth, peak / TERA), (high, peak / TERA)]
        stroke = {"color": charts.REFERENCE, "width": 1.5, "dash": ("solid", "dash", "dot", "dashdot")[i % 4]}
        yield line(corners, f"ceiling: {', '.join(dtypes)}", line=stroke, hoverinfo="skip")


def _marks(counted: Sequence[OperatorRow], total_s: float) -> Iterator[Trace]:
    """Yield the marks of the operators by bound, in descending order of rate; large shares of `total_s` have labels."""
    named = [r for r in counted if r.seconds / total_s > LEAST_NAMED]
    sides = _sides([(r.intensity, r.flops / r.seconds) for r in sorted(named, key=lambda r: -r.flops / r.seconds)])
    for i, (bound, words) in enumerate(BOUND_WORDS.items()):
        rows = sorted((r for r in counted if r.bound == bound), key=lambda r: -r.flops / r.seconds)
        shares = [r.seconds / total_s for r in rows]
        points = [
            (r.intensity, r.flops / r.seconds / TERA, r.name if share > LEAST_NAMED else "")
            for r, share in zip(rows, shares, strict=True)
        ]
        around = [sides.get((r.intensity, r.flops / r.seconds), SIDES[0]) for r in rows]
        hover = [
            f"{r.name}: {percent(s, 1)} of device time, {number_text(r.intensity)} "
            f"FLOP/B, {percent(r.efficiency)} of its roofline"
            for r, s in zip(rows, shares, strict=True)
        ]
        sizes = [8 + 34 * share**0.5 for share in shares]
        mark = {"color": BOUND_COLOURS[bound], "symbol": charts.MARKS[i], "size": sizes, "opacity": 0.85}
        labels = {"textposition": around, "textfont": {"size": 11}, "hovertext": hover, "hoverinfo": "text"}
        if rows:
            yield line(points, f"bound by {words}", mode="markers+text", marker=mark, **labels)


def _sides(marks: Sequence[tuple[float, float]]) -> dict[tuple[float, float], str]:
    """Return the side of the label of each mark (intensity, rate): one that no mark near it has, if there is one."""
    found: dict[tuple[float, float], str] = {}
    for mark in marks:
        taken = {
            side
            for other, side in found.items()
            if all(max(a, b) < factor * min(a, b) for a, b, factor in zip(mark, other, NEAR, strict=True))
        }
        found[mark] = next((side for side in SIDES if side not in taken), SIDES[0])
    return found


def reached(rows: Sequence[OperatorRow]) -> PlotlyFigure:
    """Return a bar chart of the share of its own roofline that each operator reaches, in descending order of time.

    Operators that only move data are included.
    """
    shown, total_s = together(rows)[:16], sum(r.seconds for r in rows)
    traces = []
    for i, (bound, words) in enumerate(BOUND_WORDS.items()):
        mine = [
            (r.name, 100 * r.efficiency, f" {percent(r.efficiency)} ({percent(r.seconds / total_s, 1)} of time)")
            for r in shown
            if r.bound == bound
        ]
        if mine:
            traces.append(bars(mine, i, BOUND_COLOURS[bound], name=words))
    most = max([100.0] + [100 * r.efficiency for r in shown])
    order = {"categoryorder": "array", "categoryarray": [r.name for r in shown]}
    x_axis = percent_axis("share of its roofline reached", most * 1.3)
    return draw(traces, x_axis, names_axis("operator", **order), -60 / (24 * len(shown)), bargap=0.25)


def time_by_class(breakdown: dict[str, float]) -> PlotlyFigure:
    """Return a bar chart of the simulated replica time by class of operator, per cent."""
    total = sum(breakdown.values())
    shares = sorted(((k, 100 * v / total) for k, v in breakdown.items() if v > 0), key=lambda item: -item[1])
    trace = bars([(CLASS_WORDS.get(k, k), share, f" {share:.1f} %") for k, share in shares])
    x_axis = percent_axis("share of replica time", shares[0][1] * 1.15)
    return draw([trace], x_axis, names_axis("class of operator"), bargap=0.25)


def block_of(row: OperatorRow) -> str:
    """Return the part of the model in which an operator runs."""
    if row.name in OUTSIDE:
        return "outside the layers"
    half = "feed-forward" if row.name in FEED_FORWARD or row.name.startswith("shared_") else "attention"
    return f"{half}, {row.layers} layer{'s' if row.layers != 1 else ''}"


def time_by_layer(rows: Sequence[OperatorRow], n_steps: float) -> PlotlyFigure:
    """Return a stacked bar chart of the time of a mean step in milliseconds by part of the model and operator.

    The parts are both halves of each kind of layer, and the operators outside the layers.

    Args:
        rows: The operators of one accelerator.
        n_steps: The number of steps in which they ran.
    """
    blocks: dict[str, list[OperatorRow]] = {}
    for r in together(rows, by_layers=True):
        blocks.setdefault(block_of(r), []).append(r)
    longest_s = max(sum(r.seconds for r in parts) for parts in blocks.values()) / n_steps
    traces = []
    for i in range(LARGEST + 1):
        values = []
        for block in sorted(blocks, key=lambda b: (b.startswith("outside"), b)):
            parts = blocks[block][i : i + 1] if i < LARGEST else blocks[block][LARGEST:]
            mean_s = sum(r.seconds for r in parts) / n_steps
            if mean_s > 0:
                text = _label(parts, mean_s, n_steps) if mean_s > 0.07 * longest_s else ""
                values.append((block, MS * mean_s, text))
        style = {"hoverinfo": None, "hovertemplate": "%{x:.3g} ms<extra></extra>", "showlegend": False}
        font = {"textfont": {"color": "#10151b", "size": 11}}
        traces.append(bars(values, i, charts.PALE[i], inside=True, **style, **font))
    x_axis = charts.linear_axis("time in a mean step", "ms")
    return draw(traces, x_axis, names_axis("part of the model"), barmode="stack", bargap=0.25)


def _label(parts: Sequence[OperatorRow], mean_s: float, n_steps: float) -> str:
    """Return the name of an operator, and its time in one layer if it runs in several."""
    if len(parts) > 1:
        return f"the rest<br>{charts.time_text(mean_s)}"
    row = parts[0]
    if row.name in OUTSIDE or row.layers == 1:
        return f"{row.name}<br>{charts.time_text(mean_s)}"
    return f"{row.name}<br>{charts.time_text(row.seconds / n_steps / row.layers)} a layer"


def ceiling_words(unit: Accelerator) -> str:
    """Return the peak rates and the memory bandwidth of an accelerator as text."""
    peaks = ", ".join(f"{dtypes[0]} {charts.si_text(peak, 'FLOP/s')}" for peak, dtypes in _peaks(unit).items())
    return f"{peaks}; memory {charts.si_text(unit.memory_bandwidth_bytes_per_s, 'B/s')}"


def _peaks(unit: Accelerator) -> dict[float, list[str]]:
    """Return the number formats by peak rate in FLOP/s."""
    peaks: dict[float, list[str]] = {}
    for dtype, peak in unit.peak_flops.items():
        peaks.setdefault(peak, []).append(dtype)
    return peaks
