"""Step costs of accelerators under a power limit (`nvidia-smi -pl`): steps that would draw more take longer.

A board holds its limit over tens of milliseconds, about a step: for every kind of step the clock is lowered until its
mean power fits, between two clocks by turns. Times in the calibration were taken at the board's own limit, so a step
takes longer by what the lower limit asks of it beyond that. Kinds of steps are told apart by how many decodes, prompt
tokens and how much context they hold, in coarse classes; within a run of decode steps the class, and so the factor,
stays, and the run stays an arithmetic series. Energy follows: limit x time, where the limit is felt. The longer part
of a step is booked as host time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import ceil, floor, log2
from typing import Final

from calibration.bundles.bundle import Bundle
from calibration.bundles.clocked import Clocked
from calibration.power.model import LIMIT_SHARE
from catalogs.errors import InputError
from simulator.core.batch import BatchShape
from simulator.core.step_log import StepLog
from simulator.costs.compile import compile_step_cost
from simulator.costs.pricing import JOULES
from simulator.costs.step_cost import StepCost
from simulator.costs.totals import gap_w, priced

#: Shares of the highest clock that steps are priced at; between two of them a board takes turns.
CLOCKS: Final = tuple(round(1.0 - 0.05 * i, 2) for i in range(17))

#: Classes per doubling: of decodes alone and of their context, of decodes beside prompts and of theirs, of prompt
#: tokens. Prompts decide the draw of a step that has some, however many they are.
_ALONE, _CONTEXT, _DECODES, _BESIDE, _TOKENS = 4, 1.0, 1, 0.5, 2

Kind = tuple[int, int, int]  # classes of decodes, mean context, prompt tokens (-1: none)


class PowerLimitedBoard:
    """One deployment's accelerators at any clock. Shared by all limits, so that no step is priced twice."""

    def __init__(self, plain: StepCost, bundle: Bundle) -> None:
        self.plain, self._bundle = plain, bundle
        self.accelerator = plain.tables.resolved.hardware.accelerator
        self._levels: dict[int, StepCost] = {0: plain}
        self._seen: dict[tuple[Kind, int], tuple[float, float]] = {}

    def under(self, kind: Kind, limit_w: float) -> float:
        """Seconds of a step under a limit: at the highest clock that fits, or by turns at the two around it.

        Raises InputError where no clock fits.
        """
        held_w = LIMIT_SHARE * limit_w
        faster = self.at(kind, 0)
        if faster[1] <= held_w * faster[0]:
            return faster[0]
        above, below = 0, len(CLOCKS) - 1
        slower = self.at(kind, below)
        if slower[1] > held_w * slower[0]:
            least_w = slower[1] / slower[0] / LIMIT_SHARE
            rule = f"at {CLOCKS[-1]:.0%} of its clock {self.accelerator.name} still draws {least_w:.0f} W"
            raise InputError(rule, limit_w, f"{ceil(least_w / 10) * 10}")
        while below > above + 1:
            middle = (above + below) // 2
            seconds, joules = self.at(kind, middle)
            above, below = (middle, below) if joules > held_w * seconds else (above, middle)
        faster, slower = self.at(kind, above), self.at(kind, below)
        over, spare = faster[1] - held_w * faster[0], held_w * slower[0] - slower[1]
        part = spare / (over + spare)
        return part * faster[0] + (1 - part) * slower[0]

    def at(self, kind: Kind, level: int) -> tuple[float, float]:
        """(seconds, joules of an accelerator) of a step in the middle of a class, at a clock, without a limit."""
        if (kind, level) not in self._seen:
            self._seen[kind, level] = self._priced(_shape(kind), self._level(level))
        return self._seen[kind, level]

    def fullest(self) -> Kind:
        """A step of prompts alone that fills the budget of tokens."""
        return -1, -1, _class(self.plain.tables.resolved.limits.max_num_batched_tokens, _TOKENS)

    def _level(self, level: int) -> StepCost:
        if level not in self._levels:
            source = Clocked(self._bundle, CLOCKS[level])
            self._levels[level] = compile_step_cost(self.plain.tables.resolved, source)
        return self._levels[level]

    def _priced(self, shape: BatchShape, cost: StepCost) -> tuple[float, float]:
        seconds = cost.cycle_s(shape)
        log = StepLog()
        log.add(0.0, 1, shape, seconds, 0.0, seconds)
        part = next(iter(priced(cost.tables, log)))
        asked_j = part.device[0, JOULES] + part.host_s[0] * gap_w(self.accelerator)
        return seconds, float(asked_j) * cost.tables.resolved.layout.pipeline_parallel


