"""Changes a case that was refused so that it may be valid: follows the advice of the error, or removes a key."""

from __future__ import annotations

import re
from dataclasses import replace
from random import Random
from typing import Any, Final

import yaml
from fuzz_cases import Case

from catalogs.deployments.schema import Deployment
from catalogs.errors import InputError

#: Keys that are never removed.
KEPT: Final = ("model", "hardware", "arrivals", "input_tokens", "output_tokens", "trace", "requests")
_SAID: Final = re.compile(r"(\w+):? (\S+)")


def repaired(case: Case, refusal: InputError, rng: Random, followed: set[str]) -> Case:
    """Return the case with one change towards a valid one.

    Args:
        case: The case that was refused.
        refusal: The error.
        rng: Chooses among several changes.
        followed: Advice that was followed before and is not followed again; the advice of this call is added.
    """
    advised = _advice(refusal)
    if advised and str(advised) not in followed:
        followed.add(str(advised))
        return replace(case, deployment=case.deployment | advised)
    if "does not fit" in refusal.rule and rng.random() < 0.5:
        return replace(case, deployment=case.deployment | {"model": "qwen2.5-0.5b", "hardware": "h100x8"})
    said = str(refusal)
    named = [key for key in case.deployment if key in said and key not in KEPT]
    named = [key for key in named if key not in case.focus] or named
    if named and rng.random() < 0.8:
        key = max(named, key=len)
        choice = yaml.safe_load(refusal.nearest) if refusal.nearest and "," not in refusal.nearest else None
        if isinstance(choice, int | str) and rng.random() < 0.6:
            return replace(case, deployment=case.deployment | {key: choice})
        return replace(case, deployment=_without(case.deployment, key, rng))
    return _less(case, rng)


def _advice(refusal: InputError) -> dict[str, Any] | None:
    """Return the key and value that an error names as the nearest valid choice, or None."""
    said = _SAID.match(refusal.nearest or "")
    if said is None or said[1] not in Deployment.model_fields:
        return None
    try:
        return {said[1]: yaml.safe_load(said[2])}
    except yaml.YAMLError:
        return None


def _less(case: Case, rng: Random) -> Case:
    sides = {"deployment": case.deployment, "workload": case.workload}
    paths = [(side, key) for side, data in sides.items() for key in data if key not in KEPT]
    paths = [path for path in paths if path[1] not in case.focus] or paths
    if not paths:
        plain = {"poisson": {"requests_per_s": 4.0}}
        sound = {"arrivals": plain, "input_tokens": 100, "output_tokens": 20, "requests": 20}
        return replace(case, deployment={"model": "qwen2.5-0.5b", "hardware": "h100"}, workload=sound, trace="")
    side, key = rng.choice(paths)
    return replace(case, **{side: _without(sides[side], key, rng)})  # type: ignore[arg-type]


def _without(data: dict[str, Any], key: str, rng: Random) -> dict[str, Any]:
    """Return the block without one entry of a key, or without the whole key."""
    inner = data[key]
    rest = {k: v for k, v in data.items() if k != key}
    if isinstance(inner, list) and len(inner) > 1 and rng.random() < 0.5:
        return rest | {key: inner[:-1]}
    if isinstance(inner, dict) and len(inner) > 1 and rng.random() < 0.6:
        gone = rng.choice(list(inner))
        return rest | {key: {k: v for k, v in inner.items() if k != gone}}
    return rest
