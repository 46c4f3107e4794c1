"""Convert keys to a request and back: scenario files, `--set KEY=VALUE`, and command lines."""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Protocol

import yaml

from catalogs.deployments.key_texts import parse_value
from catalogs.errors import InputError, nearest_key
from catalogs.io.json_files import read_json
from catalogs.io.yaml_files import read_typed_yaml
from catalogs.ui.shared_options import DEFAULT_WORKLOAD
from planner.problem.load_curve import peak_of
from planner.problem.overrides import PLAN_ELSEWHERE, parse_keys, settable
from planner.problem.request import PlanRequest
from planner.problem.request_keys import RequestKey, network_keys, plan_keys, request_keys
from planner.problem.slo import parse_slos


class WrittenRequest(Protocol):
    """A request, for a model of any kind, that can be written as the keys of a scenario file."""

    def scenario(self) -> dict[str, Any]:
        """Return the keys that differ from their defaults."""


#: Values by dotted key; None removes a key, so that its default applies.
Values = Mapping[str, Any]

EXAMPLE: Final = "plan --model llama3.1-405b --slo p99=2s --hw h100x8"

_FIXED: Final = "fixed"

#: A key of a request (text: drafts to consider) and also of deployment.yaml (a mapping: fixed for every candidate).
_SPECULATIVE: Final = "speculative"

#: Keys that an answer holds and that are derived from its objectives.
_DERIVED: Final = ("slo_words",)

#: Keys whose options a load over time excludes.
_OTHER_LOADS: Final = ("workload", "rate", "users")

_OVER_TIME: Final = "a load over time includes workload and rate"

#: Relative tolerance between a rate that a planner has written and the peak of the workload.
_SAME: Final = 1e-9


# ---- from keys to a request


def request_of_keys(values: Values) -> PlanRequest:
    """Return the request that the keys describe.

    Raises:
        InputError: A key is missing, unknown or invalid.
    """
    given = _with_peak({name: value for name, value in values.items() if value is not None})
    for name in ("model", "hardware"):
        if not given.get(name):
            raise InputError(f"{request_keys()[name].option} is needed", hint=EXAMPLE)
    if not given.get("slo"):
        parse_slos([])  # raises an error that explains how to write an objective
    for name in given:
        if name in network_keys() and name not in request_keys():
            typed = network_keys()[name].option or name
            rule = f"{typed} is for networks (catalog list networks), and {given['model']} is a language model"
            raise InputError(rule, given[name], "--workload NAME")
    request = PlanRequest(**nested(given))
    request.accounting.check_files()
    return request


def nested(keys: Values) -> dict[str, Any]:
    """Return dotted keys as nested mappings: the fields of a request."""
    found: dict[str, Any] = {}
    for name, value in keys.items():
        group, dot, rest = name.partition(".")
        if dot:
            found.setdefault(group, {})[rest] = value
        else:
            found[name] = value
    return found


def read_scenario(path: Path) -> dict[str, Any]:
    """Return the keys of a scenario file, or of the request block of an answer.

    Raises:
        InputError: The file cannot be read or has an unknown key.
    """
    found = _read(path)
    if "schema_version" in found:
        rule = "this file is a result, and a scenario holds the keys of a request"
        raise InputError(
            rule, str(path), hint="`plan explain` and `plan report` read answers; their request is a scenario"
        )
    return scenario_keys(found, str(path))


def scenario_keys(scenario: Values, where: str) -> dict[str, Any]:
    """Return the keys of a scenario by their dotted names; `where` is its name in errors.

    Raises:
        InputError: A key is unknown.
    """
    found: dict[str, Any] = {}
    for name, value in scenario.items():
        if name not in _DERIVED:
            _flatten(str(name), value, found, where)
    return found


def _read(path: Path) -> dict[str, Any]:
    """Return the mapping in a YAML file, or in a .json file (YAML would read its 1e-05 as text)."""
    if path.suffix != ".json":
        return read_typed_yaml(path)
    found = read_json(path)
    if not isinstance(found, dict):
        raise InputError(f"{path} must hold key: value pairs", type(found).__name__)
    return found


