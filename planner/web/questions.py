"""A planning question in its four spellings: JSON, scenario file, command line and URL query.

All of them derive from the keys of `PlanRequest`. A question that a browser or a program sends never reads or writes a
file of the server by its path, and leaves to the server how a search is stored and by how many processes it runs.
"""

from __future__ import annotations

import hashlib
import json
import os
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal
from urllib.parse import urlencode

import yaml

from catalogs.errors import InputError, nearest_name
from catalogs.io.json_files import check_values
from catalogs.io.yaml_loader import dump_yaml
from catalogs.ui.installation import own_version
from planner.problem.request_keys import RequestKey, plan_keys
from planner.web.option_names import key_names
from planner.web.uploads import PREFIX, LocalFile, Uploads, is_hugging_face_id, replaced, unique_names, with_names

if TYPE_CHECKING:
    from planner.networks.request import NetworkRequest
    from planner.problem.request import PlanRequest

#: Keys that the server sets: where a search is stored, and where it runs.
SERVER_KEYS: Final = ("search.study", "search.workers", "search.distributed")

_FIXED: Final = "fixed."

#: Keys that a title states where they differ from their defaults.
_TITLE_KEYS: Final = ("rate", "users", "agents", "workload", "engine", "objective", "confidence")

#: What a plan is for; plans for different subjects have no figures in common.
Subject = Literal["language", "agents", "network"]


@dataclass(frozen=True, slots=True)
class Question:
    """A valid planning question.

    Attributes:
        scenario: The keys that differ from their defaults, as a scenario file holds them; uploads by their reference.
        keys: The same keys by dotted name, with files by their path on this machine.
        files: The uploads that the question names.
    """

    scenario: dict[str, Any]
    keys: dict[str, Any]
    files: tuple[LocalFile, ...]

    @property
    def title(self) -> str:
        """Return the question in a few words."""
        named = self._named(self.scenario)
        objectives = ", ".join(named.get("slo", ()))
        given = {name: named[name] for name in _TITLE_KEYS if named.get(name) is not None}
        further = [
            f"{name} {value:g}" if isinstance(value, float) else f"{name} {value}" for name, value in given.items()
        ]
        return "; ".join([f"{named['model']} on {named['hardware']}: {objectives}", *further])

    @property
    def key(self) -> str:
        """Return the key of the answer."""
        return result_key("plan", self.scenario)

    def spellings(self) -> dict[str, Any]:
        """Return the question as JSON, URL query, command line and scenario file, with the key of its answer."""
        return {
            "question": self.scenario,
            "query": to_query(with_references(self.keys, self.files)),
            "command": self._command(),
            "scenario": dump_yaml(self._named(self.scenario)),
            "key": self.key,
            "version": own_version(),
            "calibration": calibration_digest(),
        }

    def _command(self) -> str:
        from planner.problem.scenario import arguments_of

        named = self._named(self.keys)
        if is_network_question(self.keys):
            from planner.networks.reproduction import command_of_keys

            return command_of_keys(named)
        return shlex.join(["plan", *arguments_of(named | {"seed": self.keys.get("seed", 0)})])

    def _named(self, value: Any) -> Any:
        """Return a value with each upload under its original name."""
        names = unique_names(list(self.files))
        paths = {str(file.path): names[file.reference] for file in self.files} | names
        return replaced(value, paths)


def read_keys(
    body: Mapping[str, Any], uploads: Uploads, owner: str, what: str
) -> tuple[dict[str, Any], tuple[LocalFile, ...]]:
    """Return the keys of a JSON body by dotted name, with files by their path, and the uploads that it names.

    Args:
        body: The keys of a scenario file, nested or dotted.
        uploads: The uploaded files.
        owner: The user; a question names only uploads of its own user.
        what: Name of the body for messages, for example "the question".

    Raises:
        InputError: A key is unknown or set by the server, or a value names a file of the server.
    """
    from planner.problem.scenario import scenario_keys

    check_values(body, what)
    local, files = uploads.local(dict(body), owner)
    keys = scenario_keys(local, what)
    for name in SERVER_KEYS:
        if keys.get(name) is not None:
            raise InputError(f"the server sets {name}", keys[name], hint=f"leave {name} out")
    return keys, files


def with_references(value: Any, files: Iterable[LocalFile]) -> Any:
    """Return a value with each path of an upload replaced by its reference."""
    paths = {str(file.path): file.reference for file in files}
    return replaced(value, paths)


def read_question(body: Mapping[str, Any], uploads: Uploads, owner: str) -> Question:
    """Return the question of a JSON body, which holds the keys of a scenario file.

    Raises:
        InputError: A key is missing, unknown or invalid, or names a file of the server.
    """
    from planner.problem.scenario import keys_of

    keys, files = read_keys(body, uploads, owner, "the question")
    with shown_names(files):
        request = any_request(keys)
    return Question(with_references(request.scenario(), files), keys_of(request), files)


def is_network_question(keys: Mapping[str, Any]) -> bool:
    """Return whether the model of a question is a network and not a language model."""
    from catalogs.deployments.network_deployment import is_network

    return is_network(str(keys.get("model") or ""))


def subject_of(question: Mapping[str, Any], uploads: Uploads, owner: str) -> Subject | None:
    """Return what the question of a plan is for, with uploads by their reference; None if its model was deleted."""
    if question.get("agents") is not None:
        return "agents"
    model = str(question.get("model") or "")
    if model.startswith(PREFIX):
        try:
            model = uploads.stored(model, owner).name
        except InputError:
            return None
    return "network" if is_network_question({"model": model}) else "language"


