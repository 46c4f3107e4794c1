"""The Optuna study behind a search over a finite set: every trial is one of its items.

A sampler proposes items, or the search requests them. A journal file, or a database that many machines can connect to,
stores each finished trial: a later run with the same request continues, and several processes share the work. A process
prefers items that no other process has begun. Two may still evaluate the same item; then the first result counts.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

import optuna
from optuna.storages import RDBStorage
from optuna.trial import TrialState

from catalogs.errors import InputError
from catalogs.io.http import without_password, without_secrets
from planner.search.checksummed_journal import StudyFile, StudyStorage

OUTCOME_KEY: Final = "outcome"

CALIBRATION_KEY: Final = "calibration"

#: Trial attribute that identifies the process that began the trial.
PROCESS_KEY: Final = "process"

_CREATE_PAUSE_S: Final = 0.2

_CREATE_TRIES: Final = 5

#: Parts of database errors when two processes create the tables at the same time.
_RACED: Final = ("already exists", "UNIQUE constraint", "duplicate key")

#: Seconds after which a failing storage is not tried again.
_CREATE_S: Final = 5.0

Params = tuple[str | int | float, ...]

Stored = dict[str, Any]  # the result of an item, as JSON types

Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class SearchSettings:
    """The size of a search, and where its study is stored.

    Attributes:
        n_trials: Most items to simulate.
        seed: Seed of the sampler.
        study_name: Name of the study, which must identify the request.
        journal: File that stores the study.
        storage: Optuna URL of a database that stores the study.
        calibration: Identifies the calibration: a study with another calibration is refused.
    """

    n_trials: int
    seed: int
    study_name: str = "plan"
    journal: Path | None = None
    storage: str | None = None
    calibration: str = ""

    @property
    def kept(self) -> str:
        """Return where the study is stored, without a password; empty if it is not stored."""
        return str(self.journal) if self.journal else without_password(self.storage or "")


class CandidateStudy(Generic[Item]):
    """A study with one categorical parameter for each of `names`; `by_params` holds the items by parameter values."""

    def __init__(
        self,
        names: Sequence[str],
        by_params: Mapping[Params, Item],
        settings: SearchSettings,
        sampler: optuna.samplers.BaseSampler,
        n_objectives: int = 1,
    ) -> None:
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._by_params = by_params
        self._params = {item: params for params, item in by_params.items()}
        self._space = space_of(names, list(by_params))
        self.shared = bool(settings.kept)
        self._own: set[int] = set()
        self._read: set[int] = set()  # numbers of trials whose results were read
        self._sampler = sampler
        self.optuna = _create(settings, n_objectives)

    def stored(self) -> list[tuple[Item, Stored]]:
        """Return the results that trials of all processes have stored since the last call."""
        trials = self.optuna.get_trials(deepcopy=False) if self.shared else []
        new = [t for t in trials if t.number not in self._read and OUTCOME_KEY in t.user_attrs]
        self._read |= {t.number for t in new}
        found = ((self._of(t.params), t.user_attrs[OUTCOME_KEY]) for t in new)
        return [(item, json.loads(text)) for item, text in found if item is not None]

    def begun_elsewhere(self, before: int | None = None) -> set[Item]:
        """Return the items that other processes have begun and not finished, in trials with a number below `before`."""
        if not self.shared:
            return set()
        running = self.optuna.get_trials(deepcopy=False, states=(TrialState.RUNNING,))
        others = (t for t in running if t.number not in self._own and not is_abandoned(t))
        found = (self._of(t.params) for t in others if before is None or t.number < before)
        return {item for item in found if item is not None}

    def is_begun_elsewhere(self, trial: optuna.Trial) -> bool:
        """Return whether another process began the item of `trial` earlier."""
        return self._of(trial.params) in self.begun_elsewhere(before=trial.number)

    def _of(self, params: Mapping[str, Any]) -> Item | None:
        return self._by_params.get(tuple(params.get(name, "") for name in self._space))

    def ask(self, wanted: Item | None = None) -> tuple[optuna.Trial, Item | None]:
        """Return a trial and its item: `wanted`, or the sampler's proposal (None if it matches no item)."""
        self.optuna.sampler = self._sampler
        if wanted is not None:  # not a queue of trials: any worker could take a trial from it
            params = dict(zip(self._space, self._params[wanted], strict=True))
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
                self.optuna.sampler = optuna.samplers.PartialFixedSampler(params, optuna.samplers.RandomSampler())
        trial = self.optuna.ask()
        self._own.add(trial.number)
        if self.shared:  # before the item: a process that dies here leaves no trial whose process is unknown
            trial.set_user_attr(PROCESS_KEY, f"{socket.gethostname()}:{os.getpid()}")
        for name, values in self._space.items():
            trial.suggest_categorical(name, values.choices)
        return trial, self._of(trial.params)

    def store(self, trial: optuna.Trial, found: Mapping[str, Any]) -> None:
        """Store the result of a trial, also in case the worker dies before it finishes the trial."""
        trial.set_user_attr(OUTCOME_KEY, json.dumps(found))

    def give_up(self, trial: optuna.Trial) -> None:
        """Finish a trial without a result."""
        self.optuna.tell(trial, state=TrialState.FAIL, skip_if_finished=True)

    @contextmanager
    def released_if_it_fails(self, trial: optuna.Trial) -> Iterator[None]:
        """Give up a trial if the block raises an error, so that other processes may evaluate its item."""
        try:
            yield
        except BaseException:
            self.give_up(trial)
            raise


