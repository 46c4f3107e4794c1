"""What the pages show of jobs, in a real browser: the estimate of one without an answer, its reports, a phone."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.planner.web.running_server import SMALL, RunningServer, answered
from tests.planner.web.watched_page import PHONE, watched

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Route

JOB = "0123456789abcdef"


@pytest.mark.parametrize("status", ["cancelled", "failed"])
def test_a_job_without_an_answer_keeps_its_estimate(browser: Browser, server: RunningServer, status: str) -> None:
    with server.client() as client:
        question = client.post("/api/v1/question", json=SMALL).json()
    job: dict[str, Any] = {"id": JOB, "kind": "plan", "status": status, "question": question["question"]}
    job |= {"key": question["key"], "links": {}, "error": None, "progress": None, "subject": "language"}

    def reply(route: Route) -> None:
        route.fulfill(status=200, content_type="application/json", body=json.dumps(job))

    with watched(browser, server.url) as found:
        found.page.route(f"**/api/v1/jobs/{JOB}", reply)
        page = found.open(f"/plan?job={JOB}")
        page.locator("#answer .problem").wait_for()
        assert page.locator("#model").input_value() == SMALL["model"]
        page.locator("#live .good", has_text="It fits").wait_for(timeout=20_000)


def test_a_plan_offers_the_report_with_sensitivity(browser: Browser, server: RunningServer) -> None:
    with server.client() as client:
        job, _ = answered(client, "plans", SMALL)
    with watched(browser, server.url) as found:
        page = found.open(f"/plan?job={job['id']}")
        offer = page.get_by_role("link", name="Report with sensitivity")
        offer.wait_for()
        assert offer.get_attribute("href") == f"/api/v1/jobs/{job['id']}/result.html?sensitivity=true"
        assert "further simulations" in offer.locator("..").inner_text()


def test_the_table_of_jobs_fits_a_phone(browser: Browser, server: RunningServer) -> None:
    with server.client() as client:
        answered(client, "plans", SMALL)
    for path in ("/jobs", "/"):
        with watched(browser, server.url, viewport=PHONE) as found:
            page = found.open(path)
            row = page.locator("#jobs tbody tr").first
            row.wait_for()
            for cell in (*row.locator("th, td").all(), *row.locator("a, button").all()):
                box = cell.bounding_box()
                if box is not None:  # an empty cell has none
                    assert box["x"] >= 0
                    assert box["x"] + box["width"] <= PHONE["width"]
            headings = "cells => cells.map(cell => getComputedStyle(cell, '::before').content)"
            assert row.locator("td").evaluate_all(headings)[:3] == ['"Kind"', '"State"', '"Created"']
