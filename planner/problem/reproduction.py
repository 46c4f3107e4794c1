"""How to get the same answer again: the command, the seed, and the versions it rests on."""

from __future__ import annotations

import hashlib
import platform
import shlex
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version

from planner.problem.request import PlanRequest
from planner.problem.tariff import Tariff

DISTRIBUTION = "llm-capacity-planner"


def reproduce_block(request: PlanRequest, fingerprint: str) -> dict[str, object]:
    """What `plan --json` says of its own origin. fingerprint: names the calibration (Evaluator.fingerprint)."""
    return {
        "command": command_of(request),
        "seed": request.seed,
        "trials": request.trials,
        "tariff": asdict(request.tariff),
        "calibration": digest(fingerprint),
        "versions": versions(),
    }


def command_of(request: PlanRequest) -> str:
    """The command line of a request; options that are at their defaults are left out."""
    plain, tariff = PlanRequest(request.model, request.hardware, request.slos), request.tariff
    parts = [
        "plan",
        "--model",
        request.model,
        "--hw",
        request.hardware,
        "--slo",
        ",".join(s.text for s in request.slos),
    ]
    given: dict[str, tuple[object, object]] = {
        "--trace" if request.over_time else "--workload": (request.workload, plain.workload),
        "--rate": (None if request.over_time else request.requests_per_s, None),
        "--users": (request.users, None),
        "--think-time": (request.think_s, 0.0),
        "--survive": (request.spare.text, plain.spare.text),
        "--max-usd-per-hour": (request.max_usd_per_hour, None),
        "--objective": (request.objective, plain.objective),
        "--precision": (",".join(request.precisions), ""),
        "--also": (",".join(request.also), ""),
        "--speculative": (request.speculative, None),
        "--engine": (request.engine, plain.engine),
        "--trials": (request.trials, plain.trials),
        "--price": (tariff.usd_per_hour, None),
        "--price-reading": (tariff.reading, Tariff().reading),
        "--cloud": (tariff.cloud, None),
        "--region": (tariff.region, None),
        "--commitment": (tariff.commitment, Tariff().commitment),
        "--discount": (tariff.discount, None),
        "--grid": (tariff.grid, None),
    }
    given |= {option: (value, None) for option, value in request.accounts.options.items()}
    for option, (value, default) in given.items():
        parts += [] if value == default else [option, _text(value)]
    for setting in request.fixed.texts:
        parts += ["--set", setting]
    return shlex.join([*parts, "--seed", str(request.seed)])


def _text(value: object) -> str:
    return repr(value).removesuffix(".0") if isinstance(value, float) else str(value)


def versions() -> dict[str, str]:
    """Of the planner and of Python."""
    try:
        own = version(DISTRIBUTION)
    except PackageNotFoundError:  # run from a folder that was never installed
        own = "not installed"
    return {DISTRIBUTION: own, "python": platform.python_version()}


def digest(fingerprint: str) -> str:
    """Sixteen hexadecimal digits that name a calibration."""
    return hashlib.sha256(fingerprint.encode()).hexdigest()[:16]
