"""Search over the candidates that the bounds leave: everything if there are few, else Optuna's TPE sampler.

A candidate is never simulated twice, and every decision is by simulated requests, never by the clock, so equal seeds
give equal answers. In a journal file or a database each finished trial is kept: a later run with the same request
continues, and several processes share the work.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from catalogs.errors import InputError
from planner.assess import Assess, Outcome
from planner.candidate import Candidate

if TYPE_CHECKING:
    import optuna

OUTCOME_KEY: Final = "outcome"
CALIBRATION_KEY: Final = "calibration"
#: Proposals per trial before the sampler is taken to have nothing new to say.
PROPOSALS_PER_TRIAL: Final = 4
#: A candidate that a worker began with so long ago is looked at by another.
ABANDONED: Final = timedelta(seconds=45)
_POLL_S: Final = 0.2
_CREATE_TRIES: Final = 5

Progress = Callable[[int, int, Outcome | None], None]  # (done, planned, best so far)
Outclassed = Callable[[Candidate, Outcome], bool]


@dataclass(frozen=True, slots=True)
class SearchSettings:
    """n_trials: candidates simulated at most. journal (a file) or storage (an Optuna URL) keeps the study.

    study_name must name the question, calibration what answers it: a study of another calibration is refused.
    """

    n_trials: int
    seed: int
    study_name: str = "plan"
    journal: Path | None = None
    storage: str | None = None
    calibration: str = ""

    @property
    def kept(self) -> str:
        """Where the study is kept; empty where it is not."""
        return str(self.journal or self.storage or "")


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
) -> SearchResult:
    """Assess candidates, given in order of promise; those `outclassed` by the best so far are passed over.

    Ctrl-C ends it: the result holds what was found until then.
    """
    if not candidates:
        return SearchResult()
    run = _Run(candidates, assess, _Study(candidates, settings), SearchResult(), outclassed or (lambda _c, _b: False))
    run.planned = min(len(candidates), settings.n_trials)
    try:
        run.go(progress)
    except KeyboardInterrupt:
        run.result.interrupted = True
    return run.close()


@dataclass(slots=True)
class _Run:
    """One worker of a study: other processes may look at other candidates meanwhile."""

    candidates: Sequence[Candidate]
    assess: Assess
    study: _Study
    result: SearchResult
    outclassed: Outclassed
    planned: int = 0
    seen: dict[Candidate, Outcome] = field(default_factory=dict)
    _sampled: bool = True  # whether the last trial was worth a look

    def go(self, progress: Progress | None) -> None:
        self.learn()
        self.result.n_resumed = len(self.seen)
        for _ in range(PROPOSALS_PER_TRIAL * self.planned):
            waiting = self._await()
            if len(self.seen) >= self.planned or not waiting:
                break
            trial, candidate = self.study.ask(self._next(waiting))
            if not self.study.first_to_ask(trial):
                self.study.give_up(trial)
                continue
            self.learn()  # another worker may just have finished with it
            if candidate is not None and candidate in waiting and candidate not in self.seen:
                self._look(trial, candidate)
                if progress is not None:
                    progress(len(self.seen), self.planned, self.result.best)
            self.study.tell(trial, self.seen.get(candidate) if candidate is not None else None)
            self._sampled = candidate in waiting
            self.learn()

    def _look(self, trial: optuna.Trial, candidate: Candidate) -> None:
        """Assess; where that is interrupted, the candidate is free for others at once."""
        try:
            outcome = self.assess(candidate, self.result.best)
        except BaseException:
            self.study.give_up(trial)
            raise
        self._add(outcome)
        self.study.store(trial, outcome)

    def learn(self) -> None:
        """Outcomes that the storage holds and this worker does not: of an earlier run, or of another worker."""
        for outcome in self.study.stored():
            if outcome.candidate not in self.seen:
                self._add(outcome)

    def _await(self) -> list[Candidate]:
        """What to choose from next, in order of promise; while others are at all that is left, what they find."""
        while True:
            best = self.result.best
            left = [c for c in self.candidates if c not in self.seen and (best is None or not self.outclassed(c, best))]
            taken = self.study.taken()
            free = [c for c in left if c not in taken]
            if free or not left:
                return free
            time.sleep(_POLL_S)
            self.learn()

    def _next(self, waiting: Sequence[Candidate]) -> Candidate | None:
        """The most promising while there is time for all, in the first half of it, and where the sampler's last choice
        was no use; else the sampler's choice."""
        room = self.planned - len(self.seen)
        by_promise = len(waiting) <= room or len(self.seen) <= self.planned // 2 or not self._sampled
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


