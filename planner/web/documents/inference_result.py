"""The result of an inference task: what was measured, beside what is simulated for the same requests."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from calibration.serve.reply_statistics import TokenPrices, counting_notes, load_summary, statistics
from calibration.serve.request_load import SentRequest
from catalogs.deployments.schema import Deployment
from catalogs.errors import InputError
from catalogs.io.yaml_files import check_keys
from catalogs.workloads.request_set import RequestSet
from planner.web.inference import SentTask

if TYPE_CHECKING:
    from calibration.serve.streaming_client import GeneratedReply

#: Version of the form of the result.
SCHEMA_VERSION: Final = 1

#: Longest text of one request in the result, in characters.
MOST_SHOWN_CHARACTERS: Final = 20_000

#: The latencies of a task that the simulator gives too.
LATENCIES = ("ttft_s", "tpot_s", "itl_s", "e2e_s")


def measured_document(sent: SentTask) -> dict[str, Any]:
    """Return the document of a task that was carried out: the requests, their statistics and what they cost."""
    return {
        "schema_version": SCHEMA_VERSION,
        "endpoint": sent.endpoint.public(sent.task.endpoint),
        "task": sent.task.model_dump(),
        "summary": load_summary(sent.load, sent.endpoint.tariff),
        "requests": [_row(request, sent.endpoint.tariff) for request in sent.load.sent],
        "notes": list(_notes(sent)),
    }


def _row(request: SentRequest, tariff: TokenPrices) -> dict[str, Any]:
    row: dict[str, Any] = {"position": request.position, "sent_s": request.sent_s, "problem": request.problem}
    reply = request.reply
    if reply is None:
        return row
    found = asdict(reply) | {"tpot_s": reply.tpot_s, "usd": tariff.answer_usd(reply)}
    text = found.pop("text")
    found["itl_s"] = statistics(found["itl_s"])
    return row | found | {"text": text[:MOST_SHOWN_CHARACTERS], "text_is_cut": len(text) > MOST_SHOWN_CHARACTERS}


def _notes(sent: SentTask) -> Iterator[str]:
    yield from counting_notes(sent.load.replies)
    tariff = sent.endpoint.tariff
    if tariff.usd_per_hour is None and all(tariff.answer_usd(r) is None for r in sent.load.replies):
        yield "the operator's list states no price for this endpoint"


def task_document(sent: SentTask) -> dict[str, Any]:
    """Return what was measured in a task, with `simulated` if its endpoint names a deployment."""
    document = measured_document(sent)
    simulated, notes = _simulated(sent)
    return document | {"simulated": simulated, "notes": [*document["notes"], *notes]}


def _simulated(sent: SentTask) -> tuple[dict[str, Any] | None, list[str]]:
    """Return the simulation of the requests that succeeded, and notes on why there is none."""
    written = sent.endpoint.deployment
    if written is None:
        return None, ["the operator's list names no deployment for this endpoint, so nothing is simulated"]
    lengths = [_lengths(sent, reply) for reply in sent.load.replies]
    known = [pair for pair in lengths if pair is not None]
    if not known or len(known) < len(lengths):
        return None, ["the server does not state the lengths of all requests, so they are not simulated"]
    try:
        found = simulate_closed_loop(written, known, sent.task.concurrency, sent.task.seed)
    except InputError as error:
        return None, [f"the requests are not simulated: {error.rule}"]
    return found, []


def _lengths(sent: SentTask, reply: GeneratedReply) -> tuple[int, int] | None:
    tokens = reply.input_tokens or sent.task.input_tokens
    return None if tokens is None or not reply.output_tokens else (tokens, reply.output_tokens)


def simulate_closed_loop(
    written: dict[str, Any], lengths: list[tuple[int, int]], concurrency: int, seed: int = 0
) -> dict[str, Any]:
    """Return simulated latencies of requests that a fixed number of clients send one after the other.

    Args:
        written: The keys of deployment.yaml.
        lengths: Prompt and output tokens of each request.
        concurrency: Number of clients.
        seed: Seed of the run.

    Raises:
        InputError: The deployment is not valid.
    """
    from simulator.analysis.metrics import summarise
    from simulator.cluster.compiled import compile_fleet
    from simulator.cluster.serving_options import serving_options
    from simulator.cluster.simulate import simulate

    deployment = check_keys(Deployment, written, "the deployment of the endpoint")
    fleet = compile_fleet(deployment)
    inputs, outputs = (np.array(column, dtype=np.int64) for column in zip(*lengths, strict=True))
    requests = RequestSet(
        np.zeros(len(inputs)), inputs, outputs, concurrency=min(concurrency, len(inputs)), seed=seed, name="task"
    )
    summary = summarise(simulate(fleet, requests, serving_options(deployment, fleet)))
    metrics = summary["metrics"]
    return {
        "deployment": written,
        "n_completed": metrics["n_completed"],
        **{name: metrics[name] for name in LATENCIES},
        "output_tokens_per_s": metrics["output_tokens_per_s"],
        "calibration": summary["calibration"],
    }
