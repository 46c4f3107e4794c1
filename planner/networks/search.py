"""The search over the candidates of a request on one kind of accelerator: an Optuna study in order of bounds."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

import optuna
from optuna.trial import TrialState

from catalogs.hardware.specs import Hardware
from planner.networks.candidate import JobCandidate
from planner.networks.job_assessor import JobAssessor, NetworkOutcome
from planner.networks.merit import Merit, preferred
from planner.networks.request import NetworkRequest
from planner.networks.space import Space
from planner.search.optuna_study import CandidateStudy, Params, SearchSettings, storage_faults

Progress = Callable[[int, int], None]  # (done, planned)


@dataclass(slots=True)
class SearchesProgress:
    """The progress of several searches, one after the other, as that of a single one.

    Attributes:
        report: Called with the candidates so far and those that are planned, over all searches; None for no report.
        n_earlier: Candidates of the searches that have ended.
    """

    report: Progress | None = None
    n_earlier: int = 0
    _done: int = 0

    def __call__(self, done: int, planned: int) -> None:
        """Report the candidates of the present search."""
        self._done = done
        if self.report is not None:
            self.report(self.n_earlier + done, self.n_earlier + planned)

    def end_search(self) -> None:
        """Count the candidates of the present search as those of an earlier one."""
        self.n_earlier, self._done = self.n_earlier + self._done, 0


Confirm = Callable[[NetworkOutcome], NetworkOutcome]

#: Trials after which the sampler proposes candidates, as a share of all trials; before, they come in order of bounds. A
#: judgement: the bounds order candidates well, and the sampler needs outcomes to learn from.
_ORDERED: Final = 0.5


@dataclass(slots=True)
class JobSearch:
    """The result of a search.

    Attributes:
        outcomes: The outcomes, in the order in which they were found.
        n_outclassed: Candidates that were skipped, because their bound cannot beat the best outcome.
        overloaded: Candidates whose full batches do not serve the required rate on all of the hardware.
        n_resumed: Outcomes that were read from the storage.
        complete: Whether every candidate was measured or skipped.
        interrupted: Whether the search was interrupted.
    """

    outcomes: list[NetworkOutcome] = field(default_factory=list)
    n_outclassed: int = 0
    overloaded: list[JobCandidate] = field(default_factory=list)
    n_resumed: int = 0
    complete: bool = True
    interrupted: bool = False

    @property
    def held(self) -> list[NetworkOutcome]:
        """Return the outcomes that meet the request, by their scores, then the highest loads first."""
        return sorted((o for o in self.outcomes if o.score is not None), key=lambda o: o.merit.order)

    @property
    def best(self) -> NetworkOutcome | None:
        """Return the best confirmed outcome (see `preferred`); None if there is none."""
        held = [o for o in self.held if o.confirmed]
        return preferred(held, lambda o: o.merit) if held else None


@dataclass(frozen=True, slots=True)
class KindSearch:
    """The search on one kind of accelerator: its candidates, and what was found."""

    hardware: Hardware
    space: Space
    search: JobSearch


def search_jobs(
    candidates: Sequence[JobCandidate],
    assessor: JobAssessor,
    settings: SearchSettings,
    confirm: Confirm,
    progress: Progress | None = None,
) -> JobSearch:
    """Measure candidates in order of their bounds until none is left that can beat the best, or trials are used up.

    Args:
        candidates: The candidates.
        assessor: Measures one candidate.
        settings: The size of the search, and where it is stored.
        confirm: Measures an outcome that may be the best with several seeds.
        progress: Called after each candidate.
    """
    found = JobSearch()
    bounds = {c: assessor.bound(c) for c in candidates}
    merits = {c: Merit(s, assessor.load_bound(c, s), c.distance) for c, s in bounds.items() if math.isfinite(s)}
    ordered = sorted(merits, key=lambda c: merits[c].order)
    found.overloaded = [c for c in candidates if not math.isfinite(bounds[c])]
    if not ordered:
        return found
    run = _Run(assessor, settings, ordered, bounds, found, confirm)
    with storage_faults(settings):
        try:
            run.run(progress)
        except KeyboardInterrupt:
            found.interrupted = True
    left = run.left()
    found.n_outclassed = sum(run.is_outclassed(c) for c in ordered if c not in run.seen)
    found.complete = not left
    return found


@dataclass(slots=True)
class _Run:
    assessor: JobAssessor
    settings: SearchSettings
    ordered: list[JobCandidate]
    bounds: dict[JobCandidate, float]
    found: JobSearch
    confirm: Confirm
    seen: set[JobCandidate] = field(default_factory=set)
    _merits: dict[tuple[JobCandidate, float], Merit] = field(default_factory=dict)

    def run(self, progress: Progress | None) -> None:
        """Measure candidates; the first half of the trials in order of bounds, then as the sampler proposes."""
        sampler = optuna.samplers.TPESampler(seed=self.settings.seed, n_startup_trials=10)
        study = CandidateStudy(_NAMES, {_params(c): c for c in self.ordered}, self.settings, sampler)
        for known, stored in study.stored():
            self._add(known, NetworkOutcome.from_dict(stored, known))
        self.found.n_resumed = len(self.found.outcomes)
        while (left := self.left()) and len(self.seen) < self.settings.n_trials:
            few = len(left) <= self.settings.n_trials - len(self.seen)
            in_order = few or self.found.best is None or len(self.seen) < _ORDERED * self.settings.n_trials
            trial, named = study.ask(left[0] if in_order else None)
            if named not in left:  # the sampler repeats itself, or names no candidate
                study.give_up(trial)
                trial, named = study.ask(left[0])
            candidate = left[0] if named is None else named
            with study.released_if_it_fails(trial):
                outcome = self.assessor(candidate, self.found.best)
                if self._leads(outcome):
                    outcome = self.confirm(outcome)
                study.store(trial, outcome.as_dict())
            _tell(study.optuna, trial, outcome)
            self._add(candidate, outcome)
            if progress is not None:
                progress(len(self.seen), min(len(self.ordered), self.settings.n_trials))

    def _leads(self, outcome: NetworkOutcome) -> bool:
        """Return whether an outcome meets the request and may be better than the best so far."""
        best = self.found.best
        return outcome.score is not None and (best is None or outcome.merit.may_win(best.merit))

    def _add(self, candidate: JobCandidate, outcome: NetworkOutcome) -> None:
        self.seen.add(candidate)
        self.found.outcomes.append(outcome)

    def left(self) -> list[JobCandidate]:
        """Return the candidates that may still be better than the best."""
        return [c for c in self.ordered if c not in self.seen and not self.is_outclassed(c)]

    def is_outclassed(self, candidate: JobCandidate) -> bool:
        """Return whether a candidate cannot win: its bounds are worse than the best, or tie with a simpler one."""
        best = self.found.best
        if best is None:
            return False
        cost = best.merit.highest_tied_score
        if (candidate, cost) not in self._merits:
            load = self.assessor.load_bound(candidate, cost)
            self._merits[candidate, cost] = Merit(self.bounds[candidate], load, candidate.distance)
        return not self._merits[candidate, cost].may_win(best.merit)


_NAMES: Final = ("setup", "max_batch", "queue_delay_s", "instances")


def _params(candidate: JobCandidate) -> Params:
    """Return the parameters that identify a candidate in a study."""
    setup = candidate.setup
    return f"{setup.hardware.text}: {setup.words}", candidate.max_batch, candidate.queue_delay_s, candidate.instances


def study_name(request: NetworkRequest, hardware: str) -> str:
    """Return the name of the study of a request on one kind of hardware: equal names mean equal searches."""
    block = {k: v for k, v in request.as_dict().items() if k not in ("search", "slo_words")}
    text = json.dumps({**block, "searched": hardware, "by": [*_NAMES, "load"]}, sort_keys=True)
    return f"network {hashlib.sha256(text.encode()).hexdigest()[:16]}"


def _tell(study: optuna.Study, trial: optuna.Trial, outcome: NetworkOutcome) -> None:
    if outcome.score is not None:
        study.tell(trial, outcome.score)
    else:
        trial.report(min(outcome.ratio, 10.0), 0)
        study.tell(trial, state=TrialState.PRUNED)
