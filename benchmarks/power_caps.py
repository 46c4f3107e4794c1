"""Power limits against measurements: fit the constants of calibration/bundles/lower_clock.py, and check them elsewhere.

    python benchmarks/power_caps.py             # seconds
    python benchmarks/power_caps.py --simulate  # also simulates the 27B model under the same limits, half a minute

1. Voltage against clock: watts of one transformer layer on an A100 at 33 locked clocks, and of vLLM on a RTX PRO 6000
   at 20 limits. Checked on an A40, on which neither was fitted.
2. Time against clock: throughputs of one model under limits, fitted; those of another model, predicted.
3. Limits alone: throughput of the other model from its draw without a limit, no clock read.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import brentq, least_squares

from calibration.bundles.lower_clock import DATACENTER, LEAST_CLOCK_PART, SHARPNESS, WORKSTATION, VoltageCurve
from catalogs.hardware.catalog import parse_hardware
from catalogs.ui.words import percent

DATA = Path(__file__).parent / "data" / "power_caps.json"
#: The model the time constants were fitted on; the other is held out.
FITTED_ON, HELD_OUT = "27b", "coder-next"
Array = np.ndarray[Any, np.dtype[np.float64]]


@dataclass(frozen=True)
class Runs:
    """Runs under limits on one board: clocks as shares of the highest, watts, throughput as a share of unlimited."""

    clock: Array
    watts: Array
    share: Array
    run: Array
    names: tuple[str, ...]
    unlimited_w: Array  # by run


def voltage(x: Array | list[float], clock: Array) -> Array:
    out: Array = np.maximum(x[1], 1.0 - x[0] * (1.0 - clock))
    return out


def fit_voltage(clock: Array, watts: Array, run: Array, static_w: float | None) -> tuple[Array, Array]:
    """Return (slope, least, watts by run, static watts) and the errors as shares; `static_w` None is fitted too."""
    n = int(run.max()) + 1

    def modelled(x: Array) -> Array:
        static = x[-1] if static_w is None else static_w
        out: Array = static + x[2 : 2 + n][run] * clock * voltage(x, clock) ** 2
        return out

    def residual(x: Array) -> Array:
        out: Array = modelled(x) / watts - 1.0
        return out

    found = least_squares(residual, [0.9, 0.8, *([float(watts.max())] * n), 100.0])
    return found.x, np.abs(found.fun)


def with_curve(curve: VoltageCurve, clock: Array, watts: Array, static_w: float) -> Array:
    """Return the errors of a curve that was fitted on another board; only the amplitude is fitted."""
    shape = clock * np.array([curve.at(float(c)) for c in clock]) ** 2
    best = float(np.sum(shape / watts * (1 - static_w / watts)) / np.sum((shape / watts) ** 2))
    out: Array = np.abs((static_w + best * shape) / watts - 1.0)
    return out


def stretched(part: Array | float, clock: Array | float, sharpness: float = SHARPNESS) -> Array:
    out: Array = np.asarray(((1 + (part / clock) ** sharpness) / (1 + part**sharpness)) ** (1 / sharpness))
    return out


def read_runs(data: dict[str, Any], prefix: str = "") -> Runs:
    table = data["limit_tables"]
    runs = [r for r in table["runs"] if r["name"].startswith(prefix)]
    rows = [(i, r["unlimited"]["tokens_per_s"], *row) for i, r in enumerate(runs) for row in r["rows"]]
    number, top, _, tokens, watts, mhz = (np.array(c, dtype=float) for c in zip(*rows, strict=True))
    unlimited = np.array([r["unlimited"]["watts"] for r in runs])
    names = tuple(r["name"] for r in runs)
    return Runs(mhz / table["max_mhz"], watts, tokens / top, number.astype(int), names, unlimited)


def told(title: str, errors: Array) -> None:
    print(f"  {title}: mean {percent(errors.mean(), 1)}, worst {percent(errors.max(), 1)} of {len(errors)}")


def voltages(data: dict[str, Any]) -> float:
    """Print part 1 and return the static watts of the board under limits."""
    print("1. watts against clock")
    tables = {name: np.array(t["rows"]) for name, t in data["clock_tables"].items()}
    clock = {name: t[:, 0] / data["clock_tables"][name]["max_mhz"] for name, t in tables.items()}
    watts = {name: t[:, 2] / t[:, 1] for name, t in tables.items()}
    idle_w = parse_hardware("a100-80gb").accelerator.idle_w
    a100 = fit_voltage(clock["a100-80gb"], watts["a100-80gb"], np.zeros(len(tables["a100-80gb"]), int), idle_w)
    told(f"a100-80gb, slope {a100[0][0]:.2f}, least {a100[0][1]:.2f} (stated {DATACENTER})", a100[1])
    runs = read_runs(data)
    board = fit_voltage(runs.clock, runs.watts, runs.run, None)
    said = f"static {board[0][-1]:.0f} W (stated {WORKSTATION})"
    told(f"rtxpro6000-workstation, slope {board[0][0]:.2f}, least {board[0][1]:.2f}, {said}", board[1])
    for curve in (DATACENTER, WORKSTATION):
        off = with_curve(curve, clock["a40"], watts["a40"], parse_hardware("a40").accelerator.idle_w)
        told(f"a40, not fitted, with the curve of {curve.measured_on}", off)
    return float(board[0][-1])


def times(data: dict[str, Any]) -> dict[str, float]:
    """Print part 2 and return the clock's part of each run."""
    print("2. throughput against clock")
    fitted = read_runs(data, FITTED_ON)

    def residual(x: Array) -> Array:
        out: Array = stretched(x[1:][fitted.run], fitted.clock, float(x[0])) * fitted.share - 1.0
        return out

    found = least_squares(residual, [4.0, *([0.5] * len(fitted.names))])
    parts = {name: float(x) for name, x in zip(fitted.names, found.x[1:], strict=True)}
    stated = f"(stated {SHARPNESS:g} and {LEAST_CLOCK_PART})"
    told(f"{FITTED_ON}, sharpness {found.x[0]:.1f}, parts {parts} {stated}", np.abs(found.fun))
    told(f"{FITTED_ON} with the stated", np.abs(stretched(LEAST_CLOCK_PART, fitted.clock) * fitted.share - 1.0))
    held = read_runs(data, HELD_OUT)
    told(f"{HELD_OUT}, not fitted, with the stated", np.abs(stretched(LEAST_CLOCK_PART, held.clock) * held.share - 1.0))
    return parts


