"""Search over the candidates that the bounds leave: all of them if there are few, else the most promising.

The first half of the trials follows the order of promise, but placements that failed with other limits come after those
that did not, unless a near miss shows which limit would relieve it. The second half refines the best plan: candidates
that differ from it in one choice come first, and Optuna's TPE sampler proposes others when none of these is left. Until
a plan meets the objectives, every other trial of the first half, and every trial of the second, takes the safest
candidate instead: that a plan exists matters more than how good it is.

No process simulates a candidate twice, and every decision depends on simulated requests, never on the clock, so equal
seeds give equal answers. A journal file or a database stores each finished trial: a later run with the same request
continues, and several processes share the work. Candidates are evaluated one after another, each against the best of
those before it; a `Lookahead` may evaluate the next ones in advance.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

import optuna
from optuna.trial import TrialState

from planner.problem.candidate import Candidate
from planner.search.candidate_tester import Assess, Outcome, apart_from_seats, dominates
from planner.search.optuna_study import CandidateStudy, Params, SearchSettings, storage_faults
from planner.search.ordering import differs_in_one_choice, failed_least_first
from planner.search.workers import Lookahead, SerialLookahead

#: Proposals per trial after which the sampler is considered exhausted.
PROPOSALS_PER_TRIAL: Final = 4

Progress = Callable[[int, int, Outcome | None], None]  # (done, planned, best so far)

Outclassed = Callable[[Candidate, Outcome], bool]

#: Returns whether a candidate cannot win, given the best outcome and that of a candidate that can only be faster.
Settled = Callable[[Candidate, Outcome, Outcome], bool]

#: Returns whether the outcomes found so far answer the question, so that the search ends before its last trial.
Enough = Callable[[Outcome], bool]


@dataclass(slots=True)
class SearchResult:
    """The result of a search.

    Attributes:
        outcomes: Outcomes in the order in which they were found.
        best: The feasible outcome with the best score.
        enumerated: Whether every candidate was evaluated or cannot win.
        interrupted: Whether the search was interrupted.
        n_resumed: Outcomes read from the storage when the search began.
        n_outclassed: Candidates that were skipped because they cannot win.
        superseded: Outcomes of a search whose candidates were searched again.
        n_searches: Number of searches behind the result.
        refused: Candidates that met the objectives in the search, and miss them with all seeds.
    """

    outcomes: list[Outcome] = field(default_factory=list)
    best: Outcome | None = None
    enumerated: bool = True
    interrupted: bool = False
    n_resumed: int = 0
    n_outclassed: int = 0
    superseded: list[Outcome] = field(default_factory=list)
    n_searches: int = 0
    refused: set[Candidate] = field(default_factory=set)

    def add(self, outcome: Outcome) -> None:
        """Add an outcome, which may become the best."""
        self.outcomes.append(outcome)
        if outcome.feasible and (self.best is None or score_of(outcome) < score_of(self.best)):
            self.best = outcome

    def join(self, other: SearchResult) -> None:
        """Add the outcomes of a search over another part of the space."""
        for outcome in other.outcomes:
            self.add(outcome)
        self.enumerated &= other.enumerated
        self.interrupted |= other.interrupted
        self.n_resumed += other.n_resumed
        self.n_outclassed += other.n_outclassed
        self.n_searches += other.n_searches

    def updated(self, again: SearchResult) -> SearchResult:
        """Return the result together with a later search, whose outcomes replace those of the same candidates."""
        candidates = {o.candidate for o in again.outcomes}
        found = SearchResult(enumerated=self.enumerated, n_outclassed=self.n_outclassed, n_resumed=self.n_resumed)
        found.interrupted, found.refused = self.interrupted, self.refused
        found.n_searches = self.n_searches
        for outcome in self.outcomes:
            if outcome.candidate not in candidates:
                found.add(outcome)
        superseded = [o for o in self.outcomes if o.candidate in candidates]
        found.superseded = [*self.superseded, *superseded]
        found.join(again)
        return found

    @property
    def simulated(self) -> set[Candidate]:
        """Return the candidates that were simulated."""
        return {o.candidate for o in (*self.outcomes, *self.superseded)}

    @property
    def n_simulated(self) -> int:
        """Return the number of candidates that were simulated."""
        return len(self.simulated)

    @property
    def n_trials(self) -> int:
        """Return the number of trials: a candidate that two searches simulated counts twice."""
        return len(self.outcomes) + len(self.superseded)

    @property
    def n_requests(self) -> int:
        """Return the number of requests that were simulated."""
        return sum(o.n_requests for o in (*self.outcomes, *self.superseded))

    @property
    def n_pruned(self) -> int:
        """Return the number of candidates whose simulation stopped early."""
        return sum(o.status == "pruned" for o in self.outcomes)


def score_of(outcome: Outcome) -> float:
    """Return the score of an outcome, lower is better; without a score it is infinite."""
    return float("inf") if outcome.score is None else outcome.score


def search(
    candidates: Sequence[Candidate],
    assess: Assess,
    settings: SearchSettings,
    progress: Progress | None = None,
    outclassed: Outclassed | None = None,
    lookahead: Lookahead | None = None,
    safest: Sequence[Candidate] = (),
    enough: Enough | None = None,
    settled: Settled | None = None,
) -> SearchResult:
    """Assess candidates and return their outcomes; after Ctrl-C, the outcomes found so far.

    Args:
        candidates: The candidates in order of promise.
        assess: Measures a candidate.
        settings: The settings of the search.
        progress: Called after each candidate.
        outclassed: Returns whether a candidate cannot beat the best outcome so far; such candidates are skipped.
        lookahead: Evaluates the candidates; by default this process does.
        safest: The candidates in the order in which they are expected to meet the objectives at all.
        enough: Called with each outcome that meets the objectives; the search ends when it returns True.
        settled: Decides about a candidate by the outcome of another one that dominates it (see `dominates`). Such a
            candidate is skipped at its turn, which counts as a trial.
    """
    if not candidates:
        return SearchResult()
    sampler = optuna.samplers.TPESampler(seed=settings.seed, n_startup_trials=10)
    by_params: dict[Params, Candidate] = {
        (" ".join(map(str, c.placement)), c.max_num_seqs, c.max_num_batched_tokens): c for c in candidates
    }
    names = ("layout", "max_num_seqs", "max_num_batched_tokens")
    study = CandidateStudy(names, by_params, settings, sampler)
    run = _Run(
        candidates,
        lookahead or SerialLookahead(assess),
        study,
        outclassed or (lambda _c, _b: False),
        safest,
        enough=enough,
        settled=settled,
        planned=min(len(candidates), settings.n_trials),
    )
    with storage_faults(settings):
        try:
            run.run(progress)
        except KeyboardInterrupt:
            run.result.interrupted = True
    return run.close()


@dataclass(slots=True)
class _Run:
    """The part of one process in a study; other processes may evaluate other candidates at the same time."""

    candidates: Sequence[Candidate]
    lookahead: Lookahead
    study: CandidateStudy[Candidate]
    outclassed: Outclassed
    safest: Sequence[Candidate] = ()
    enough: Enough | None = None
    settled: Settled | None = None
    result: SearchResult = field(default_factory=SearchResult)
    planned: int = 0
    seen: dict[Candidate, Outcome] = field(default_factory=dict)
    _alike: dict[Candidate, list[Outcome]] = field(default_factory=dict)  # `seen` by `apart_from_seats`
    _skipped: set[Candidate] = field(default_factory=set)  # settled at their turn
    _compared: Outcome | None = None  # the best that `_behind` was computed against
    _behind: set[Candidate] = field(default_factory=set)  # outclassed by it
    _claims: dict[Candidate, optuna.Trial] = field(default_factory=dict)  # trials of the next candidates
    _repeats: bool = False  # whether all remaining candidates were begun by other processes
    _sampled: bool = True  # whether the last trial proposed a candidate to evaluate
    _ended: bool = False  # whether an outcome was enough

    def run(self, progress: Progress | None) -> None:
        """Evaluate candidates until there are enough outcomes, or no candidate is left."""
        self._learn()
        self.result.n_resumed = len(self.seen)
        try:
            for _ in range(PROPOSALS_PER_TRIAL * self.planned):
                waiting = self._waiting()
                if not waiting or self._n_done >= self.planned or self._ended:
                    break
                if self._try_one(waiting) and progress is not None:
                    progress(self._n_done, self.planned, self.result.best)
                self._learn()
        finally:  # release the candidates for other processes
            for trial in self._claims.values():
                self.study.give_up(trial)

    def _try_one(self, waiting: Sequence[Candidate]) -> bool:
        """Evaluate one candidate; return whether this gave an outcome."""
        # The first in order is next while there are trials for all candidates, in the first half of the trials, if it
        # refines the best, if no plan is known, and if the sampler's last proposal gave no new candidate; otherwise the
        # sampler chooses.
        enough = len(waiting) <= self.planned - self._n_done
        ordered = not self._refines or self._needs_any_plan or self._is_refinement(waiting[0])
        in_order = enough or ordered or not self._sampled
        wanted = waiting[0] if in_order else None
        if wanted is not None and self._is_settled(wanted):
            self._skipped.add(wanted)
            return True
        self._claim([] if wanted is None else waiting[: 1 + self.lookahead.depth])
        trial, named = self._trial(wanted)
        if trial is None:
            return False
        candidate = named if named in waiting else None
        self._sampled = candidate is not None
        with self.study.released_if_it_fails(trial):
            if candidate is not None:
                # The first outcome usually becomes the best, so work begun in advance of it would be wasted.
                upcoming = [c for c in waiting if c != candidate and not self._is_settled(c)] if self.seen else []
                outcome = self.lookahead.evaluate(candidate, self.result.best, upcoming)
                self._learn()
                if candidate not in self.seen:  # otherwise another process was first
                    self._add(outcome)
                    self.study.store(trial, outcome.as_dict())
        _tell(self.study.optuna, trial, None if named is None else self.seen.get(named))
        return candidate is not None

    def _trial(self, wanted: Candidate | None) -> tuple[optuna.Trial | None, Candidate | None]:
        """Return a trial of `wanted`, or of the sampler's proposal; None if another process has begun it."""
        if wanted in self._claims:
            return self._claims.pop(wanted), wanted
        trial, named = self.study.ask(wanted)
        if not self._repeats and self.study.is_begun_elsewhere(trial):
            self.study.give_up(trial)
            return None, None
        return trial, named

    def _claim(self, upcoming: Sequence[Candidate]) -> None:
        """Reserve the next candidates of this process, so that other processes choose different ones."""
        for candidate in [c for c in self._claims if c not in upcoming]:
            self.study.give_up(self._claims.pop(candidate))
        if not self.study.shared:
            return
        for candidate in upcoming:
            if candidate not in self._claims:
                trial, _ = self._trial(candidate)
                if trial is not None:
                    self._claims[candidate] = trial

    def _learn(self) -> None:
        """Add stored outcomes of earlier runs or of other processes that this process does not have yet."""
        for candidate, found in self.study.stored():
            if candidate not in self.seen:
                self._add(Outcome.from_dict(found, candidate))

    def _waiting(self) -> list[Candidate]:
        """Return the candidates to choose from next: in order of promise, later those first that refine the best.

        Candidates that other processes have begun follow when the rest is done, the last of them first: a dead process
        finishes none of them, and a running one reaches that candidate last.
        """
        best = self.result.best
        left = [c for c in self._in_order() if c not in self.seen and c not in self._skipped]
        if best is not None:
            if best is not self._compared:  # only a new best changes which candidates are behind
                self._compared, self._behind = best, {c for c in self.candidates if self.outclassed(c, best)}
            left = [c for c in left if c not in self._behind]
        begun_elsewhere = self.study.begun_elsewhere()
        free = [c for c in left if c not in begun_elsewhere]
        begun = [c for c in left if c in begun_elsewhere]
        self._repeats = bool(begun) and (not free or self._n_done + len(begun) >= self.planned)
        if self._repeats:
            return begun[::-1]
        return sorted(free, key=self._is_refinement, reverse=True) if self._refines else free

    def _in_order(self) -> Sequence[Candidate]:
        """Return all candidates in the order for the next trial: placements that failed least often come first.

        The order of safety is kept as it is. Its first candidates may share a placement, and sorted by failures they
        would come after all candidates of placements that carry less.
        """
        if not self._selects:
            return self.candidates
        if self._needs_any_plan:
            return self.safest
        missed = ((c, o.binding, o.ratio) for c, o in self.seen.items() if not o.feasible)
        return failed_least_first(self.candidates, missed)

    @property
    def _needs_any_plan(self) -> bool:
        """Return whether the next trial takes the safest candidate, because no plan is known yet."""
        if self.result.best is not None or not self.safest:
            return False
        n_left = self.planned - self._n_done
        return len(self.seen) % 2 == 1 or 2 * n_left <= self.planned + 1

    @property
    def _refines(self) -> bool:
        """Return whether more than half of the trials are done, so that the rest refines the best outcome."""
        return self._selects and self._n_done > self.planned // 2

    @property
    def _n_done(self) -> int:
        """Return the number of trials so far."""
        return len(self.seen) + len(self._skipped)

    @property
    def _selects(self) -> bool:
        """Return whether there are fewer trials than candidates; if not, the order of promise is kept throughout."""
        return len(self.candidates) > self.planned

    def _is_refinement(self, candidate: Candidate) -> bool:
        best = self.result.best
        return best is not None and differs_in_one_choice(candidate, best.candidate)

    def _is_settled(self, candidate: Candidate) -> bool:
        """Return whether the outcome of a candidate that can only be faster shows that this one cannot win."""
        best = self.result.best
        if best is None or self.settled is None:
            return False
        known = (o for o in self._alike.get(apart_from_seats(candidate), ()) if dominates(o, candidate))
        return any(self.settled(candidate, best, outcome) for outcome in known)

    def _add(self, outcome: Outcome) -> None:
        self.seen[outcome.candidate] = outcome
        self._alike.setdefault(apart_from_seats(outcome.candidate), []).append(outcome)
        self.result.add(outcome)
        if outcome.feasible and self.enough is not None and not self._ended:
            self._ended = self.enough(outcome)

    def close(self) -> SearchResult:
        """Return the result, with the number of candidates that cannot win."""
        left = [c for c in self.candidates if c not in self.seen]
        best = self.result.best
        self.result.n_searches = 1
        if best is not None:
            self.result.n_outclassed = sum(c in self._skipped or self.outclassed(c, best) for c in left)
        self.result.enumerated = len(left) == self.result.n_outclassed
        return self.result


def _tell(study: optuna.Study, trial: optuna.Trial, outcome: Outcome | None) -> None:
    """Report an outcome to Optuna, with the constraint value / limit - 1 of the binding objective.

    The outcome is None if the parameters of the trial match no legal candidate.
    """
    ratio = 10.0 if outcome is None else min(outcome.ratio, 10.0)
    feasible = outcome is not None and outcome.feasible
    trial.set_constraint("slo", min(ratio - 1, 0.0) if feasible else max(ratio - 1, 1e-6))
    if outcome is not None and outcome.score is not None:
        study.tell(trial, outcome.score)
    else:
        trial.report(ratio, 0)
        study.tell(trial, state=TrialState.PRUNED)
