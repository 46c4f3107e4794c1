"""Search over the candidates that the bounds leave: everything if there are few, else Optuna's TPE sampler.

A candidate is never simulated twice, and every decision is by simulated requests, never by the clock, so equal seeds
give equal answers. In a journal file or a database each finished trial is kept: a later run with the same request
continues, and several processes share the work. A crew may look at several candidates at once: they are finished in the
order in which they were begun with, each judged against the best of those before it, as one process would.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from planner.problem.candidate import Candidate
from planner.search.objectives import Assess, Outcome
from planner.search.study import POLL_S, CandidateStudy, SearchSettings, storage_faults
from planner.search.workers import SingleProcess, WorkerPool

if TYPE_CHECKING:
    import optuna


#: Proposals per trial before the sampler is taken to have nothing new to say.
PROPOSALS_PER_TRIAL: Final = 4

Progress = Callable[[int, int, Outcome | None], None]  # (done, planned, best so far)

Outclassed = Callable[[Candidate, Outcome], bool]


@dataclass(slots=True)
class SearchResult:
    """Outcomes in the order they were found; enumerated: every candidate was looked at or was outclassed."""

    outcomes: list[Outcome] = field(default_factory=list)
    best: Outcome | None = None
    enumerated: bool = True
    interrupted: bool = False
    n_resumed: int = 0
    n_outclassed: int = 0

    def add(self, outcome: Outcome) -> None:
        self.outcomes.append(outcome)
        if outcome.feasible and (self.best is None or _score(outcome) < _score(self.best)):
            self.best = outcome

    def join(self, other: SearchResult) -> None:
        """Add the outcomes of a search over another part of the space."""
        for outcome in other.outcomes:
            self.add(outcome)
        self.enumerated = self.enumerated and other.enumerated
        self.interrupted = self.interrupted or other.interrupted
        self.n_resumed += other.n_resumed
        self.n_outclassed += other.n_outclassed

    @property
    def n_pruned(self) -> int:
        return sum(o.status == "pruned" for o in self.outcomes)


def _score(outcome: Outcome) -> float:
    return float("inf") if outcome.score is None else outcome.score


def search(
    candidates: Sequence[Candidate],
    assess: Assess,
    settings: SearchSettings,
    progress: Progress | None = None,
    outclassed: Outclassed | None = None,
    crew: WorkerPool | None = None,
) -> SearchResult:
    """Assess candidates, given in order of promise; those `outclassed` by the best so far are passed over.

    crew: who assesses, where it is not this process. Ctrl-C ends it: the result holds what was found until then.
    """
    if not candidates:
        return SearchResult()
    study = _study(candidates, settings)
    run = _Run(candidates, crew or SingleProcess(assess), study, SearchResult(), outclassed or (lambda _c, _b: False))
    run.planned = min(len(candidates), settings.n_trials)
    with storage_faults(settings):
        try:
            run.go(progress)
        except KeyboardInterrupt:
            run.result.interrupted = True
    return run.close()


@dataclass(frozen=True, slots=True)
class _Begun:
    """A trial on its way. candidate: None where there is nothing to look at."""

    trial: optuna.Trial
    named: Candidate | None  # what the trial's parameters say
    candidate: Candidate | None
    best: Outcome | None  # when it was begun with
    sampled: bool  # whether the trial before it was worth a look


@dataclass(slots=True)
class _Run:
    """One worker of a study: other processes may look at other candidates meanwhile."""

    candidates: Sequence[Candidate]
    crew: WorkerPool
    study: CandidateStudy[Candidate]
    result: SearchResult
    outclassed: Outclassed
    planned: int = 0
    seen: dict[Candidate, Outcome] = field(default_factory=dict)
    begun: deque[_Begun] = field(default_factory=deque)
    _proposals: int = 0
    _sampled: bool = True  # whether the last trial was worth a look

    def go(self, progress: Progress | None) -> None:
        self.learn()
        self.result.n_resumed = len(self.seen)
        try:
            while self._begin_ahead():
                if self._finish(self.begun[0]) and progress is not None:
                    progress(len(self.seen), self.planned, self.result.best)
                self.begun.popleft()
                self.learn()
        finally:  # where it is interrupted, what was begun with is free for others at once
            for begun in self.begun:
                self.study.give_up(begun.trial)

    def _begin_ahead(self) -> bool:
        """Begin with as many candidates as the crew likes; whether any is under way.

        The sampler is asked when all before is known, as in one process; what is next in line is looked at meanwhile.
        """
        while len(self.begun) < self.crew.ahead and self._proposals < PROPOSALS_PER_TRIAL * self.planned:
            if len(self.seen) + len(self.begun) >= self.planned:
                break
            waiting = self._await()
            wanted = self._next(waiting) if waiting else None
            if waiting and (wanted is not None or not self.begun):
                self._begin(wanted, waiting)
            if not waiting or (wanted is None and self.begun):
                for candidate in waiting[: self.crew.ahead - len(self.begun)]:
                    self.crew.begin(candidate)
                break
        return bool(self.begun)

    def _begin(self, wanted: Candidate | None, waiting: Sequence[Candidate]) -> None:
        self._proposals += 1
        trial, named = self.study.ask(wanted)
        if not self.study.first_to_ask(trial):
            self.study.give_up(trial)
            return
        candidate = named if named in waiting else None
        self.begun.append(_Begun(trial, named, candidate, self.result.best, self._sampled))
        self._sampled = candidate is not None
        if candidate is not None:
            self.crew.begin(candidate)

    def _finish(self, begun: _Begun) -> bool:
        """Whether an outcome was found."""
        self.learn()  # another worker may just have finished with it
        candidate, best = begun.candidate, self.result.best
        looked = candidate is not None and candidate not in self.seen
        if candidate is not None and looked:
            if best is not None and best != begun.best and self.outclassed(candidate, best):
                self._drop(begun)
                return False
            outcome = self.crew.outcome(candidate, best)
            self._add(outcome)
            self.study.store(begun.trial, outcome.as_dict())
        _tell(self.study.optuna, begun.trial, self.seen.get(begun.named) if begun.named is not None else None)
        return looked

    def _drop(self, begun: _Begun) -> None:
        """One process would not have begun with it: outclassed by what was found since."""
        self.study.give_up(begun.trial)
        self._proposals -= 1
        if len(self.begun) == 1:
            self._sampled = begun.sampled

    def learn(self) -> None:
        """Outcomes that the storage holds and this worker does not: of an earlier run, or of another worker."""
        for candidate, found in self.study.stored():
            if candidate not in self.seen:
                self._add(Outcome.from_dict(found, candidate))

    def _await(self) -> list[Candidate]:
        """What to choose from next, in order of promise; while others are at all that is left, what they find."""
        own = {b.candidate for b in self.begun}
        while True:
            best = self.result.best
            left = [c for c in self.candidates if c not in self.seen and c not in own]
            left = [c for c in left if best is None or not self.outclassed(c, best)]
            taken = self.study.taken()
            free = [c for c in left if c not in taken]
            if free or not left or own:
                return free
            time.sleep(POLL_S)
            self.learn()

    def _next(self, waiting: Sequence[Candidate]) -> Candidate | None:
        """The most promising while there is time for all, in the first half of it, and where the sampler's last choice
        was no use; else the sampler's choice."""
        done = len(self.seen) + len(self.begun)
        by_promise = len(waiting) <= self.planned - done or done <= self.planned // 2 or not self._sampled
        return waiting[0] if by_promise else None

    def _add(self, outcome: Outcome) -> None:
        self.seen[outcome.candidate] = outcome
        self.result.add(outcome)

    def close(self) -> SearchResult:
        left = [c for c in self.candidates if c not in self.seen]
        best = self.result.best
        self.result.n_outclassed = 0 if best is None else sum(self.outclassed(c, best) for c in left)
        self.result.enumerated = len(left) == self.result.n_outclassed
        return self.result