def parse_plan_settings(settings: Sequence[str]) -> dict[str, Any]:
    """Return the keys that `KEY=VALUE` texts set, of the request or of deployment.yaml (those are `fixed`).

    Raises:
        InputError: A key is unknown (the error names the nearest one) or is set twice.
    """
    found: dict[str, Any] = {}
    for setting in settings:
        name, equals, text = (part.strip() for part in setting.partition("="))
        if not equals:
            raise InputError("a setting is KEY=VALUE", setting, "kv_dtype=fp8")
        keys = plan_keys()
        try:
            value = parse_value(text)
        except yaml.YAMLError:
            if name not in keys or keys[name].kind != "string":
                raise InputError(f"the value of {name} is not valid YAML", text, f"{name}=1") from None
            value = text
        drafts_of_deployment = name == _SPECULATIVE and isinstance(value, dict)
        fixed = name.removeprefix(f"{_FIXED}.")
        if (name in keys or name in _groups()) and not drafts_of_deployment:
            _flatten(name, value, found, "--set", once=True)
        elif fixed in settable(PLAN_ELSEWHERE) or fixed in PLAN_ELSEWHERE:
            _set(found, f"{_FIXED}.{fixed}", parse_keys([f"{fixed}={text}"], PLAN_ELSEWHERE)[fixed], once=True)
        else:
            raise _unknown(name, "--set")
    return found


def given_options(options: Values) -> dict[str, Any]:
    """Return the keys that command-line options set.

    Args:
        options: Values by the name of the key; None if the option is not given.

    Raises:
        InputError: A workload with its own rate is combined with another load.
    """
    found = {name: value for name, value in options.items() if value not in (None, [])}
    if "over_time" not in found:
        return found
    for name in _OTHER_LOADS:
        if name in found:
            rule = f"{_OVER_TIME}: leave out {request_keys()[name].option}"
            raise InputError(rule, found[name], "--trace W")
    return found | {"over_time": True, "workload": found["over_time"]}


def _with_peak(given: dict[str, Any]) -> dict[str, Any]:
    """Return the keys with the rate of the busiest window added, if the load is the workload's own."""
    if given.get("over_time") is not True:
        return given
    if "users" in given:
        raise InputError(f"{_OVER_TIME}: leave out users", given["users"], "over_time or users")
    slos = given.get("slo") or ()
    objectives = parse_slos([slos] if isinstance(slos, str) else slos) if isinstance(slos, str | list) else ()
    rate, peak = given.get("rate"), peak_of(str(given.get("workload", DEFAULT_WORKLOAD)), objectives)
    if isinstance(rate, int | float) and not math.isclose(rate, peak, rel_tol=_SAME):
        raise InputError(f"{_OVER_TIME}: leave out rate", rate, f"{peak:g}")
    return given | {"rate": peak}


def _groups() -> set[str]:
    """Return the names of the keys that hold other keys."""
    return {name.partition(".")[0] for name in request_keys() if "." in name}


def _flatten(name: str, value: object, found: dict[str, Any], where: str, once: bool = False) -> None:
    """Add a key of a file or of --set to `found`, and the keys that it holds, under their dotted names."""
    if value is None and name in _groups():
        return
    if name in _groups() or (name == _FIXED and isinstance(value, dict)):
        if not isinstance(value, dict):
            example = next(key for key in request_keys() if key.startswith(f"{name}.")).partition(".")[2]
            raise InputError(f"{where}: {name} must hold keys", value, f"{name}: {{{example}: ...}}")
        for part, inner in value.items():
            whole = f"{name}.{part}"
            if name == _FIXED:
                _set(found, whole, inner, once)
            else:
                _flatten(whole, inner, found, where, once)
        return
    if name not in plan_keys():
        raise _unknown(name, where)
    _set(found, name, value, once)


def _set(found: dict[str, Any], name: str, value: object, once: bool) -> None:
    if once and name in found:
        short = name.removeprefix(f"{_FIXED}.")
        raise InputError("a key is set twice", f"{short}={json.dumps(value)}", f"{short}={json.dumps(found[name])}")
    found[name] = value


