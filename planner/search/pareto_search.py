"""The search for a Pareto front: each point that the sampler proposes is simulated once and reported to the study."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Final, Protocol

import optuna

from planner.search.optuna_study import CandidateStudy, Params, SearchSettings, storage_faults
from planner.search.pareto_sampler import ParetoOptunaSampler, ParetoSample, ParetoSampler, members

FrontProgress = Callable[[int, int, int], None]  # (points simulated, most points, points on the front)

#: Proposals per sample after which other workers are assumed to have taken all other points.
_PROPOSALS: Final = 4


@dataclass(slots=True)
class ParetoResult:
    """The result of a front search.

    `samples` holds the samples by index, in order; `exhausted` means that no other point is likely on the front.
    """

    samples: dict[int, ParetoSample] = field(default_factory=dict)
    exhausted: bool = False
    interrupted: bool = False
    n_resumed: int = 0

    @property
    def members(self) -> list[int]:
        """Return the indices of the points on the front."""
        return members(self.samples)


class ParetoSearchSpace(Protocol):
    """A finite set of points, each with an estimate and a simulation."""

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names of the parameters."""

    @property
    def params(self) -> list[Params]:
        """Return the parameters of every point, in the order of `names`; all differ."""

    def guide(self, seed: int) -> ParetoSampler:
        """Return the sampler that chooses the points to simulate."""

    def simulate(self, index: int, front: list[tuple[float, ...]]) -> ParetoSample:
        """Simulate one point, briefly if it is far behind the values of the `front` so far."""


def search_front(
    space: ParetoSearchSpace, settings: SearchSettings, progress: FrontProgress | None = None
) -> ParetoResult:
    """Simulate at most `settings.n_trials` points; after Ctrl-C, return the result so far."""
    params, guide = space.params, space.guide(settings.seed)
    sampler = ParetoOptunaSampler(guide, space.names, params)
    with storage_faults(settings):
        by_params = {p: i for i, p in enumerate(params)}
        study = CandidateStudy(space.names, by_params, settings, sampler, n_objectives=len(guide.known))
        run = _Run(space, study, sampler, min(settings.n_trials, len(params)))
        try:
            run.run(progress)
        except KeyboardInterrupt:
            run.result.interrupted = True
    return run.result


@dataclass(slots=True)
class _Run:
    """The part of one process in a study; other processes may simulate other points at the same time."""

    space: ParetoSearchSpace
    study: CandidateStudy[int]
    sampler: ParetoOptunaSampler
    n_most: int
    result: ParetoResult = field(default_factory=ParetoResult)

    def run(self, progress: FrontProgress | None) -> None:
        """Simulate the points that the sampler proposes, until there are enough or the sampler is exhausted."""
        result, samples = self.result, self.result.samples
        self._learn()
        result.n_resumed = len(samples)
        for _ in range(_PROPOSALS * self.n_most):
            if len(samples) >= self.n_most:
                break
            trial, point = self.study.ask()
            if self.sampler.exhausted or point is None:
                self.study.give_up(trial)
                break
            if self.study.is_begun_elsewhere(trial):
                self.study.give_up(trial)
            else:
                self._simulate(trial, point)
            self._learn()
            if progress is not None:
                progress(len(samples), self.n_most, len(result.members))
        result.exhausted = self.sampler.exhausted or len(samples) == len(self.space.params)

    def _simulate(self, trial: optuna.Trial, point: int) -> None:
        samples = self.result.samples
        with self.study.released_if_it_fails(trial):
            sample = self.space.simulate(point, [samples[i].values for i in self.result.members])
        self._learn()
        if point not in samples:  # otherwise another process was first
            samples[point] = sample
            self.study.store(trial, asdict(sample))
        self.sampler.tell(self.study.optuna, trial, sample)

    def _learn(self) -> None:
        """Add the stored samples that this worker does not have yet."""
        for point, stored in self.study.stored():
            self.result.samples.setdefault(point, ParetoSample.of(stored))
