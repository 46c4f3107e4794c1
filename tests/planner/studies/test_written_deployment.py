"""A written deployment is simulated with runs as long as those of a search for the same objectives."""

from __future__ import annotations

import pytest

from catalogs.deployments.schema import Deployment
from catalogs.errors import InputError
from planner.answer import candidate_search
from planner.evaluation.multi_hardware import open_evaluator
from planner.evaluation.run_sizes import RunSizes
from planner.problem.request import PlanRequest
from planner.problem.slo import parse_slos
from planner.studies.written_deployment import WrittenDeployment

#: The lengths of runs are compared with each other.
pytestmark = pytest.mark.usual_runs

RARE = "e2e[in<64].p90=5s"


def asked(slo: str) -> PlanRequest:
    return PlanRequest(model="llama3.1-8b", hardware="rtx4090", slos=parse_slos([slo]), workload="azure-conv")


def written(request: PlanRequest) -> WrittenDeployment:
    return WrittenDeployment.of(Deployment(model=request.model, hardware="rtx4090"), request, request.model)


@pytest.mark.parametrize("slo", [RARE, "e2e.p90=5s", "ttft.p99.9=5s"])
def test_its_runs_are_as_long_as_those_of_a_search(slo: str) -> None:
    request = asked(slo)
    assert written(request).tester.sizes == candidate_search.tester_of(request, open_evaluator(request), []).sizes


def test_its_runs_are_longer_for_a_condition_that_few_requests_fulfil() -> None:
    rare = asked(RARE)
    assert written(rare).tester.sizes.full > RunSizes.for_slos(rare.slos).full


def test_a_condition_that_no_request_fulfils_is_refused() -> None:
    with pytest.raises(InputError, match="no request of workload azure-conv"):
        written(asked("e2e[in>=1m].p99=5s"))
