"""Which command can read which answer is one table: every command that reads one has its line, all say no alike."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from catalogs.errors import InputError
from planner.answer.capabilities import (
    DISAGGREGATION,
    TOKEN_GAPS,
    UNSUPPORTED,
    AnswerFeature,
    need_readable,
)
from planner.answer.plan_schema import Plan, SloResult
from planner.cli.main import app


def plan(metric: str = "ttft", **deployment: Any) -> Plan:
    row = {"metric": metric, "stat": "p99", "limit_s": 1.0, "value_s": 0.5, "ci_low_s": 0.4, "ci_high_s": 0.6}
    slo = SloResult.model_validate(row | {"ci_level": 0.9, "met": True, "probability_met": 1.0})
    nothing = dict.fromkeys(
        ("requests_per_s", "metrics", "capacity_requests_per_s", "cost", "energy", "time_breakdown", "calibration")
    )
    return Plan.model_validate({"deployment": deployment, "slo": [slo], **nothing})


WITH = {
    DISAGGREGATION: plan(disaggregation={"prefill_replicas": 1, "decode_replicas": 1}),
    TOKEN_GAPS: plan("itl"),
}


def test_every_command_that_reads_an_answer_has_a_line() -> None:
    readers = {
        str(command.name or command.callback.__name__)
        for command in app.registered_commands
        if command.callback is not None and {"answer", "first"} & set(inspect.signature(command.callback).parameters)
    }
    assert readers == set(UNSUPPORTED)


@pytest.mark.parametrize("feature", WITH)
def test_what_cannot_be_read_is_refused_by_name_and_the_rest_is_not(feature: AnswerFeature) -> None:
    for command, cannot in UNSUPPORTED.items():
        need_readable(command, [plan()])
        if feature not in cannot:
            need_readable(command, [WITH[feature]])
            continue
        with pytest.raises(InputError, match=f"plan {command} only supports {feature.of}"):
            need_readable(command, [plan(), WITH[feature]])