def is_abandoned(trial: optuna.trial.FrozenTrial) -> bool:
    """Return whether the process that began `trial` is known to be dead: it ran on this machine and is gone."""
    host, _, pid = trial.user_attrs.get(PROCESS_KEY, "").rpartition(":")
    if host != socket.gethostname() or os.name != "posix":
        return False
    try:
        os.kill(int(pid), 0)
    except OSError as error:
        return isinstance(error, ProcessLookupError)  # otherwise a process of another user
    return False


@contextmanager
def storage_faults(settings: SearchSettings) -> Iterator[None]:
    """Turn failures of the storage during a search into one-line errors.

    Raises:
        InputError: The storage stopped answering.
    """
    try:
        yield
    except optuna.exceptions.StorageInternalError as error:
        why = without_secrets(message_lines(error.__cause__ or error)[0], settings.storage or "")
        rule = f"the storage stopped answering ({why}); it keeps the results so far"
        raise InputError(rule, settings.kept) from None


def space_of(names: Sequence[str], params: Sequence[Params]) -> dict[str, Any]:
    """Return the distributions of an Optuna study: the occurring values by name, ascending."""
    return {
        name: optuna.distributions.CategoricalDistribution(sorted({p[i] for p in params}))
        for i, name in enumerate(names)
    }


def _create(settings: SearchSettings, n_objectives: int) -> optuna.Study:
    began = time.monotonic()
    for tries_left in reversed(range(_CREATE_TRIES)):
        try:
            study = _open(settings, n_objectives)
            break
        except InputError as error:
            raced = any(text in str(error) for text in _RACED)
            if settings.storage is None or not tries_left or not (raced or time.monotonic() - began < _CREATE_S):
                raise
            time.sleep(_CREATE_PAUSE_S)
    with storage_faults(settings):
        made_with = study.user_attrs.get(CALIBRATION_KEY)
        if made_with is None:
            study.set_user_attr(CALIBRATION_KEY, settings.calibration)
        elif made_with != settings.calibration:
            rule = f"the study was made with another calibration ({made_with}, here {settings.calibration})"
            raise InputError(rule, settings.kept, hint="give a new --study file")
    return study


def _open(settings: SearchSettings, n_objectives: int) -> optuna.Study:
    try:
        storage: Any = None
        if settings.journal:
            storage = StudyStorage(StudyFile(settings.journal, _notify))
        elif settings.storage:
            url, options = _engine(settings.storage)
            storage = RDBStorage(url, engine_kwargs=options) if options else url
        return optuna.create_study(
            storage=storage,
            study_name=settings.study_name,
            directions=["minimize"] * n_objectives,
            load_if_exists=True,
        )
    except InputError:
        raise
    except (ValueError, KeyError):
        raise InputError("the study file is not a journal of earlier searches", settings.kept) from None
    except Exception as error:
        if settings.storage is None:
            raise
        raise unusable(settings.storage, error) from None


INSTALL: Final = "pip install '.[postgresql]'"

#: Seconds after which a server that does not answer counts as down.
_CONNECT_S: Final = 10

_POSTGRESQL: Final = ("postgres", "postgresql")


def need_storage(url: str) -> None:
    """Check before a search that the database of an Optuna URL answers.

    Raises:
        InputError: It does not answer, or its driver is missing.
    """
    import sqlalchemy

    name, options = _engine(url)
    try:
        engine = sqlalchemy.create_engine(name, **options)
        engine.connect().close()
        engine.dispose()
    except Exception as error:  # many types: errors of the driver, an invalid URL
        raise unusable(url, error) from None


def unusable(url: str, error: Exception) -> InputError:
    """Return an error with the first line of a driver's message."""
    rule = f"the storage cannot be used ({without_secrets(message_lines(error)[0], url)})"
    return InputError(rule, without_password(url), "sqlite:///study.db")


def message_lines(error: BaseException) -> list[str]:
    """Return the lines of an error's message that are not empty, or its type if there are none."""
    return [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]


def _engine(url: str) -> tuple[str, dict[str, Any]]:
    """Return the URL and engine options: connections to a server are tested before use and have a short timeout."""
    if not url.startswith(_POSTGRESQL):
        return url, {}
    scheme, separator, rest = url.partition("://")
    dialect, _, driver = scheme.partition("+")
    if dialect not in _POSTGRESQL or not separator:
        raise InputError("a PostgreSQL storage is postgresql://USER@HOST/DATABASE", without_password(url))
    drivers = (driver,) if driver else ("psycopg", "psycopg2")  # the default differs between versions of SQLAlchemy
    found = next((d for d in drivers if find_spec(d) is not None), None)
    if found is None:
        raise InputError(f"PostgreSQL needs a driver that is not installed ({drivers[0]})", None, hint=INSTALL)
    options = {"pool_pre_ping": True, "connect_args": {"connect_timeout": _CONNECT_S}}
    return f"postgresql+{found}://{rest}", options


def _notify(line: str) -> None:
    print(line, file=sys.stderr)
