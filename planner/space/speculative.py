"""Speculative decoding as a choice of the search; it needs an acceptance rate that the user measured."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final

import yaml

from catalogs.deployments.resolution.compatibility import INCOMPATIBLE
from catalogs.deployments.resolved import ResolvedDeployment
from catalogs.deployments.schema import Deployment
from catalogs.deployments.speculation import Speculative
from catalogs.errors import InputError, nearest_name
from catalogs.io.yaml_files import validate_as
from catalogs.io.yaml_loader import load_yaml
from planner.problem.candidate import Candidate
from simulator.core.batch import BatchShape

SPECULATIVE: Final = "speculative"  # the key of deployment.yaml

#: Abbreviations of keys of `speculative`.
_SHORT: Final = {"k": "num_speculative_tokens"}

_EXAMPLE: Final = "method=ngram,k=3,acceptance=0.6"

#: Returns the seconds from the start of a step to the start of the next.
CycleS = Callable[[BatchShape], float]


def parse_drafts(text: str) -> dict[str, Any]:
    """Return `speculative` of deployment.yaml for text such as `method=eagle3,k=3,acceptance=0.7,model=NAME`.

    Raises:
        InputError: A key or a value is not valid, or the acceptance is missing.
    """
    found: dict[str, Any] = {}
    for part in re.split(r",(?![^\[]*\])", text):  # at commas, except those within brackets
        key, equals, value = (word.strip() for word in part.partition("="))
        key = _SHORT.get(key, key)
        if not equals or key not in Speculative.model_fields:
            near = nearest_name(key, Speculative.model_fields) if equals else _EXAMPLE
            raise InputError("speculative takes KEY=VALUE pairs with commas", part, near or _EXAMPLE)
        try:
            found[key] = value if key in ("method", "model") else load_yaml(value)
        except yaml.YAMLError:
            raise InputError(f"the value of {key} is not a number", value, _EXAMPLE) from None
    if "acceptance" not in found and "acceptance_length" not in found:
        raise InputError("speculative decoding needs a measured acceptance", text, _EXAMPLE)
    validate_as(Deployment, {"model": "", "hardware": "", SPECULATIVE: found}, "speculative")
    return found


def may_draft(candidate: Candidate) -> bool:
    """Return whether the candidate can be simulated with speculative decoding."""
    return all(getattr(candidate.layout, key, 1) == 1 for key in INCOMPATIBLE["speculative"])


def per_token(cycle_s: CycleS, resolved: ResolvedDeployment, most: bool = False) -> CycleS:
    """Return a function that gives the seconds of a step per output token of a sequence.

    With speculative decoding this is the time of a round over its tokens: their mean, or the most possible if `most` is
    true. Without speculative decoding, and for steps with prompts, it is the time of the step.
    """
    drafts = resolved.speculation
    if drafts is None:
        return cycle_s
    queries, tokens = drafts.queries, len(drafts.rates) + 1.0 if most else drafts.mean_advance

    def cycle(shape: BatchShape) -> float:
        if not shape.decodes:
            return cycle_s(shape)
        undrafted = 0 if most else round((1.0 - drafts.draft_rate) * shape.decodes)
        drafting = cycle_s(shape.with_counts(queries=queries, undrafted=undrafted))
        return drafting if shape.prefill_tokens else drafting / tokens

    return cycle
