"""A first guess of the plan of a network: full batches at the confidence, without queues and without simulation."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from catalogs.ui.words import counted, percent, seconds
from planner.networks.candidate import JobCandidate
from planner.networks.job_assessor import JobAssessor
from planner.networks.merit import Merit, preferred
from planner.networks.plan import NetworkPlanner
from planner.networks.request import NetworkRequest
from planner.networks.space import make_space


@dataclass(frozen=True, slots=True)
class NetworkGuess:
    """A first guess of a plan.

    Attributes:
        hardware: The first hardware of the request, in words.
        candidate: The best candidate by its bound; None where bounds rule out all of them.
        single_job_s: Seconds of a single job in the fastest setup, at the confidence; None where the network does not
            fit.
        jobs_per_s: The rate of full batches of the candidate's replicas at the confidence; 0 without a candidate.
        usd_per_hour: Price of the candidate; None if it is unknown.
        enough: Whether the hardware holds the required rate.
        why: What rules out most of the other candidates, or all of them.
        notes: What the guess leaves out.
    """

    hardware: str
    candidate: JobCandidate | None
    single_job_s: float | None
    jobs_per_s: float
    usd_per_hour: float | None
    enough: bool
    why: str | None
    notes: tuple[str, ...]


def guess_network(request: NetworkRequest) -> NetworkGuess:
    """Return a first guess of the plan of a request.

    Raises:
        InputError: A name or a size is invalid, or the hardware has no calibration.
    """
    planner = NetworkPlanner.of(request)
    several = planner.hardware()
    space = make_space(request, planner.assessor.evaluator.service, several[:1])
    more = len(several) - 1
    notes = ["full batches at the confidence of the request, without queues: the plan is simulated"]
    notes += [f"the guess is for {several[0].text}; the plan compares {counted(more, 'further kind')}"] if more else []
    single_job_s = None if space.floor is None else space.floor[1]
    why = min(space.closest.values(), default=(0.0, None))[1]
    nothing = NetworkGuess(several[0].text, None, single_job_s, 0.0, None, False, why, tuple(notes))
    ranked = sorted((c for c in space.left if planner.assessor.most_replicas(c)), key=lambda c: c.distance)
    return _with_best(nothing, request, planner.assessor, ranked) if ranked else nothing


def _with_best(
    nothing: NetworkGuess, request: NetworkRequest, assessor: JobAssessor, ranked: list[JobCandidate]
) -> NetworkGuess:
    """Return a guess without a candidate, completed with the best one of several by their bounds."""
    single_job_s, evaluator = nothing.single_job_s, assessor.evaluator
    held = [c for c in ranked if math.isfinite(assessor.bound(c))]
    if held:
        bounds = {c: assessor.bound(c) for c in held}
        best = preferred(held, lambda c: Merit(bounds[c], assessor.load_bound(c, bounds[c]), c.distance))
    else:
        best = max(ranked, key=evaluator.fluid_per_s)
    if request.requests_per_s is None or not held:
        used = best.with_replicas(assessor.most_replicas(best))
    else:
        used = assessor.with_paid_replicas(best.with_replicas(assessor.least_replicas(best)))
    per_s = evaluator.fluid_per_s(used) / evaluator.slowdown(used)
    why = nothing.why
    if held and single_job_s is not None:
        least_s = min(slo.limit_s for slo in request.objectives)
        why = f"one job alone takes {percent(single_job_s / least_s)} of the limit of {seconds(least_s)}"
    elif not held:
        why = "full batches on all of it serve fewer jobs than required, or none is within the budget"
    usd = assessor.usd_per_hour(used)
    return replace(nothing, candidate=used, jobs_per_s=per_s, usd_per_hour=usd, enough=bool(held), why=why)
