"""The search for a front: what the guide asks for is simulated, told to the study, and never simulated again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from planner.front import Guide, Look, members
from planner.study import Params, SearchSettings, Study, storage_faults

if TYPE_CHECKING:
    import optuna

    from planner.front_sampler import FrontSampler

FrontTell = Callable[[int, int, int], None]  # (looked at, at most, on the front so far)
#: Proposals per look before other workers are taken to have everything else.
_PROPOSALS = 4


class FrontSpace(Protocol):
    """A finite set of points, each with a guess and a way to find out."""

    @property
    def names(self) -> tuple[str, ...]:
        """Of the parameters."""

    @property
    def params(self) -> list[Params]:
        """Of every point, by names; no two are equal."""

    def guide(self, seed: int) -> Guide:
        """Where to look."""

    def look(self, index: int, front: list[tuple[float, ...]]) -> Look:
        """Simulate one point. front: values of the front so far, which a point far behind need not be run against."""


@dataclass(slots=True)
class FrontResult:
    """looks: by index, in order. exhausted: no other point is thought to be on the front."""

    looks: dict[int, Look] = field(default_factory=dict)
    exhausted: bool = False
    interrupted: bool = False
    n_resumed: int = 0

    @property
    def members(self) -> list[int]:
        return members(self.looks)

    @property
    def n_pruned(self) -> int:
        return sum(look.pruned for look in self.looks.values())

    @property
    def n_requests(self) -> int:
        """Simulated, of runs that were resumed too."""
        return sum(look.n_requests for look in self.looks.values())


def search_front(space: FrontSpace, settings: SearchSettings, tell: FrontTell | None = None) -> FrontResult:
    """Look at no more than settings.n_trials points. Ctrl-C ends it: what was found until then stands."""
    from planner.front_sampler import FrontSampler

    params, guide = space.params, space.guide(settings.seed)
    sampler = FrontSampler(guide, space.names, params)
    with storage_faults(settings):
        by_params = {p: i for i, p in enumerate(params)}
        study = Study(space.names, by_params, settings, sampler, n_objectives=len(guide.known))
        run = _Run(space, study, sampler, min(settings.n_trials, len(params)))
        try:
            run.go(tell)
        except KeyboardInterrupt:
            run.result.interrupted = True
    return run.result


@dataclass(slots=True)
class _Run:
    space: FrontSpace
    study: Study[int]
    sampler: FrontSampler
    most: int
    result: FrontResult = field(default_factory=FrontResult)

    def go(self, tell: FrontTell | None) -> None:
        self._learn()
        self.result.n_resumed = len(self.result.looks)
        for _ in range(_PROPOSALS * self.most):
            if len(self.result.looks) >= self.most:
                break
            trial, point = self.study.ask()
            if self.sampler.exhausted or point is None:
                self.study.give_up(trial)
                break
            if self.study.first_to_ask(trial):
                self._look(trial, point)
            else:
                self.study.give_up(trial)
            self._learn()
            if tell is not None:
                tell(len(self.result.looks), self.most, len(self.result.members))
        self.result.exhausted = self.sampler.exhausted or len(self.result.looks) == len(self.space.params)

    def _look(self, trial: optuna.Trial, point: int) -> None:
        try:
            front = [self.result.looks[i].values for i in self.result.members]
            look = self.space.look(point, front)
        except BaseException:  # free for others at once
            self.study.give_up(trial)
            raise
        self.result.looks[point] = look
        self.study.store(trial, as_dict(look))
        _tell(self.study.optuna, trial, look)

    def _learn(self) -> None:
        """Looks that the storage holds and this worker does not."""
        for point, stored in self.study.stored():
            self.result.looks.setdefault(point, from_dict(stored))


def as_dict(look: Look) -> dict[str, Any]:
    return {"values": look.values, "slack": look.slack, "n_requests": look.n_requests, "pruned": look.pruned}


def from_dict(stored: dict[str, Any]) -> Look:
    return Look(tuple(stored["values"]), stored["slack"], stored["n_requests"], stored["pruned"])


def _tell(study: optuna.Study, trial: optuna.Trial, look: Look) -> None:
    """Optuna keeps finite values of every objective, and what does not hold as a constraint."""
    from planner.front_sampler import CONSTRAINT, PRUNED_KEY

    trial.set_constraint(CONSTRAINT, look.slack if look.slack < float("inf") else 1e9)
    if look.pruned:
        trial.set_user_attr(PRUNED_KEY, True)
    study.tell(trial, [min(v, 1e12) for v in look.values])
