"""The machine: memory, roofline, and where the time goes by operator and by layer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from catalogs.hardware.specs import Accelerator
from catalogs.ui.charts import (
    BELOW,
    COLOURS,
    MARGIN,
    MARKS,
    PALE,
    REFERENCE,
    bar_style,
    linear_axis,
    logarithmic_axis,
    number_text,
    si_text,
    time_text,
    vertical_line,
)
from planner.answer.plan_schema import Memory
from simulator.analysis.operators import BOUND_WORDS, COMPUTE, FIXED, LINK, MEMORY, OperatorRow, together

GB: Final = 1e9

CLASS_WORDS: Final = {
    "gemm": "matrix products",
    "attention_prefill": "attention, prompts",
    "attention_decode": "attention, generation",
    "moe": "experts",
    "collective": "communication",
    "elementwise": "norms, activations, sampling",
    "host": "host",
    "idle": "idle",
}

#: Operators outside the layers, and those of a layer's second half; all others are its first half.
OUTSIDE: Final = frozenset(
    {"embedding", "embedding_all_reduce", "final_norm", "stage_send", "lm_head", "logits_all_gather", "sampling"}
)

FEED_FORWARD: Final = frozenset(
    {"post_norm", "gate_up_proj", "up_proj", "activation", "down_proj", "ffn_all_reduce", "router", "routing"}
    | {"latent_in", "latent_out", "add_shared", "experts", "dispatch", "combine"}
)

#: Of the names of operators between the fastest (above) and the slowest (below): near ones stay readable.
SIDES: Final = ("middle right", "middle left")

LEAST_NAMED: Final = 0.03  # of device time

LARGEST: Final = 6  # operators named in a stacked bar

TERA: Final = 1e12

MS: Final = 1e3


def memory_bar(memory: Memory) -> Any:
    """One accelerator's memory, gigabytes."""
    import plotly.graph_objects as go

    rest = memory.device_bytes - memory.weights_bytes - memory.activation_bytes - memory.non_torch_bytes
    parts = (
        ("weights", memory.weights_bytes),
        ("activations", memory.activation_bytes),
        ("runtime", memory.non_torch_bytes),
        ("KV cache", memory.kv_bytes),
        ("free", max(rest - memory.kv_bytes, 0.0)),
    )
    figure = go.Figure()
    for i, (name, size) in enumerate(parts):
        text = f"{size / GB:.1f} GB" if size > 0.06 * memory.device_bytes else ""
        colour = "#eef0f3" if name == "free" else PALE[i]
        inside = {"text": [text], "textposition": "inside", "insidetextanchor": "middle", "textangle": 0}
        font = {"textfont": {"color": "#10151b"}}
        label = f"{name}: {size / GB:.2f} GB"
        figure.add_bar(
            y=[""],
            x=[size / GB],
            name=label,
            orientation="h",
            marker=bar_style(i, colour),
            hoverinfo="name",
            **inside,
            **font,
        )
    top = max(memory.device_bytes, sum(size for _, size in parts)) / GB
    figure.update_xaxes(**linear_axis("memory of one accelerator", "GB", range=[0, top * 1.005]))
    if memory.device_bytes / GB < top:
        vertical_line(figure, memory.device_bytes / GB, "total memory")
    figure.update_yaxes(showgrid=False)
    return figure.update_layout(barmode="stack", legend=BELOW | {"y": -0.75}, margin=MARGIN)


def roofline(rows: Sequence[OperatorRow], unit: Accelerator) -> Any:
    """Every operator that computes, under the ceilings; the larger the mark, the more time it takes."""
    import plotly.graph_objects as go

    figure, counted = go.Figure(), [r for r in together(rows) if r.flops > 0]
    rates = [r.flops / r.seconds for r in counted] or [1.0]
    top = max(unit.peak_flops.values(), default=max(rates))
    ridge = top / unit.memory_bandwidth_bytes_per_s
    low = min([r.intensity for r in counted], default=1.0) / 2
    high = max([r.intensity for r in counted] + [ridge]) * 2
    _ceilings(figure, unit, low, high)
    for i, bound in enumerate(BOUND_WORDS):
        mine = sorted((r for r in counted if r.bound == bound), key=lambda r: -r.flops / r.seconds)
        if mine:
            _marks(figure, mine, sum(r.seconds for r in rows), i)
    figure.update_xaxes(**logarithmic_axis("operations per byte of memory traffic", "FLOP/B", [low, high]))
    figure.update_yaxes(
        **logarithmic_axis("achieved by one accelerator", "TFLOP/s", [0.6 * min(rates) / TERA, top * 1.3 / TERA])
    )
    return figure.update_layout(legend=BELOW, margin=MARGIN)


