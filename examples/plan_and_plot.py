"""Plan a deployment in Python, print its capacity and cost, and draw the Pareto front of cost and latency.

Run it with `python examples/plan_and_plot.py [FOLDER]`. It writes front.html to FOLDER (default: the current folder).
"""

from __future__ import annotations

import sys
from pathlib import Path

import plotly.graph_objects as go

from planner import PlanRequest, SearchOptions, pareto_front, plan

MODEL, HARDWARE = "llama3.1-8b", "l40sx2"


def main(folder: Path) -> None:
    """Print the recommended deployment and write the chart of the front."""
    request = PlanRequest(
        model=MODEL,
        hardware=HARDWARE,
        slos="ttft.p90=1s,tpot.mean=60ms",
        search=SearchOptions(trials=6),
    )
    answer = plan(request)
    if answer.best is None:
        print("No deployment meets the objectives:", answer.infeasible)
        return
    best = answer.best
    print("Recommended:", best.command)
    print(f"Capacity with {request.confidence:.0%} confidence:", best.capacity_requests_per_s, "requests/s")
    print("Cost:", None if best.cost is None else best.cost.usd_per_hour, "USD per hour")

    front = pareto_front(request, axes="cost,ttft.p90")
    points = [(point, sample.values) for point, sample in front.members]
    figure = go.Figure(
        go.Scatter(
            x=[values[0] for _, values in points],
            y=[values[1] for _, values in points],
            text=[point.candidate.words for point, _ in points],
            mode="markers+lines",
        )
    )
    figure.update_layout(title=f"{MODEL} on {HARDWARE}", xaxis_title="cost", yaxis_title="ttft.p90 (s)")
    figure.write_html(folder / "front.html")
    print(f"{len(points)} deployments on the front, drawn in {folder / 'front.html'}")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path())