def _study(candidates: Sequence[Candidate], settings: SearchSettings) -> CandidateStudy[Candidate]:
    """Three categorical parameters; what is not asked for by promise, Optuna's TPE sampler proposes."""
    import optuna

    sampler = optuna.samplers.TPESampler(seed=settings.seed, n_startup_trials=10)
    names = ("layout", "max_num_seqs", "max_num_batched_tokens")
    return CandidateStudy(names, {_params(c): c for c in candidates}, settings, sampler)


def _tell(study: optuna.Study, trial: optuna.Trial, outcome: Outcome | None) -> None:
    """None: the parameters name no legal candidate. Constraint: value / limit - 1 of the binding objective."""
    import optuna

    ratio = 10.0 if outcome is None else min(outcome.ratio, 10.0)
    feasible = outcome is not None and outcome.feasible
    trial.set_constraint("slo", min(ratio - 1, 0.0) if feasible else max(ratio - 1, 1e-6))
    if outcome is not None and outcome.score is not None:
        study.tell(trial, outcome.score)
    else:
        trial.report(ratio, 0)
        study.tell(trial, state=optuna.trial.TrialState.PRUNED)


def _params(candidate: Candidate) -> tuple[str, int, int]:
    layout = " ".join(str(part) for part in candidate.placement)
    return layout, candidate.max_num_seqs, candidate.max_num_batched_tokens