def _ceilings(figure: Any, unit: Accelerator, low: float, high: float) -> None:
    """Memory's slope and the peak of each rate of arithmetic, between two intensities."""
    bandwidth = unit.memory_bandwidth_bytes_per_s
    ceilings: dict[float, list[str]] = {}
    for dtype, peak in unit.peak_flops.items():
        ceilings.setdefault(peak, []).append(dtype)
    for i, (peak, dtypes) in enumerate(sorted(ceilings.items(), reverse=True)):
        x, y = [low, peak / bandwidth, high], [low * bandwidth / TERA, peak / TERA, peak / TERA]
        line = {"color": REFERENCE, "width": 1.5, "dash": ("solid", "dash", "dot", "dashdot")[i % 4]}
        name = f"ceiling: {', '.join(dtypes)}"
        figure.add_scatter(x=x, y=y, mode="lines", line=line, name=name, hoverinfo="skip")


def _marks(figure: Any, mine: Sequence[OperatorRow], total_s: float, kind: int) -> None:
    """Operators of one bound, the fastest first; those of most time are named."""
    bound = list(BOUND_WORDS)[kind]
    shares = [r.seconds / total_s for r in mine]
    named = [r.name if s > LEAST_NAMED else "" for r, s in zip(mine, shares, strict=True)]
    around = ["top center", *(SIDES[k % 2] for k in range(len(mine) - 2)), "bottom center"][: len(mine)]
    hover = [
        f"{r.name}: {s:.1%} of device time, {number_text(r.intensity)} FLOP/B, {r.efficiency:.0%} of its roofline"
        for r, s in zip(mine, shares, strict=True)
    ]
    sizes = [8 + 34 * s**0.5 for s in shares]  # area by time
    mark = {"color": BOUND_COLOURS[bound], "symbol": MARKS[kind], "size": sizes, "opacity": 0.85}
    where = {"x": [r.intensity for r in mine], "y": [r.flops / r.seconds / TERA for r in mine]}
    words = {"text": named, "textposition": around, "textfont": {"size": 11}, "hovertext": hover, "hoverinfo": "text"}
    name = f"bound by {BOUND_WORDS[bound]}"
    figure.add_scatter(**where, mode="markers+text", name=name, marker=mark, **words)


def reached(rows: Sequence[OperatorRow]) -> Any:
    """Share of its own roofline that each operator reaches, those of most time first; movers of bytes included."""
    import plotly.graph_objects as go

    shown = together(rows)[:16]
    total = sum(r.seconds for r in rows)
    figure = go.Figure()
    for i, (bound, words) in enumerate(BOUND_WORDS.items()):
        mine = [r for r in shown if r.bound == bound]
        if mine:
            texts = [f" {100 * r.efficiency:.0f} % ({r.seconds / total:.1%} of time)" for r in mine]
            style = {"orientation": "h", "marker": bar_style(i, BOUND_COLOURS[bound]), "textposition": "outside"}
            x, y = [100 * r.efficiency for r in mine], [r.name for r in mine]
            figure.add_bar(y=y, x=x, text=texts, name=words, cliponaxis=False, hoverinfo="skip", **style)
    most = max([100.0] + [100 * r.efficiency for r in shown])
    figure.update_xaxes(**linear_axis("share of its roofline reached", "%", range=[0, most * 1.3]))
    order = {"categoryorder": "array", "categoryarray": [r.name for r in shown], "autorange": "reversed"}
    figure.update_yaxes(showgrid=False, title={"text": "operator"}, **order)
    return figure.update_layout(legend=BELOW | {"y": -60 / (24 * len(shown))}, margin=MARGIN, bargap=0.25)


