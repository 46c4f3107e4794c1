"""Build the document of an analysed step: that of `plan analyze --json` and the data of the roofline chart."""

from __future__ import annotations

from typing import Any

from catalogs.errors import InputError
from catalogs.hardware.specs import Accelerator
from catalogs.models.names import load_names
from catalogs.networks.files import find_network
from planner.studies.step_analysis import Analysis, StepQuery, analyze, bound_words, document, headlines, memory_words
from simulator.analysis.operators import BOUND_WORDS
from simulator.costs.counterfactual import FIXED_COST_FACTOR


def named_model(text: str) -> str:
    """Return the name of a model of the catalog; a client of the server must not name a file.

    Raises:
        InputError: The name is unknown or ambiguous, and the message names the nearest; or it is that of a network.
    """
    names = load_names()
    wanted = text.strip()
    if names.exact(wanted):
        return wanted
    if find_network(wanted) is not None:
        rule = "this address takes language models, and this model is a network"
        raise InputError(
            rule, wanted, hint="`plan analyze --model` breaks its job down, and GET /networks shows its sizes"
        )
    return names.similar(wanted)


def analyze_document(query: StepQuery) -> dict[str, Any]:
    """Return the analysis of a step.

    Raises:
        InputError: A name is unknown, or the context exceeds the positions of the model.
    """
    found = analyze(query)
    figures = document(found)
    return figures | {"roofline": roofline(found), "words": _words(figures)}


def roofline(found: Analysis) -> dict[str, Any]:
    """Return the ceilings of the accelerator: arithmetic by data type, memory, links, and the ridge of each data type.

    The ridge is the intensity, in operations per byte, above which arithmetic limits an operator instead of memory.
    """
    unit: Accelerator = found.resolved.hardware.accelerator
    memory = unit.memory_bandwidth_bytes_per_s
    return {
        "accelerator": unit.name,
        "full_name": unit.full_name,
        "peak_flops": dict(unit.peak_flops),
        "memory_bytes_per_s": memory,
        "link_bytes_per_s": found.resolved.hardware.node.link_bytes_per_s,
        "ridge_flops_per_byte": {dtype: flops / memory for dtype, flops in unit.peak_flops.items()},
        "fixed_cost_factor": FIXED_COST_FACTOR,
        "source": unit.source,
    }


def _words(figures: dict[str, Any]) -> dict[str, Any]:
    """Return the sentences of the screen of `plan analyze`, and the names of the bounds."""
    return {
        "headlines": list(headlines(figures)),
        "bound": bound_words(figures["bound_s"]),
        "memory": memory_words(figures["memory"]),
        "bounds": dict(BOUND_WORDS),
    }