def _unknown(name: str, where: str) -> InputError:
    """Return the error for an unknown key, which names the key that was probably meant."""
    if name in PLAN_ELSEWHERE:
        return InputError(f"{where}: this key of deployment.yaml is not one of a request", name, PLAN_ELSEWHERE[name])
    nearest = _nearest(name)
    hint = None if nearest else "`plan keys` lists the keys of a request"
    return InputError(f"{where}: neither a request nor deployment.yaml has this key", name, nearest, hint)


def _nearest(name: str) -> str | None:
    keys = plan_keys().values()
    spelled = f"--{name.replace('_', '-')}"
    by_option = next((k.name for k in keys if spelled == k.option or spelled in k.former_options), None)
    if by_option is not None:
        return by_option
    if name in settable(PLAN_ELSEWHERE):
        return f"{_FIXED}.{name}"
    by_end = {key.name.rpartition(".")[2]: key.name for key in keys}
    end = name.rpartition(".")[2]
    if end in by_end:
        return by_end[end]
    near = nearest_key(name.replace(":", "."), [*plan_keys(), *_groups(), *settable(PLAN_ELSEWHERE)])
    return near or by_end.get(nearest_key(end, by_end) or "")


def known_keys(block: Mapping[str, Any]) -> dict[str, Any]:
    """Return the request block of an answer without the keys that only a newer version knows."""
    groups, known = _groups(), {*request_keys(), *_groups(), *_DERIVED}

    def kept(name: str, value: Any) -> Any:
        nested = name in groups and isinstance(value, dict)
        return {k: v for k, v in value.items() if f"{name}.{k}" in known} if nested else value

    return {name: kept(name, value) for name, value in block.items() if name in known}


# ---- from a request to its keys


def command_of(request: PlanRequest) -> str:
    """Return the command line of the request; it leaves out values at their defaults, except the seed."""
    return shlex.join(["plan", *arguments_of(keys_of(request) | {"seed": request.seed})])


def keys_of(request: WrittenRequest) -> dict[str, Any]:
    """Return the keys of a request that differ from their defaults, by dotted name."""
    found: dict[str, Any] = {}
    for name, value in request.scenario().items():
        _flatten(name, value, found, "request")
    return found


def arguments_of(values: Values) -> list[str]:
    """Return the command-line arguments that set these keys, without those that concern the run only.

    A key has an option if `--help` shows one, and `--set KEY=VALUE` otherwise.
    """
    options: list[str] = []
    settings: list[str] = []
    seed: list[str] = []
    if values.get("over_time"):  # the option takes the workload, which has the rate
        whole = {"over_time": values.get("workload", DEFAULT_WORKLOAD), "workload": None}
        values = {k: v for k, v in values.items() if k != "rate"} | whole
    for key in request_keys().values():
        if key.run_only or values.get(key.name) is None:
            continue
        text = _spelled(values[key.name], key)
        if key.option is None:
            settings += ["--set", f"{key.name}={text}"]
        else:
            (seed if key.name == "seed" else options).extend((key.option, text))
    for name, value in values.items():
        if name.startswith(f"{_FIXED}."):
            settings += ["--set", f"{name.removeprefix(f'{_FIXED}.')}={json.dumps(value)}"]
    return [*options, *settings, *seed]


def _spelled(value: object, key: RequestKey) -> str:
    """Return a value as text for its option, or for --set (which reads YAML) if the key has no option."""
    if isinstance(value, list):
        return ",".join(_spelled(part, key) if not isinstance(part, str) else part for part in value)
    if isinstance(value, float):
        return repr(value).removesuffix(".0")
    if isinstance(value, str):
        return value if key.option is not None or _reads_back(value) else json.dumps(value)
    return json.dumps(value)


def _reads_back(text: str) -> bool:
    try:
        return bool(parse_value(text) == text) and text == text.strip()
    except yaml.YAMLError:
        return False