class CappedStepCost(StepCost):
    """Seconds per engine step under a limit of `cap_w` watts per accelerator. Raises InputError for one too low."""

    def __init__(self, board: PowerLimitedBoard, cap_w: float) -> None:
        plain, unit = board.plain, board.accelerator
        resolved = plain.tables.resolved
        limited = replace(resolved.hardware.node, accelerator=replace(unit, tdp_w=min(cap_w, unit.tdp_w)))
        hardware = replace(resolved.hardware, node=limited)
        super().__init__(replace(plain.tables, resolved=replace(resolved, hardware=hardware)))
        self.plain, self.cap_w, self._board = plain, cap_w, board
        self._factors: dict[Kind, float] = {}
        self._of_kind(board.fullest())

    def cycle_s(self, shape: BatchShape) -> float:
        return self.plain.cycle_s(shape) * self._factor(shape)

    def decode_segment(self, decodes: int, context_sum: int, context_max: int) -> tuple[float, float, int]:
        """A run of decode steps, cut where its context leaves its class."""
        first, slope, steps = self.plain.decode_segment(decodes, context_sum, context_max)
        mean = context_sum / decodes
        kind = decode_kind(decodes, mean)
        factor = self._of_kind(kind)
        return first * factor, slope * factor, min(steps, ceil(_end(kind[1], _CONTEXT) - mean))

    def ranks_segment(self, ranks: Sequence[BatchShape | None]) -> tuple[float, float, int]:
        """Of the fullest rank's kind; step by step where the limit is felt, as its class may change."""
        first, slope, steps = self.plain.ranks_segment(ranks)
        factor = self._factor(_fullest(ranks))
        return first * factor, slope * factor, steps if factor == 1.0 else 1

    def _factor(self, shape: BatchShape) -> float:
        """How many times as long as at the board's own limit."""
        if shape.ranks:
            shape = _fullest(shape.ranks)
        n, tokens = shape.decodes, shape.prefill_tokens
        mean = shape.decode_context_sum / n if n else 0.0
        if not tokens:
            return self._of_kind(decode_kind(n, mean)) if n else 1.0
        return self._of_kind((_class(n, _DECODES), _class(mean, _BESIDE), _class(tokens, _TOKENS)))

    def _of_kind(self, kind: Kind) -> float:
        if kind not in self._factors:
            board = self._board
            self._factors[kind] = board.under(kind, self.cap_w) / board.under(kind, board.accelerator.tdp_w)
        return self._factors[kind]


def _fullest(ranks: Sequence[BatchShape | None]) -> BatchShape:
    return max(
        (s for s in ranks if s is not None), key=lambda s: (s.tokens, s.decode_context_sum), default=BatchShape()
    )


def decode_kind(decodes: int, mean: float) -> Kind:
    """The class of steps that hold decodes alone, with so many tokens of context each."""
    return _class(decodes, _ALONE), _class(mean, _CONTEXT), -1


def _class(value: float, per_doubling: float) -> int:
    """-1 for nothing."""
    return floor(per_doubling * log2(value)) if value >= 1 else -1


def _end(number: int, per_doubling: float) -> float:
    """Where the class ends."""
    return float(2.0 ** ((number + 1) / per_doubling))


def _middle(number: int, per_doubling: float) -> float:
    return float(2.0 ** ((number + 0.5) / per_doubling)) if number >= 0 else 0.0


def _shape(kind: Kind) -> BatchShape:
    """The step in the middle of a class: one prompt at its beginning."""
    alone = kind[2] < 0
    decodes = round(_middle(kind[0], _ALONE if alone else _DECODES))
    context = round(_middle(kind[1], _CONTEXT if alone else _BESIDE))
    tokens = round(_middle(kind[2], _TOKENS))
    return BatchShape(
        prefill_tokens=tokens,
        prefill_pairs=tokens**2 / 2,
        prefill_chunks=min(tokens, 1),
        decodes=decodes,
        decode_context_sum=decodes * context,
        decode_context_max=context,
        logits=decodes + min(tokens, 1),
    )
