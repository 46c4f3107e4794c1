"""The parts that the charts of operators and of whole models share."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from catalogs.ui.charts import LEGEND_BELOW, REFERENCE

#: Margins of a figure in pixels.
MARGIN: Final = {"l": 10, "r": 10, "t": 10, "b": 10}


def short(values: Any) -> npt.NDArray[np.float32]:
    """Return values of any Shape in single precision, which halves the page and is precise enough for a screen."""
    return np.asarray(values, dtype=np.float32)


def dots(name: str, group: str, marker: dict[str, Any], hover: str = "%{text}") -> dict[str, Any]:
    """Return the style of a series of points; series of one `group` are shown and hidden together."""
    tip = f"{hover}<extra></extra>"
    return {"mode": "markers", "name": name, "legendgroup": group, "marker": marker, "hovertemplate": tip}


def add_line(figure: Any, x: list[float], y: list[float], name: str, width: float = 1.2, dash: str = "solid") -> None:
    """Draw a reference line; a line without a name is not in the legend."""
    line = {"color": REFERENCE, "width": width, "dash": dash}
    figure.add_scatter(x=x, y=y, mode="lines", line=line, name=name, showlegend=bool(name), hoverinfo="skip")


def finished(figure: Any, **layout: Any) -> Any:
    """Return the figure with narrow margins and its legend below."""
    return figure.update_layout(**{"legend": LEGEND_BELOW, "margin": MARGIN} | layout)
