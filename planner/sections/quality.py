"""What is publicly known of a plan's answers where it runs a model in another precision than its own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from catalogs.models.evaluations import Part, document, evaluations
from catalogs.models.spec import ModelSpec
from catalogs.ui.terminal import Line

#: What keys and values are kept in by default: no note.
WIDE: Final = ("bf16", "fp16", "fp32", "auto")


def quality_block(model: ModelSpec, deployment: dict[str, Any]) -> list[dict[str, Any]]:
    """One entry for weights and for the KV cache, each only where it is not the model's own; [] where both are."""
    found = []
    weights, kv = str(deployment["weight_dtype"]), str(deployment["kv_dtype"])
    if weights != model.weight_dtype:
        found.append(_entry(model, "weights", weights))
    if kv not in WIDE:
        found.append(_entry(model, "kv", kv))
    return found


def _entry(model: ModelSpec, part: Part, dtype: str) -> dict[str, Any]:
    known = evaluations(model.name, part, dtype)
    named = "weights" if part == "weights" else "KV cache"
    nothing = (
        f"no public evaluation of {model.name} with {dtype} {named} is in the catalog: measure it on your own task"
    )
    return {
        "part": part,
        "dtype": dtype,
        "own_dtype": model.weight_dtype if part == "weights" else WIDE[0],
        "evaluations": document(known),
        "note": None if known else nothing,
    }


def quality_lines(answer: dict[str, Any]) -> Iterator[Line]:
    """On the screen: the first of what is known, or that nothing is; the JSON and the page have all."""
    label = "Quality"
    for entry in answer.get("quality") or ():
        named = f"{entry['dtype']} {'weights' if entry['part'] == 'weights' else 'KV cache'}"
        known = entry["evaluations"]
        more = f"; {len(known) - 1} more in the JSON" if len(known) > 1 else ""
        yield label, f"{named}: {_kept(known[0])}{more}" if known else str(entry["note"])
        label = ""


def _kept(evaluation: dict[str, Any]) -> str:
    what, percent = evaluation["finding"], evaluation["recovery_percent"]
    what = what or f"{percent:.1f} % of {evaluation['benchmark']}"
    return f"{what} ({evaluation['by']}, {evaluation['as_of']})"
