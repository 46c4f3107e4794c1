"""Step costs of accelerators under a power limit (`nvidia-smi -pl`): steps that would draw more power take longer.

A board holds its limit over tens of milliseconds, which is about one step. For every class of steps the clock is
lowered until the mean power fits; between two modelled clocks the board alternates. The calibration was measured at the
board's own limit, so a step takes longer by the factor that the lower limit adds to that.

Steps are classified by their decodes, prompt tokens and context, in coarse classes. Within a run of decode steps the
class, and with it the factor, stays constant, so the run stays an arithmetic series. Energy is limit x time when the
limit is reached. The added part of a step is accounted as host time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from math import ceil, floor, log2
from typing import Final

from calibration.bundles.bundle import Bundle
from calibration.bundles.lower_clock import Clocked
from calibration.power.model import LIMIT_SHARE
from catalogs.errors import InputError
from catalogs.ui.words import percent
from simulator.core.batch import BatchShape, Encoding
from simulator.core.step_log import StepLog
from simulator.costs.compile import compile_step_cost
from simulator.costs.pricing import JOULES
from simulator.costs.step_cost import StepCost
from simulator.costs.totals import gap_w, priced

#: Clocks at which steps are priced, as shares of the highest; the board alternates between two neighbouring clocks.
CLOCKS: Final = tuple(round(1.0 - 0.05 * i, 2) for i in range(17))

#: Classes per doubling of: decodes in steps without prompts, their context, decodes in steps with prompts, their
#: context, prompt tokens. Prompts determine the power draw of their step, so its decodes need fewer classes.
_ALONE, _CONTEXT, _MIXED, _MIXED_CONTEXT, _TOKENS = 4, 1.0, 1, 0.5, 2

#: A limit that is suggested exceeds the lowest one of its deployment by this factor. The lowest limits of ten layouts
#: and precisions of Llama 3.1 8B and 70B on H100s were 218 to 250 W, at most 11 % above that of the default deployment.
_SUGGESTION_MARGIN: Final = 1.15

Kind = tuple[int, int, int]  # classes of decodes, mean context, prompt tokens (-1: none)


class PowerLimitedBoard:
    """The accelerators of one deployment at any clock. All limits share one board, so that no step is priced twice."""

    def __init__(self, plain: StepCost, bundle: Bundle) -> None:
        self.plain, self._bundle = plain, bundle
        self.accelerator = plain.tables.resolved.hardware.accelerator
        self._levels: dict[int, StepCost] = {0: plain}
        self._known: dict[tuple[Kind, int], tuple[float, float]] = {}

    def under(self, kind: Kind, limit_w: float) -> float:
        """Return the seconds of a step under a power limit.

        The board runs at the highest clock that fits, or alternates between the two clocks around the limit.

        Raises:
            InputError: The limit is too low for the lowest clock.
        """
        held_w = LIMIT_SHARE * limit_w
        faster = self.at(kind, 0)
        if faster[1] <= held_w * faster[0]:
            return faster[0]
        above, below = 0, len(CLOCKS) - 1
        slower = self.at(kind, below)
        if slower[1] > held_w * slower[0]:
            least_w = self.least_limit_w
            rule = f"{self.accelerator.name} needs {least_w:.0f} W even at {percent(CLOCKS[-1])} of its clock"
            raise InputError(rule, limit_w, f"{ceil(least_w * _SUGGESTION_MARGIN / 10) * 10}")
        while below > above + 1:
            middle = (above + below) // 2
            seconds, joules = self.at(kind, middle)
            above, below = (middle, below) if joules > held_w * seconds else (above, middle)
        faster, slower = self.at(kind, above), self.at(kind, below)
        over, spare = faster[1] - held_w * faster[0], held_w * slower[0] - slower[1]
        part = spare / (over + spare)
        return part * faster[0] + (1 - part) * slower[0]

    @cached_property
    def least_limit_w(self) -> float:
        """Return the lowest limit, watts, that every class of steps of this deployment can keep at the lowest clock."""
        limits = self.plain.tables.resolved.limits
        context = float(limits.max_model_len)
        tokens = range(_class(limits.max_num_batched_tokens, _TOKENS) + 1)
        alone = [
            (n, c, -1)
            for n in range(_class(limits.max_num_seqs, _ALONE) + 1)
            for c in range(_class(context, _CONTEXT) + 1)
        ]
        mixed = [
            (n, c, t)
            for n in range(-1, _class(limits.max_num_seqs, _MIXED) + 1)
            for c in (range(_class(context, _MIXED_CONTEXT) + 1) if n >= 0 else (-1,))
            for t in tokens
        ]
        steps = (self.at(kind, len(CLOCKS) - 1) for kind in (*alone, *mixed))
        return max(joules / seconds for seconds, joules in steps) / LIMIT_SHARE

    def at(self, kind: Kind, level: int) -> tuple[float, float]:
        """Return (seconds, joules of one accelerator) of a typical step of a class at one clock, without a limit."""
        if level not in self._levels:
            source = Clocked(self._bundle, CLOCKS[level])
            self._levels[level] = compile_step_cost(self.plain.tables.resolved, source)
        if (kind, level) not in self._known:
            self._known[kind, level] = self._priced(_shape(kind), self._levels[level])
        return self._known[kind, level]

    def _priced(self, shape: BatchShape, cost: StepCost) -> tuple[float, float]:
        seconds = cost.cycle_s(shape)
        log = StepLog()
        log.add(0.0, 1, shape, seconds, 0.0, seconds)
        part = next(iter(priced(cost.tables, log)))
        joules = part.device[0, JOULES] + part.host_s[0] * gap_w(self.accelerator)
        return seconds, float(joules) * cost.tables.resolved.batches_in_flight


class CappedStepCost(StepCost):
    """Seconds per engine step under a limit of `cap_w` watts per accelerator.

    Raises:
        InputError: The limit is too low for the lowest clock.
    """

    def __init__(self, board: PowerLimitedBoard, cap_w: float) -> None:
        plain, unit = board.plain, board.accelerator
        resolved = plain.tables.resolved
        limited = replace(resolved.hardware.node, accelerator=replace(unit, tdp_w=min(cap_w, unit.tdp_w)))
        hardware = replace(resolved.hardware, node=limited)
        super().__init__(replace(plain.tables, resolved=replace(resolved, hardware=hardware)))
        self.plain, self.cap_w, self._board = plain, cap_w, board
        self._factors: dict[Kind, float] = {}
        self._of_kind((-1, -1, _class(resolved.limits.max_num_batched_tokens, _TOKENS)))  # a full step of prompts

    def cycle_s(self, shape: BatchShape) -> float:
        """Return the seconds from the start of this step to the start of the next."""
        return self.plain.cycle_s(shape) * self._factor(shape)

    def output_s(self, shape: BatchShape) -> float:
        """Return the seconds of the output projection and of sampling, slower by the factor of the whole step."""
        return self.plain.output_s(shape) * self._factor(shape)

    def encoding_s(self, encoding: Encoding) -> float:
        """Return the seconds of encoding items. The limit slows it down as it does a full step of prompts."""
        full = self.tables.resolved.limits.max_num_batched_tokens
        return self.plain.encoding_s(encoding) * self._of_kind((-1, -1, _class(full, _TOKENS)))

    def decode_segment(self, decodes: int, context_sum: float, context_max: float) -> tuple[float, float, int]:
        """Return (t0, slope, steps) of a run of decode steps, which ends where its context leaves the class."""
        first, slope, steps = self.plain.decode_segment(decodes, context_sum, context_max)
        mean = context_sum / decodes
        kind = decode_kind(decodes, mean)
        factor, end = self._of_kind(kind), 2.0 ** ((kind[1] + 1) / _CONTEXT)
        return first * factor, slope * factor, min(steps, ceil(end - mean))

    def ranks_segment(self, ranks: Sequence[BatchShape | None]) -> tuple[float, float, int]:
        """Return (t0, slope, steps) for ranks with unequal shares, scaled by the factor of the fullest rank.

        A run covers one step if the limit is reached, because the class of the next step may differ.
        """
        first, slope, steps = self.plain.ranks_segment(ranks)
        factor = self._factor(_fullest(ranks))
        return first * factor, slope * factor, steps if factor == 1.0 else 1

    def _factor(self, shape: BatchShape) -> float:
        """Return the duration under the limit relative to the duration at the board's own limit."""
        if shape.ranks:
            shape = _fullest(shape.ranks)
        n, tokens = shape.decodes, shape.prefill_tokens
        mean = shape.decode_context_sum / n if n else 0.0
        if not tokens:
            return self._of_kind(decode_kind(n, mean)) if n else 1.0
        return self._of_kind((_class(n, _MIXED), _class(mean, _MIXED_CONTEXT), _class(tokens, _TOKENS)))

    def _of_kind(self, kind: Kind) -> float:
        if kind not in self._factors:
            board = self._board
            self._factors[kind] = board.under(kind, self.cap_w) / board.under(kind, board.accelerator.tdp_w)
        return self._factors[kind]


