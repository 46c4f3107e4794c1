"""Search over the candidates that the bounds leave: everything if there are few, else Optuna's TPE sampler.

A candidate is never simulated twice, and every decision is by simulated requests, never by the clock, so equal seeds
give equal answers. With a journal file each finished trial is kept, and a later run with the same request continues.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from catalogs.errors import InputError
from planner.assess import Assess, Outcome
from planner.candidate import Candidate

if TYPE_CHECKING:
    import optuna

OUTCOME_KEY: Final = "outcome"
#: Proposals per trial before the sampler is taken to have nothing new to say.
PROPOSALS_PER_TRIAL: Final = 4

Progress = Callable[[int, int, Outcome | None], None]  # (done, planned, best so far)


@dataclass(frozen=True, slots=True)
class SearchSettings:
    """n_trials: candidates simulated at most. journal: file that keeps the study; study_name must name the request."""

    n_trials: int
    seed: int
    study_name: str = "plan"
    journal: Path | None = None


@dataclass(slots=True)
class SearchResult:
    """Outcomes in the order they were found; enumerated: every candidate was looked at."""

    outcomes: list[Outcome] = field(default_factory=list)
    best: Outcome | None = None
    enumerated: bool = True
    n_resumed: int = 0

    def add(self, outcome: Outcome) -> None:
        self.outcomes.append(outcome)
        if outcome.feasible and (self.best is None or _score(outcome) < _score(self.best)):
            self.best = outcome

    def join(self, other: SearchResult) -> None:
        """Add the outcomes of a search over another part of the space."""
        for outcome in other.outcomes:
            self.add(outcome)
        self.enumerated = self.enumerated and other.enumerated
        self.n_resumed += other.n_resumed

    @property
    def n_pruned(self) -> int:
        return sum(o.status == "pruned" for o in self.outcomes)


def _score(outcome: Outcome) -> float:
    return float("inf") if outcome.score is None else outcome.score


def search(
    candidates: Sequence[Candidate], assess: Assess, settings: SearchSettings, progress: Progress | None = None
) -> SearchResult:
    """Assess candidates, given in order of promise. KeyboardInterrupt passes at once; the journal stays valid."""
    if not candidates:
        return SearchResult()
    study = _Study(candidates, settings)
    result = SearchResult(enumerated=len(candidates) <= settings.n_trials)
    for outcome in study.resumed():
        result.add(outcome)
    result.n_resumed = len(result.outcomes)
    seen = {o.candidate: o for o in result.outcomes}
    planned = min(len(candidates), settings.n_trials)
    study.pending = [c for c in (candidates if result.enumerated else candidates[: planned // 4 + 1]) if c not in seen]
    for _ in range(PROPOSALS_PER_TRIAL * planned):
        if len(seen) >= planned:
            break
        trial, candidate = study.ask()
        known = seen.get(candidate) if candidate is not None else None
        if candidate is not None and known is None:
            known = seen[candidate] = assess(candidate, result.best)
            result.add(known)
            study.store(trial, known)
            if progress is not None:
                progress(len(seen), planned, result.best)
        study.tell(trial, known)
    return result


class _Study:
    """The Optuna side: three categorical parameters (layout, max_num_seqs, max_num_batched_tokens)."""

    def __init__(self, candidates: Sequence[Candidate], settings: SearchSettings) -> None:
        import optuna

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self.pending: list[Candidate] = []  # to be looked at before the sampler is asked
        self._by_params = {_params(c): c for c in candidates}
        names = ("layout", "max_num_seqs", "max_num_batched_tokens")
        self._space: dict[str, Any] = {
            name: optuna.distributions.CategoricalDistribution(sorted({p[i] for p in self._by_params}))
            for i, name in enumerate(names)
        }
        self._study = _create(settings)

    def resumed(self) -> list[Outcome]:
        stored = (t.user_attrs.get(OUTCOME_KEY) for t in self._study.trials)
        outcomes = [Outcome.from_dict(json.loads(text)) for text in stored if text is not None]
        return [o for o in outcomes if _params(o.candidate) in self._by_params]

    def ask(self) -> tuple[optuna.Trial, Candidate | None]:
        if self.pending:
            self._study.enqueue_trial(dict(zip(self._space, _params(self.pending.pop(0)), strict=True)))
        trial = self._study.ask(self._space)
        key = (trial.params["layout"], trial.params["max_num_seqs"], trial.params["max_num_batched_tokens"])
        return trial, self._by_params.get(key)

    def store(self, trial: optuna.Trial, outcome: Outcome) -> None:
        trial.set_user_attr(OUTCOME_KEY, json.dumps(outcome.as_dict()))

    def tell(self, trial: optuna.Trial, outcome: Outcome | None) -> None:
        """None: the parameters name no legal candidate. Constraint: value / limit - 1 of the binding objective."""
        import optuna

        ratio = 10.0 if outcome is None else min(outcome.ratio, 10.0)
        feasible = outcome is not None and outcome.feasible
        trial.set_constraint("slo", min(ratio - 1, 0.0) if feasible else max(ratio - 1, 1e-6))
        if outcome is not None and outcome.score is not None:
            self._study.tell(trial, outcome.score)
        else:
            trial.report(ratio, 0)
            self._study.tell(trial, state=optuna.trial.TrialState.PRUNED)


def _create(settings: SearchSettings) -> optuna.Study:
    import optuna

    sampler = optuna.samplers.TPESampler(seed=settings.seed, n_startup_trials=10)
    try:
        return optuna.create_study(
            storage=_journal(settings.journal), study_name=settings.study_name, sampler=sampler, load_if_exists=True
        )
    except (ValueError, KeyError):
        raise InputError("the study file is not a journal of earlier searches", str(settings.journal)) from None


def _params(candidate: Candidate) -> tuple[str, int, int]:
    layout = " ".join(str(part) for part in candidate.placement)
    return layout, candidate.max_num_seqs, candidate.max_num_batched_tokens


def _journal(path: Path | None) -> Any:
    if path is None:
        return None
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return JournalStorage(JournalFileBackend(str(path)))
    except OSError as error:
        raise InputError(f"the study file cannot be used ({error.strerror})", str(path)) from None