def limits(data: dict[str, Any], static_w: float) -> None:
    """Print part 3: watts at a clock f: static + (unlimited - static) f v(f)^2, solved for the limit."""
    print("3. throughput from the limit and the draw without it")
    for prefix in (FITTED_ON, HELD_OUT):
        runs = read_runs(data, prefix)
        errors, plain = [], []
        for number, watts, share in zip(runs.run, runs.watts, runs.share, strict=True):
            clock = clock_at(float(runs.unlimited_w[number]), float(watts), static_w)
            errors.append(abs(float(stretched(LEAST_CLOCK_PART, clock)) * share - 1.0))
            plain.append(abs(share - 1.0))
        told(f"{prefix}{'' if prefix == FITTED_ON else ', not fitted'}", np.array(errors))
        told(f"{prefix} if limits cost nothing", np.array(plain))


def clock_at(unlimited_w: float, limit_w: float, static_w: float) -> float:
    """Return the clock at which a draw fits a limit."""
    if limit_w >= unlimited_w:
        return 1.0

    def over(f: float) -> float:
        return static_w + (unlimited_w - static_w) * f * WORKSTATION.at(f) ** 2 - limit_w

    return float(brentq(over, 0.1, 1.0))


def simulated(data: dict[str, Any]) -> None:
    """Print the results of the whole chain: predicted draw, predicted clock, predicted steps."""
    from catalogs.deployments.schema import Deployment
    from simulator.cluster.compiled import compile_deployment
    from simulator.core.batch import BatchShape
    from simulator.costs.power_limit import CappedStepCost, PowerLimitedBoard, decode_kind

    print("4. simulated steps of Qwen3.5-27B in int4 (the same shape), context 300")
    plant = compile_deployment(Deployment(model="qwen3.5-27b", hardware="rtxpro6000-workstation", weight_dtype="int4"))
    board = PowerLimitedBoard(plant.cost, plant.bundle)
    for run in (r for r in data["limit_tables"]["runs"] if r["name"].startswith(FITTED_ON)):
        n = run["concurrency"]
        shape = BatchShape(decodes=n, decode_context_sum=300 * n, decode_context_max=300, logits=n)
        seconds, joules = board.at(decode_kind(n, 300.0), 0)
        measured = run["unlimited"]
        print(
            f"  {run['name']}: {joules / seconds:.0f} W predicted, {measured['watts']:.0f} W measured without a limit"
        )
        plain_s = plant.cost.cycle_s(shape)
        for cap_w, tokens, *_ in run["rows"]:
            share = plain_s / CappedStepCost(board, float(cap_w)).cycle_s(shape)
            really = tokens / measured["tokens_per_s"]
            print(
                f"    {cap_w} W: throughput {percent(share - 1, 1, signed=True)} "
                f"predicted, {percent(really - 1, 1, signed=True)} measured"
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--simulate", action="store_true")
    asked = parser.parse_args()
    data = json.loads(DATA.read_text(encoding="utf-8"))
    static_w = voltages(data)
    times(data)
    limits(data, static_w)
    if asked.simulate:
        simulated(data)


if __name__ == "__main__":
    main()