class _Study:
    """The Optuna side: three categorical parameters (layout, max_num_seqs, max_num_batched_tokens)."""

    def __init__(self, candidates: Sequence[Candidate], settings: SearchSettings) -> None:
        import optuna

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._by_params = {_params(c): c for c in candidates}
        names = ("layout", "max_num_seqs", "max_num_batched_tokens")
        self._space: dict[str, Any] = {
            name: optuna.distributions.CategoricalDistribution(sorted({p[i] for p in self._by_params}))
            for i, name in enumerate(names)
        }
        self._shared = bool(settings.kept)
        self._own: set[int] = set()
        self._read: set[int] = set()  # numbers of trials that were read to the end
        self._sampler = optuna.samplers.TPESampler(seed=settings.seed, n_startup_trials=10)
        self._study = _create(settings)

    def stored(self) -> list[Outcome]:
        """What trials of this process and of others have left since it was last asked for."""
        if not self._shared:
            return []
        found = []
        for trial in self._study.get_trials(deepcopy=False):
            text = None if trial.number in self._read else trial.user_attrs.get(OUTCOME_KEY)
            if text is not None:
                self._read.add(trial.number)
                found.append(Outcome.from_dict(json.loads(text)))
        return [o for o in found if _params(o.candidate) in self._by_params]

    def taken(self) -> set[Candidate]:
        """Candidates another worker has begun with, not so long ago that it must have been killed."""
        if not self._shared:
            return set()
        import optuna

        running = self._study.get_trials(deepcopy=False, states=(optuna.trial.TrialState.RUNNING,))
        since = datetime.now() - ABANDONED
        others = (t for t in running if t.number not in self._own and OUTCOME_KEY not in t.user_attrs)
        found = (self._of(t.params) for t in others if t.datetime_start is not None and t.datetime_start > since)
        return {c for c in found if c is not None}

    def _of(self, params: dict[str, Any]) -> Candidate | None:
        values = [params.get(name) for name in self._space]
        return None if None in values else self._by_params.get((values[0], values[1], values[2]))  # type: ignore[arg-type]

    def ask(self, wanted: Candidate | None) -> tuple[optuna.Trial, Candidate | None]:
        """A trial of `wanted`, or of what the sampler proposes (None where that is no legal candidate)."""
        params = () if wanted is None else zip(self._space, _params(wanted), strict=True)
        self._study.sampler = self._sampler if wanted is None else _wanting(dict(params))
        trial = self._study.ask(self._space)
        self._own.add(trial.number)
        return trial, self._of(trial.params)

    def first_to_ask(self, trial: optuna.Trial) -> bool:
        """Whether no other worker began with the same candidate before. Trials are numbered by the storage; one that
        was numbered lower but has no parameters yet is waited for."""
        if not self._shared:
            return True
        import optuna

        while True:
            running = self._study.get_trials(deepcopy=False, states=(optuna.trial.TrialState.RUNNING,))
            since = datetime.now() - ABANDONED
            earlier = [t for t in running if t.number < trial.number and t.number not in self._own]
            earlier = [t for t in earlier if t.datetime_start is not None and t.datetime_start > since]
            if any(t.params == trial.params for t in earlier):
                return False
            if all(len(t.params) == len(self._space) for t in earlier):
                return True
            time.sleep(_POLL_S / 4)

    def store(self, trial: optuna.Trial, outcome: Outcome) -> None:
        trial.set_user_attr(OUTCOME_KEY, json.dumps(outcome.as_dict()))

    def give_up(self, trial: optuna.Trial) -> None:
        """Nothing was found out."""
        import optuna

        self._study.tell(trial, state=optuna.trial.TrialState.FAIL)

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


def _wanting(params: dict[str, Any]) -> optuna.samplers.BaseSampler:
    """A sampler that proposes exactly these. (A queue of trials would be emptied by whichever worker comes first.)"""
    import optuna

    class Wanting(optuna.samplers.BaseSampler):
        def infer_relative_search_space(self, study: Any, trial: Any) -> dict[str, Any]:  # noqa: ARG002
            return {}

        def sample_relative(self, study: Any, trial: Any, search_space: Any) -> dict[str, Any]:  # noqa: ARG002
            return {}

        def sample_independent(self, study: Any, trial: Any, param_name: str, param_distribution: Any) -> Any:  # noqa: ARG002
            return params[param_name]

    return Wanting()


def _create(settings: SearchSettings) -> optuna.Study:
    for tries_left in reversed(range(_CREATE_TRIES)):
        try:
            study = _open(settings)
            break
        except InputError:
            if settings.storage is None or not tries_left:
                raise
            time.sleep(_POLL_S)  # two workers that create the tables of a database at once
    _check_calibration(study, settings)
    return study


def _open(settings: SearchSettings) -> optuna.Study:
    import optuna

    try:
        return optuna.create_study(
            storage=settings.storage or _journal(settings.journal),
            study_name=settings.study_name,
            load_if_exists=True,
        )
    except (ValueError, KeyError):
        raise InputError("the study file is not a journal of earlier searches", settings.kept) from None
    except Exception as error:
        if settings.storage is None:
            raise
        why = str(error).splitlines()[0]
        raise InputError(f"the storage cannot be used ({why})", settings.storage, "sqlite:///study.db") from None


def _check_calibration(study: optuna.Study, settings: SearchSettings) -> None:
    """The first to use a study says what it is made with; who uses it later must agree."""
    made = study.user_attrs.get(CALIBRATION_KEY)
    if made is None:
        study.set_user_attr(CALIBRATION_KEY, settings.calibration)
    elif made != settings.calibration:
        rule = f"the study was made with another calibration ({made}, here {settings.calibration})"
        raise InputError(rule, settings.kept, "a new --study file")


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
