"""What is needed to repeat the answer for a network: its command, the seed, the calibration and the versions."""

from __future__ import annotations

import platform
import shlex
from collections.abc import Mapping
from typing import Any

from catalogs.io.json_files import dotted
from catalogs.ui.installation import DISTRIBUTION, own_version
from planner.answer.answer_schema import Reproduce
from planner.networks.job_service import JobService
from planner.networks.request import NetworkRequest
from planner.problem.reproduction import digest
from planner.problem.request_keys import network_keys


def command_of(request: NetworkRequest) -> str:
    """Return the command line of a request; it leaves out values at their defaults, except the seed."""
    return command_of_keys(dotted(request.scenario()))


def command_of_keys(keys: Mapping[str, Any]) -> str:
    """Return the command line that sets these keys, which are dotted, and the seed."""
    options: list[str] = []
    settings: list[str] = []
    values = {"seed": 0, **keys}
    for key in network_keys().values():
        value = values.get(key.name)
        if key.run_only or value is None:
            continue
        text = ",".join(map(str, value)) if isinstance(value, list) else _text(value)
        if key.option is None:
            settings += ["--set", f"{key.name}={text}"]
        else:
            options += [key.option, text]
    return shlex.join(["plan", *options, *settings])


def _text(value: object) -> str:
    return repr(value).removesuffix(".0") if isinstance(value, float) else str(value)


def reproduce(request: NetworkRequest, service: JobService) -> Reproduce:
    """Return the block `reproduce` of an answer."""
    return Reproduce(
        command=command_of(request),
        seed=request.seed,
        trials=request.search.trials,
        tariff=request.tariff,
        calibration=digest(service.fingerprint),
        versions={DISTRIBUTION: own_version(), "python": platform.python_version()},
    )