def time_by_class(breakdown: dict[str, float]) -> Any:
    """Per cent of the simulated replica time by class of operator."""
    import plotly.graph_objects as go

    total = sum(breakdown.values())
    rows = sorted(((k, v) for k, v in breakdown.items() if v > 0), key=lambda kv: -kv[1])
    texts = [f" {100 * v / total:.1f} %" for _, v in rows]
    style = {"orientation": "h", "marker": bar_style(0), "text": texts, "textposition": "outside", "hoverinfo": "skip"}
    names, values = [CLASS_WORDS.get(k, k) for k, _ in rows], [100 * v / total for _, v in rows]
    figure = go.Figure(go.Bar(y=names, x=values, cliponaxis=False, **style))
    figure.update_xaxes(**linear_axis("share of replica time", "%", range=[0, max(values) * 1.15]))
    figure.update_yaxes(autorange="reversed", showgrid=False, title={"text": "class of operator"})
    return figure.update_layout(margin=MARGIN, bargap=0.25)


def block_of(row: OperatorRow) -> str:
    """Where in the model an operator runs."""
    if row.name in OUTSIDE:
        return "outside the layers"
    inside = row.name in FEED_FORWARD or row.name.startswith("shared_")
    kind = "feed-forward" if inside else "attention"
    return f"{kind}, {row.layers} layer{'s' if row.layers != 1 else ''}"


def time_by_layer(rows: Sequence[OperatorRow], n_steps: float) -> Any:
    """Milliseconds of a mean step: both halves of the layers of each kind, and what lies outside the layers. Words in
    the bars: the operator, and its time in one layer."""
    import plotly.graph_objects as go

    blocks: dict[str, list[OperatorRow]] = {}
    for r in together(rows, by_layers=True):
        blocks.setdefault(block_of(r), []).append(r)
    order = sorted(blocks, key=lambda b: (b.startswith("outside"), b))
    longest = max(sum(r.seconds for r in parts) for parts in blocks.values()) / n_steps
    figure = go.Figure()
    for i in range(LARGEST + 1):
        names, values, texts = [], [], []
        for block in order:
            parts = blocks[block]
            taken = parts[i : i + 1] if i < LARGEST else parts[LARGEST:]
            value = sum(r.seconds for r in taken) / n_steps
            if value > 0:
                names.append(block)
                values.append(MS * value)
                texts.append(_in_bar(taken, value, n_steps) if value > 0.07 * longest else "")
        style = {
            "marker": bar_style(i, PALE[i]),
            "textposition": "inside",
            "insidetextanchor": "middle",
            "textangle": 0,
        }
        font = {"textfont": {"color": "#10151b", "size": 11}}
        hover = "%{x:.3g} ms<extra></extra>"
        figure.add_bar(
            y=names, x=values, text=texts, orientation="h", showlegend=False, hovertemplate=hover, **style, **font
        )
    figure.update_xaxes(**linear_axis("time in a mean step", "ms"))
    figure.update_yaxes(autorange="reversed", showgrid=False, title={"text": "part of the model"})
    return figure.update_layout(barmode="stack", margin=MARGIN, bargap=0.25)


def _in_bar(taken: Sequence[OperatorRow], value_s: float, n_steps: float) -> str:
    """An operator's name, and its time in one layer where there are several."""
    if len(taken) > 1:
        return f"the rest<br>{time_text(value_s)}"
    row = taken[0]
    if row.name in OUTSIDE or row.layers == 1:
        return f"{row.name}<br>{time_text(value_s)}"
    return f"{row.name}<br>{time_text(row.seconds / n_steps / row.layers)} a layer"


def ceiling_words(unit: Accelerator) -> str:
    """The peaks that the roofline is drawn from."""
    shown: dict[float, str] = {}
    for dtype, flops in unit.peak_flops.items():
        shown.setdefault(flops, f"{dtype} {si_text(flops, 'FLOP/s')}")
    return f"{', '.join(shown.values())}; memory {si_text(unit.memory_bandwidth_bytes_per_s, 'B/s')}"


BOUND_COLOURS: Final = {COMPUTE: COLOURS[3], MEMORY: COLOURS[0], LINK: COLOURS[2], FIXED: COLOURS[6]}
