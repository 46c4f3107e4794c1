"""The clock at which a deployment's accelerators compute prompts: that at which a step keeps the board's power limit.

A board holds its limit over tens of milliseconds, about as long as a step with prompts takes. The mean demand of all
kernels of such a step therefore decides, not that of one kernel: over many tensor ranks the all-reduces, which draw
little, leave room for products at the full clock (calibration/power/sustained.py has the law and its evidence).

Only operators that the clock of the multiprocessors determines are slowed down (`CLOCKED` in
simulator/layers/operator_call.py), and a dense product only by what its row in the table does not show already.

The step is one prompt of all its tokens, outside CUDA graphs; while the host launches its kernels more slowly than
they run, the board is idle in between. Decodes in the step are not counted: they are few beside the prompt.
Steps in CUDA graphs keep the clock of the tables. Memory and links have clocks of their own.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from calibration.power.sustained import demand_w, held_clock, lowers_clock
from catalogs.arrays import FloatArray
from simulator.costs.interpolation import spaced
from simulator.costs.pricing import Pricer
from simulator.layers.operator_call import PromptClock
from simulator.layers.step import StepCalls

#: Numbers of tokens at which the clock is computed. A judgement: the clock changes slowly with the tokens.
NODES: Final = 24


def prompt_clock(
    lines: StepCalls, pricer: Pricer, captured_tokens: int, most_tokens: int, launch_s: float
) -> PromptClock | None:
    """Return the clock of steps with prompts by their tokens on a rank, or None where it is always the highest.

    Args:
        lines: The operators of the deployment's steps, at the highest clock.
        pricer: Their prices.
        captured_tokens: The most tokens of a step with prompts in CUDA graphs; 0 if it never runs in one.
        most_tokens: The most tokens of a rank in a step.
        launch_s: The least seconds of a step outside CUDA graphs.
    """
    unit = pricer.hardware.accelerator
    if not lowers_clock(unit) or most_tokens <= captured_tokens:
        return None
    tokens = spaced(captured_tokens + 1, most_tokens, NODES)
    seconds, joules = _demand(lines, pricer, tokens)
    lasting = np.maximum(seconds, launch_s)
    mean_w = (joules + (lasting - seconds) * unit.idle_w) / np.maximum(lasting, 1e-12)
    clock = held_clock(mean_w, unit)
    if not (clock < 1.0).any():
        return None
    return PromptClock(np.append(float(captured_tokens), tokens), np.append(1.0, clock))


def _demand(lines: StepCalls, pricer: Pricer, tokens: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return (seconds, joules) of steps of one prompt each, at the highest clock. Shape of all: (nodes,)."""
    one, ranks = np.ones_like(tokens), lines.shard.exchange_ranks
    calls = [*lines.rank(tokens, graph=False), *lines.group(tokens * ranks, graph=False)]
    calls += lines.prefill(one, tokens, 0.0 * one)
    seconds, joules = np.zeros(len(tokens)), np.zeros(len(tokens))
    for call, cost in pricer.costs(calls):
        lasts = np.broadcast_to(cost.seconds, tokens.shape) * call.count * call.runs * call.parts
        seconds += lasts
        joules += lasts * demand_w(call.op, cost, pricer.hardware.accelerator)
    return seconds, joules