def _fullest(ranks: Sequence[BatchShape | None]) -> BatchShape:
    """Return the share with the most tokens."""
    return max(
        (s for s in ranks if s is not None), key=lambda s: (s.tokens, s.decode_context_sum), default=BatchShape()
    )


def decode_kind(decodes: int, mean: float) -> Kind:
    """Return the class of steps that hold only decodes, with a mean context of `mean` tokens."""
    return _class(decodes, _ALONE), _class(mean, _CONTEXT), -1


def _class(value: float, per_doubling: float) -> int:
    """Return the class of a value on a logarithmic scale; -1 for values below 1."""
    return floor(per_doubling * log2(value)) if value >= 1 else -1


def _middle(number: int, per_doubling: float) -> float:
    """Return the value in the middle of a class; 0 for class -1."""
    return float(2.0 ** ((number + 0.5) / per_doubling)) if number >= 0 else 0.0


def _shape(kind: Kind) -> BatchShape:
    """Return a step in the middle of a class; its prompt tokens belong to one prompt without earlier context."""
    alone = kind[2] < 0
    decodes = round(_middle(kind[0], _ALONE if alone else _MIXED))
    context = round(_middle(kind[1], _CONTEXT if alone else _MIXED_CONTEXT))
    tokens = round(_middle(kind[2], _TOKENS))
    chunks = min(tokens, 1)
    return BatchShape(tokens, tokens**2 / 2, chunks, decodes, decodes * context, context, decodes + chunks)
