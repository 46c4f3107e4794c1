"""Choice of the next shape to measure, as a pure function of the candidates and the measurements so far.

Queues (families and dtypes) take turns by the time spent on them. Within a queue the first shape is a corner of the
space. Each further shape is far, in doublings, from all measured shapes and lies where its measured neighbours disagree
most about efficiency. One in HELD_OUT_EVERY shapes is a held-out one. The shapes in `first`, which are those of the
user's models, come before all others, in the same order among themselves. A killed session therefore resumes in the
same order.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt

from calibration.profile.kernels.registry import OTHER_SHARE
from calibration.profile.session.shape import CHECKS, FIT, HELD_OUT, Shape
from catalogs.arrays import FloatArray

#: One shape in this many is a held-out one. A judgement: enough to state an error, and few beside those that are
#: fitted.
HELD_OUT_EVERY: Final = 6

#: Measured neighbours whose disagreement about efficiency counts. A judgement: two may agree by chance.
NEIGHBOURS: Final = 3

#: Doublings between shapes with different text fields (dtype, kind). A judgement: as far as sizes that differ by a
#: factor of 256.
LABEL_DISTANCE: Final = 8.0

#: Weight of the distance alone, where the neighbours agree. A judgement: without it, shapes whose neighbours agree by
#: chance would never be measured, however far away these neighbours are.
TRUST: Final = 0.25


@dataclass(slots=True)
class Queue:
    """The shapes that compete for the same share of the time, and what was measured of them.

    `done` maps positions to log(seconds / roofline), or NaN where the measurement failed. `points` are the coordinates
    of the shapes, Shape (shapes, coordinates).
    """

    shapes: list[Shape]
    share: float
    first: frozenset[int] = frozenset()  # positions to measure before all others
    spent_s: float = 0.0
    done: dict[int, float] = field(default_factory=dict)
    dropped: set[int] = field(default_factory=set)
    points: FloatArray = field(init=False)
    words: npt.NDArray[np.int64] = field(init=False)  # shapes with equal text fields have equal numbers
    tie: FloatArray = field(init=False)

    def __post_init__(self) -> None:
        self.points = np.array([s.coordinates() for s in self.shapes], dtype=np.float64)
        labels = [s.labels() for s in self.shapes]
        number = {label: i for i, label in enumerate(sorted(set(labels)))}
        self.words = np.array([number[label] for label in labels])
        self.tie = np.random.default_rng(len(self.shapes)).uniform(0.0, 1e-3, len(self.shapes))

    def next(self) -> int | None:
        """Return the position of the next shape, or None where none is left."""
        left = [i for i in range(len(self.shapes)) if i not in self.done and i not in self.dropped]
        left = [i for i in left if i in self.first] or left
        fit = [i for i in left if self.shapes[i].role == FIT]
        other = [i for i in left if self.shapes[i].role in (HELD_OUT, CHECKS)]
        if other and (not fit or len(self.done) % HELD_OUT_EVERY == HELD_OUT_EVERY - 1):
            return max(other, key=lambda i: self.tie[i])
        return fit[int(np.argmax(self._scores(np.array(fit))))] if fit else None

    @property
    def is_urgent(self) -> bool:
        """Return whether positions of `first` are left to measure."""
        return any(i not in self.done and i not in self.dropped for i in self.first)

    def _scores(self, positions: npt.NDArray[np.int64]) -> FloatArray:
        known = [i for i, v in self.done.items() if np.isfinite(v) and self.shapes[i].role == FIT]
        if not known:
            corner: FloatArray = np.abs(self.points[positions] - self.points.mean(axis=0)).sum(axis=1)
            return corner + self.tie[positions]
        gap = np.linalg.norm(self.points[positions][:, None, :] - self.points[known][None, :, :], axis=2)
        gap = gap + LABEL_DISTANCE * (self.words[positions][:, None] != self.words[known][None, :])
        nearest = np.argsort(gap, axis=1)[:, :NEIGHBOURS]
        values = np.array([self.done[i] for i in known])[nearest]
        scores: FloatArray = gap.min(axis=1) * (TRUST + values.std(axis=1)) + self.tie[positions]
        return scores


@dataclass(slots=True)
class ShapeQueues:
    """All queues of a session, by name."""

    queues: dict[str, Queue]
    place: dict[str, tuple[str, int]] = field(init=False)

    def __post_init__(self) -> None:
        self.place = {s.key: (name, i) for name, q in self.queues.items() for i, s in enumerate(q.shapes)}

    @classmethod
    def of(cls, shapes: Sequence[Shape], shares: Mapping[str, float], first: Collection[str] = ()) -> ShapeQueues:
        """Sort shapes into queues by `Shape.queue`.

        Args:
            shapes: The shapes to measure.
            shares: Relative share of the time of each queue. A queue that is not named gets a small share.
            first: Keys of the shapes that come before all others.
        """
        by_name: dict[str, list[Shape]] = defaultdict(list)
        for shape in shapes:
            by_name[shape.queue].append(shape)
        urgent = {name: frozenset(i for i, s in enumerate(of) if s.key in first) for name, of in by_name.items()}
        return cls({n: Queue(by_name[n], shares.get(n, OTHER_SHARE), urgent[n]) for n in sorted(by_name)})

    def next(self) -> Shape | None:
        """Return the next shape of the queue with the least time spent for its share, or None where all are empty."""
        order = sorted(self.queues.values(), key=lambda q: (not q.is_urgent, q.spent_s / q.share, -q.share))
        return next((queue.shapes[i] for queue in order if (i := queue.next()) is not None), None)

    def observe(self, key: str, spent_s: float, log_ratio: float) -> None:
        """Record a measured shape; unknown keys are ignored.

        Args:
            key: Key of the shape.
            spent_s: Seconds that measuring it took.
            log_ratio: log(seconds / roofline), or NaN where the measurement failed.
        """
        if key in self.place:
            name, i = self.place[key]
            self.queues[name].done[i] = log_ratio
            self.queues[name].spent_s += spent_s

    def drop(self, keys: Sequence[str]) -> None:
        """Exclude shapes from further choice."""
        for name, i in (self.place[key] for key in keys if key in self.place):
            self.queues[name].dropped.add(i)

    @property
    def left(self) -> list[Shape]:
        """Return the shapes that were not measured."""
        return [s for q in self.queues.values() for i, s in enumerate(q.shapes) if i not in q.done]
