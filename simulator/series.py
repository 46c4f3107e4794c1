"""Decode steps in a row as an arithmetic series: step j (0-based) takes first_s + j * slope_s."""

from __future__ import annotations

from math import sqrt


def elapsed_s(steps: int, first_s: float, slope_s: float) -> float:
    """Seconds that so many steps take."""
    return steps * first_s + slope_s * (0.5 * steps * (steps - 1))


def step_at(now: float, start_s: float, first_s: float, slope_s: float, most: int) -> int:
    """The step (counted from 1, at most `most`) that is on the device at `now`."""
    passed_s = now - start_s
    linear = first_s - 0.5 * slope_s
    step = int(2.0 * passed_s / (linear + sqrt(max(0.0, linear * linear + 2.0 * slope_s * passed_s)))) + 1
    while step > 1 and start_s + elapsed_s(step - 1, first_s, slope_s) > now:
        step -= 1
    while step < most and start_s + elapsed_s(step, first_s, slope_s) <= now:
        step += 1
    return step
