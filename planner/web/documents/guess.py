"""The document of a first guess of a plan, which a form shows while one types (see `planner.answer.guess`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from calibration.accuracy.stated_error import COVERAGE
from catalogs.errors import InputError
from planner.answer.guess import Guess, GuessRange, guess_plan
from planner.problem.request import PlanRequest
from planner.web.documents import shapes

if TYPE_CHECKING:
    from planner.networks.request import NetworkRequest

#: Figures of a memory plan that the document states as an answer does.
_MEMORY_KEYS: Final = (
    "budget_bytes",
    "weights_bytes",
    "activation_bytes",
    "non_torch_bytes",
    "kv_bytes",
    "kv_blocks",
    "longest_sequence_tokens",
)


def any_guess_document(request: PlanRequest | NetworkRequest) -> shapes.GuessDocument:
    """Return the first guess of a plan for a language model or for a network.

    Raises:
        InputError: A name or a value is invalid, the hardware holds no layout, or the request is for agents.
    """
    return guess_document(request) if isinstance(request, PlanRequest) else network_guess_document(request)


def guess_document(request: PlanRequest) -> shapes.GuessDocument:
    """Return the first guess of a plan for a request.

    Raises:
        InputError: A name is unknown, the values that the request fixes leave no layout, or the request is for agents.
    """
    if request.agents is not None:
        raise InputError("there is no first guess for agents, which are simulated", f"agents: {request.agents}")
    found = guess_plan(request)
    sized = found.sized
    deployment = None
    if sized is not None and sized.replicas is not None:
        deployment = f"{sized.replicas} x {sized.choice.candidate.layout.words}"
    return {
        "fits": found.fits,
        "memory": _memory(found),
        "binds": found.binds,
        "single_ttft_s": found.single_ttft_s,
        "single_tpot_s": found.single_tpot_s,
        "single_job_s": None,
        "gpus": None if sized is None else sized.gpus,
        "usd_per_hour": None if sized is None else sized.usd_per_hour,
        "requests_per_s": None if sized is None else sized.requests_per_s,
        "enough": sized is not None and sized.enough,
        "deployment": deployment,
        "hardware": None if found.candidate is None else found.candidate.hardware.text,
        "uncertainty": None if found.range is None else _uncertainty(found.range),
        "notes": list(found.notes),
    }


def _memory(found: Guess) -> dict[str, Any] | None:
    """Return the memory of one accelerator, as an answer states it."""
    if found.candidate is None or found.memory is None:
        return None
    return {key: getattr(found.memory, key) for key in _MEMORY_KEYS} | {
        "device_bytes": found.candidate.hardware.accelerator.memory_bytes,
        "weight_dtype": found.candidate.weight_dtype,
        "kv_dtype": found.candidate.kv_dtype,
    }


def _uncertainty(found: GuessRange) -> dict[str, Any]:
    operators = "the operators' errors alone: no whole run compared"
    source = "measured whole runs of this engine" if found.measured else operators
    ends = {"gpus": found.gpus, "usd_per_hour": found.usd_per_hour, "requests_per_s": found.requests_per_s}
    same = len(set(found.gpus)) == len(set(found.usd_per_hour)) == 1
    covers = "the number of accelerators is the same over" if same else "the range is"
    return {
        "coverage": COVERAGE,
        **{name: list(values) for name, values in (ends | found.factors).items()},
        "words": f"closed-form estimate, not simulated; {covers} the simulator's stated error ({source}), "
        "without the error of the queueing formulas",
    }


def network_guess_document(request: NetworkRequest) -> shapes.GuessDocument:
    """Return the first guess of a plan for a network.

    Raises:
        InputError: A name or a size is invalid, or the hardware has no calibration.
    """
    from planner.networks.guess import guess_network

    found = guess_network(request)
    used = found.candidate
    return {
        "fits": found.single_job_s is not None,
        "memory": None,
        "binds": found.why,
        "single_ttft_s": None,
        "single_tpot_s": None,
        "single_job_s": found.single_job_s,
        "gpus": None if used is None else used.accelerators,
        "usd_per_hour": found.usd_per_hour,
        "requests_per_s": found.jobs_per_s or None,
        "enough": found.enough,
        "deployment": None if used is None else used.words,
        "hardware": found.hardware,
        "uncertainty": None,
        "notes": list(found.notes),
    }
