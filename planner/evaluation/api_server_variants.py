"""Candidates with more API server processes, where the default number would limit the deployment.

The API server of an engine streams every token. On a fast accelerator with a small model it saturates before the
engine does, so more processes raise the capacity at no cost. Elsewhere they change nothing, and the space stays as it
is.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, Protocol

from catalogs.deployments.resolution.optional_blocks import most_api_servers
from catalogs.deployments.resolve import CatalogLookup
from planner.evaluation.closed_forms.bounds import Discard
from planner.evaluation.closed_forms.queueing import Utilisation
from planner.problem.candidate import Candidate
from planner.problem.overrides import Overrides

#: Utilisation of the API server from which it is taken to limit a saturated deployment: a queue with one server then
#: holds four times its service time on average (Kingman), and a high percentile of it several times that.
BINDING: Final = 0.8


class EstimatedUtilisation(Protocol):
    """The estimates of an evaluator that decide whether the API server limits a candidate."""

    def names_of(self, candidate: Candidate) -> CatalogLookup:
        """Return the names for the hardware that a candidate uses in whole or in part."""

    def discard(self, candidate: Candidate) -> Discard | None:
        """Return why a candidate can never meet the objectives, or None."""

    def fluid_requests_per_s(self, candidate: Candidate) -> float:
        """Return the estimated saturation rate of the whole deployment."""

    def utilisation(self, candidate: Candidate, requests_per_s: float, quantile: float | None = None) -> Utilisation:
        """Return the estimated utilisation of each resource at a rate."""


def api_server_variants(
    found: Iterable[Candidate],
    evaluator: EstimatedUtilisation,
    fixed: Overrides,
    requests_per_s: float | None = None,
) -> Iterator[Candidate]:
    """Yield a variant of each candidate whose API server limits it, with enough processes to limit it no more.

    Yields nothing if the request fixes the number of processes, if the engine has no choice of it, or on CPUs, where
    the processes would take cores from the engine.

    Args:
        found: The candidates.
        evaluator: Estimates their utilisation.
        fixed: The keys that the request fixes.
        requests_per_s: The highest rate that matters; None: the saturation of each candidate.
    """
    if "api_server_count" in fixed.values:
        return
    for candidate in found:
        names = evaluator.names_of(candidate)
        if not names.engine.scales_api_servers or names.hardware.accelerator.kind != "gpu":
            return
        count = None if evaluator.discard(candidate) else sufficient_count(candidate, evaluator, requests_per_s)
        if count is not None:
            yield candidate.with_api_servers(count)


def sufficient_count(
    candidate: Candidate, evaluator: EstimatedUtilisation, requests_per_s: float | None = None
) -> int | None:
    """Return the least power of two of the default number of processes with which the API server no longer limits.

    Args:
        candidate: The candidate with the default number.
        evaluator: Estimates its utilisation.
        requests_per_s: The highest rate that matters; None: the saturation of the candidate.

    Returns:
        The number of processes of each replica, at most as many as have a CPU core; None if the default is enough.
    """
    pools = [pool.candidate for pool in candidate.pools]
    most = min(most_api_servers(evaluator.names_of(candidate).hardware, pool.layout) for pool in pools)
    count, default = candidate.api_servers, candidate.api_servers
    own = candidate  # not with the default number written out, which would be estimated as another candidate
    while count < most and is_limiting(own, evaluator, requests_per_s):
        count = min(2 * count, most)
        own = candidate.with_api_servers(count)
    return None if count == default else count


def is_limiting(candidate: Candidate, evaluator: EstimatedUtilisation, requests_per_s: float | None = None) -> bool:
    """Return whether the API server is nearly full at a rate, or where the deployment saturates."""
    saturation_per_s = evaluator.fluid_requests_per_s(candidate)
    rate = saturation_per_s if requests_per_s is None else min(requests_per_s, saturation_per_s)
    return evaluator.utilisation(candidate, rate).api_server > BINDING


def more_api_servers(candidate: Candidate, names: CatalogLookup) -> Iterator[Candidate]:
    """Yield the candidate with twice the API server processes, and so on while each process has a CPU core."""
    if not names.engine.scales_api_servers or names.hardware.accelerator.kind != "gpu":
        return
    most = min(most_api_servers(names.hardware, pool.candidate.layout) for pool in candidate.pools)
    count = candidate.api_servers
    while count < most:
        count = min(2 * count, most)
        yield candidate.with_api_servers(count)
