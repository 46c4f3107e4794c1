"""The cost of a point and the decision whether to measure it, as pure functions of the rows so far.

Seconds and memory of a run are predicted by non-negative weights of the physical terms once enough rows were measured.
Before that they are a generous multiple of the roofline and of the formula. A resumed session decides like the
interrupted one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from calibration.families.nonnegative import nonnegative
from calibration.profile.session.session import Row
from calibration.whole_models.regression_terms import TERM_COLUMNS, physical_terms
from calibration.whole_models.workloads import SINGLE_RUN_S, Point

#: Measured rows from which weights are fitted. A judgement: fewer rows do not determine the weights.
ENOUGH: Final = 8

#: Assumed multiple of the roofline before any row was measured. A judgement: generous, so that the first point fits.
SLOWER: Final = 3.0

#: Factor on predicted seconds, so that a point whose prediction is too low still ends within the budget. A judgement.
MARGIN: Final = 1.3

#: Factor on predicted memory, so that a point whose prediction is too low still fits. A judgement.
MEMORY_MARGIN: Final = 1.15

#: Share of the free memory that one run may take. A judgement: the rest is for what the prediction does not count.
FREE_SHARE: Final = 0.85

#: Share of the budget that one point may take. A judgement: fifty points at least fit into a budget.
POINT_SHARE: Final = 0.02

#: Share of the budget that the first point of a model with a batch size may take. A judgement: with less, a short
#: budget would measure no large batch.
FIRST_SHARE: Final = 0.1

#: Share of the budget that the repeats of a point may take. A judgement: a tenth of POINT_SHARE.
REPEATS_SHARE: Final = 1 / 500

#: Bounds of the time of repeats, seconds. A judgement: short runs are repeated often, long ones a few times.
REPEATS_S: Final = (0.3, 5.0)

#: A point of this duration is measured with any budget, seconds. A judgement.
LEAST_POINT_S: Final = 4.0

#: Assumed duration of the small runs that precede the timed ones, seconds. A judgement.
AROUND_S: Final = 0.7

#: A model with fewer rows is predicted from the ratios of its times to the roofline. A judgement.
EARLY_ROWS: Final = 4


@dataclass(frozen=True, slots=True)
class PlannedPoint:
    """A point with the columns of its row that are known before it is measured (physics.py)."""

    point: Point
    columns: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class SessionLimits:
    """The time and memory that a session may take.

    `free_bytes` is the memory for a run of the candidate's model with its weights loaded.
    """

    budget_s: float
    spent_s: float
    free_bytes: float

    @property
    def point_s(self) -> float:
        """Return the seconds that one point may take."""
        return max(POINT_SHARE * self.budget_s, LEAST_POINT_S)

    @property
    def first_point_s(self) -> float:
        """Return the seconds that the first point of a model with a batch size may take."""
        return max(FIRST_SHARE * self.budget_s, self.point_s)

    @property
    def repeats_s(self) -> float:
        """Return the seconds that the repeats of one point may take."""
        return min(max(REPEATS_SHARE * self.budget_s, REPEATS_S[0]), REPEATS_S[1])


@dataclass(frozen=True, slots=True)
class Decision:
    """Whether to measure a candidate, the reason where not, and the predicted seconds and memory."""

    measure: bool
    reason: str
    seconds: float
    growth_bytes: float


def decide(candidate: PlannedPoint, rows: Sequence[Row], limits: SessionLimits) -> Decision:
    """Decide whether to measure a candidate.

    It is rejected for its time, for its memory, or because a smaller point of the model ran out of memory. The first
    point of a model may take the rest of the budget, because nothing is known about the model before it, and the first
    point with another batch size may take more than later ones.
    """
    seconds = point_seconds(candidate, run_seconds(candidate, rows), limits.repeats_s)
    point, growth, reason = candidate.point, growth_bytes(candidate, rows), ""
    sizes = ("batch", "input_tokens", "output_tokens")
    smaller = [r for r in rows if all(r[size] <= getattr(point, size) for size in sizes)]
    batches = {r["batch"] for r in rows if r["model"] == point.model}
    most_s = limits.point_s if point.batch in batches else limits.first_point_s
    failed = next((r["key"] for r in smaller if r["status"] == "oom" and r["model"] == point.model), None)
    if failed is not None:
        reason = f"it is no smaller than {failed}, which ran out of memory"
    elif growth > FREE_SHARE * limits.free_bytes:
        free = f"{limits.free_bytes / 1e9:.1f} GB are free"
        reason = f"it would need {growth / 1e9:.1f} GB in addition to the weights, but {free}"
    elif seconds > most_s and batches:
        reason = f"it would take {seconds:.0f} s, but one point may take {most_s:.0f} s of this budget"
    elif limits.spent_s + seconds > limits.budget_s:
        left = max(limits.budget_s - limits.spent_s, 0.0)
        reason = f"it would take {seconds:.0f} s, but {left:.0f} s of the budget were left"
    return Decision(not reason, reason, seconds, growth)


def run_seconds(candidate: PlannedPoint, rows: Sequence[Row]) -> float:
    """Return the predicted seconds of one generation."""
    good = [r for r in rows if r["status"] == "ok"]
    mine = [r for r in good if r["model"] == candidate.point.model]
    if len(good) >= ENOUGH and len(mine) >= EARLY_ROWS:
        return MARGIN * _fitted("total_s", mine if len(mine) >= ENOUGH else good, candidate, "total_s")
    ratios = sorted(r["total_s"] / r["roofline_s"] for r in (mine or good))
    worst = MARGIN * ratios[-1] if ratios else SLOWER
    return float(candidate.columns["roofline_s"]) * worst


def point_seconds(candidate: PlannedPoint, run_s: float, repeats_s: float) -> float:
    """Return the predicted seconds of all runs of a point.

    They are the run for memory, the timed runs, and a short run of a single sequence that counts operations.
    """
    timed = max(run_s * (1.0 if run_s > SINGLE_RUN_S else 2.0), min(repeats_s, 30 * run_s))
    return AROUND_S + run_s * (1.0 + 1.0 / candidate.point.batch) + timed


def growth_bytes(candidate: PlannedPoint, rows: Sequence[Row]) -> float:
    """Return the predicted bytes that a run needs in addition to the weights."""
    good = [r for r in rows if r["status"] == "ok" and (r.get("memory_growth_bytes") or 0.0) > 0.0]
    if len(good) >= ENOUGH:
        return MEMORY_MARGIN * _fitted("peak_memory_bytes", good, candidate, "memory_growth_bytes")
    c = candidate.columns
    return float(
        1e8 + 1.5 * c["kv_cache_bytes"] + 4 * c["activation_bytes"] + 4 * c["score_bytes"] + 4 * c["logits_bytes"]
    )


def _fitted(terms_of: str, rows: Sequence[Row], candidate: PlannedPoint, column: str) -> float:
    """Predict `column` by weights of physical terms fitted to the rows, without the bytes of the model's weights."""
    table = {c: np.array([r[c] for r in (*rows, candidate.columns)], dtype=np.float64) for c in TERM_COLUMNS}
    if column == "memory_growth_bytes":
        table["weight_bytes"][:] = 0.0
    x = physical_terms(table, terms_of)
    y = np.array([r[column] for r in rows], dtype=np.float64)
    return float(x[-1] @ nonnegative(x[:-1], y))