def any_request(keys: Mapping[str, Any]) -> PlanRequest | NetworkRequest:
    """Return the request for a language model or for a network that the keys describe.

    Raises:
        InputError: A key is missing, unknown or invalid, or is not of this kind of model.
    """
    if is_network_question(keys):
        from planner.networks.request import network_request

        return network_request(keys)
    from catalogs.deployments.network_deployment import refuse_misspelled_network
    from planner.problem.scenario import request_of_keys

    if keys.get("model"):
        refuse_misspelled_network(str(keys["model"]))
    return request_of_keys(keys)


def refuse_network(model: object) -> None:
    """Refuse the model of a simulation if it is a network and not a language model, or nearly the name of a network.

    Raises:
        InputError: It is a network, and the message names what takes one; or it is no name, and the message names the
            network.
    """
    from catalogs.deployments.network_deployment import refuse_misspelled_network

    if is_network_question({"model": model}):
        raise InputError(
            "simulations of the page and the API take language models, and this network is not one",
            model,
            hint="POST /api/v1/plans plans it, and the command `simulate` simulates its deployment.yaml",
        )
    if model:
        refuse_misspelled_network(str(model))


def refuse_unknown(request: PlanRequest | NetworkRequest) -> None:
    """Refuse a request whose model, hardware or workload does not exist, before it becomes a job.

    A model of Hugging Face is not looked up here, since this may take long.

    Raises:
        InputError: A name is unknown, or a file cannot be read.
    """
    from catalogs.models.catalog import load_model
    from catalogs.networks.files import load_network
    from planner.networks.mix import read_jobs
    from planner.networks.request import NetworkRequest
    from planner.problem.hardware_choice import is_any, named_hardware

    if not is_any(request.hardware):
        named_hardware(request.hardware)
    if isinstance(request, NetworkRequest):
        read_jobs(load_network(request.model), request.job, request.steps)
        return
    if not is_hugging_face_id(request.model):
        load_model(request.model)
    request.read_workload()


@contextmanager
def shown_names(files: Iterable[LocalFile]) -> Iterator[None]:
    """Let errors inside the block name uploads by their original names instead of their paths."""
    try:
        yield
    except InputError as error:
        raise InputError(*with_names([error.rule, error.value, error.nearest, error.hint], files)) from None


# ---- URL queries


def to_query(keys: Mapping[str, Any]) -> str:
    """Return keys by dotted name as the query of a URL, without the question mark."""
    return urlencode([(name, text) for name, value in keys.items() for text in _texts(name, value)])


def _texts(name: str, value: object) -> Iterator[str]:
    table = plan_keys()
    kind = table[name].kind if name in table else "object"
    if isinstance(value, list | tuple) and kind == "array":
        yield from (_text(part) for part in value)
    elif isinstance(value, str) and kind in ("string", "array"):
        yield value
    else:
        yield _text(value)


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def from_query(pairs: Sequence[tuple[str, str]]) -> dict[str, Any]:
    """Return the keys that the query of a URL sets, by dotted name; empty values are left out.

    Raises:
        InputError: A key is unknown, is set twice, or has a value of another type.
    """
    found: dict[str, Any] = {}
    for name, text in pairs:
        if text == "":
            continue
        key = plan_keys().get(name)
        if key is None and not name.startswith(_FIXED):
            near = key_names().get(f"--{name}") or nearest_name(name, plan_keys())
            raise InputError("a question has no such key", name, near)
        if key is not None and key.kind == "array":
            found.setdefault(name, []).append(text)
        elif name in found:
            raise InputError("a key is set twice", name, "one value")
        else:
            found[name] = text if key is not None and key.kind == "string" else _parsed(name, text, key)
    fixed = {name.removeprefix(_FIXED): found.pop(name) for name in list(found) if name.startswith(_FIXED)}
    return found | ({"fixed": fixed} if fixed else {})


def _parsed(name: str, text: str, key: RequestKey | None) -> object:
    from catalogs.deployments.key_texts import parse_value

    try:
        return parse_value(text)
    except (yaml.YAMLError, InputError):
        kind = "JSON or YAML" if key is None else key.kind
        raise InputError(f"the value of {name} must be of the type {kind}", text) from None


# ---- keys of results


def result_key(kind: str, question: object, parent: str | None = None) -> str:
    """Return the key of the result of a question, with this version and the calibration of this machine.

    `parent` is the job that the question is about.
    """
    text = json.dumps([kind, question, parent, own_version(), calibration_digest()], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def calibration_digest() -> str:
    """Return sixteen hexadecimal digits that identify all calibrations of this machine, shipped and the user's own."""
    from calibration.bundles.bundle import shipped_folder, user_folder

    files = [
        file for folder in (shipped_folder(), user_folder()) for file in sorted(folder.rglob("*")) if file.is_file()
    ]
    return _digest(tuple((str(file), *_changes(file)) for file in files))


def _changes(file: Path) -> tuple[int, int]:
    found = os.stat(file)
    return found.st_size, found.st_mtime_ns


@lru_cache(maxsize=2)
def _digest(files: tuple[tuple[str, int, int], ...]) -> str:
    found = hashlib.sha256()
    for name, _, _ in files:
        path = Path(name)
        found.update("/".join(path.parts[-2:]).encode())
        found.update(path.read_bytes())
    return found.hexdigest()[:16]
