"""The guide to a front as an Optuna sampler: storage, workers that share a study and resuming are Optuna's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import optuna
from optuna.trial import FrozenTrial, TrialState

from planner.front import Guide, Look
from planner.study import Params, space_of

CONSTRAINT = "keeps up and holds its limits"
PRUNED_KEY = "pruned"


class FrontSampler(optuna.samplers.BaseSampler):
    """Proposes the points of a finite set, each once. exhausted: after a proposal that no drawn world asked for."""

    def __init__(self, guide: Guide, names: Sequence[str], points: Sequence[Params]) -> None:
        self._guide, self._names, self._points = guide, tuple(names), list(points)
        self._places = {params: i for i, params in enumerate(points)}
        self._space = space_of(names, points)
        self.exhausted = False

    def infer_relative_search_space(self, study: optuna.Study, trial: FrozenTrial) -> dict[str, Any]:  # noqa: ARG002
        return self._space

    def sample_relative(self, study: optuna.Study, trial: FrozenTrial, search_space: dict[str, Any]) -> dict[str, Any]:  # noqa: ARG002
        looks, busy = self._told(study, trial)
        place = self._guide.choose(looks, busy)
        self.exhausted = place is None
        if place is None:
            place = next((i for i in range(len(self._points)) if i not in looks and i not in busy), 0)
        return dict(zip(self._names, self._points[place], strict=True))

    def sample_independent(self, study: Any, trial: Any, param_name: str, param_distribution: Any) -> Any:  # noqa: ARG002
        raise ValueError(f"a front is searched over its own parameters, not {param_name}")

    def _told(self, study: optuna.Study, own: FrozenTrial) -> tuple[dict[int, Look], set[int]]:
        """What finished trials say of their points, in the order of their numbers; points of running ones."""
        looks, busy = dict[int, Look](), set[int]()
        for trial in study.get_trials(deepcopy=False, states=(TrialState.COMPLETE, TrialState.RUNNING)):
            place = self._places.get(tuple(trial.params.get(name, "") for name in self._names))
            if place is None or trial.number == own.number:
                continue
            if trial.state == TrialState.RUNNING:
                busy.add(place)
            elif place not in looks:
                slack = max(trial.constraints.values(), default=0.0)
                looks[place] = Look(tuple(trial.values), slack, 0, bool(trial.user_attrs.get(PRUNED_KEY)))
        return looks, busy - set(looks)
