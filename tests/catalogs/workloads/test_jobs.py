"""Workloads of jobs: draws that can be reproduced and extended, traces, and bad input."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from catalogs.errors import InputError
from catalogs.workloads.jobs import JobWorkload, load_job_workload

MIXED = """
arrivals: {poisson: {requests_per_s: 4}}
requests: 2000
seed: 7
jobs:
  - {share: 3, sizes: {height: 1024, width: 1024}}
  - {share: 1, model: sd3.5-large}
classes:
  - {share: 1, priority: 1}
  - {share: 1, priority: 2, timeout_s: 5}
"""


def workload(text: str, folder: Path) -> JobWorkload:
    path = folder / "jobs.yaml"
    path.write_text(text, encoding="utf-8")
    return load_job_workload(str(path))


def test_kinds_and_classes_have_their_shares(tmp_path: Path) -> None:
    drawn = workload(MIXED, tmp_path).draw()
    assert drawn.n == 2000
    assert float((drawn.kind == 0).mean()) == pytest.approx(0.75, abs=0.03)
    assert drawn.terms is not None
    assert float((drawn.terms.priority == 2).mean()) == pytest.approx(0.5, abs=0.04)
    assert (drawn.terms.timeout_s[drawn.terms.priority == 2] == 5.0).all()
    assert drawn.arrival_s[-1] == pytest.approx(500.0, rel=0.1)
    assert [kind.model for kind in drawn.kinds] == [None, "sd3.5-large"]


def test_the_same_seed_gives_the_same_jobs_stretched_and_extended(tmp_path: Path) -> None:
    source = workload(MIXED, tmp_path)
    once, slower, fewer = source.draw(), source.draw(jobs_per_s=2.0), source.draw(n_jobs=500)
    assert (2.0 * once.arrival_s).tolist() == pytest.approx(slower.arrival_s.tolist())
    assert once.kind.tolist() == slower.kind.tolist()
    assert fewer.arrival_s.tolist() == once.arrival_s[:500].tolist()
    assert fewer.kind.tolist() == once.kind[:500].tolist()
    assert source.draw(seed=8).arrival_s.tolist() != once.arrival_s.tolist()


def test_jobs_of_a_session_are_of_one_kind_and_arrive_in_order(tmp_path: Path) -> None:
    text = MIXED.replace("seed: 7", "sessions: {jobs: 20, gap_s: 0.5}")
    drawn = workload(text, tmp_path).draw(n_jobs=2000)
    assert drawn.sessions is not None
    assert (np.diff(drawn.arrival_s) >= 0.0).all()
    assert len(np.unique(drawn.sessions)) == 100
    for session in range(0, 100, 9):
        assert len(set(drawn.kind[drawn.sessions == session].tolist())) == 1
    closed = workload("{arrivals: {closed_loop: {concurrency: 2}}, requests: 8, sessions: {jobs: 2}}", tmp_path).draw()
    assert closed.sessions is not None
    assert closed.sessions.tolist() == [0, 1, 0, 1, 2, 3, 2, 3]
    assert closed.concurrency == 2


def test_a_trace_is_replayed_at_its_own_and_at_another_rate(tmp_path: Path) -> None:
    rows = "arrival_s,height,session,priority\n10,512,a,1\n11,1024,b,2\n14,512,a,\n"
    (tmp_path / "t.csv").write_text(rows, encoding="utf-8")
    source = load_job_workload(str(tmp_path / "t.csv"))
    drawn = source.draw()
    assert drawn.arrival_s.tolist() == [0.0, 1.0, 4.0]
    assert [drawn.kinds[k].sizes["height"] for k in drawn.kind] == [512, 1024, 512]
    assert drawn.sessions is not None
    assert drawn.sessions.tolist() == [0, 1, 0]
    assert drawn.terms is not None
    assert drawn.terms.priority.tolist() == [1, 2, 0]
    again = source.draw(n_jobs=5, jobs_per_s=1.0)  # its own rate is 2 jobs in 4 s, so each time is halved
    assert again.arrival_s.tolist() == [0.0, 0.5, 2.0, 3.0, 3.5]
    assert again.sessions is not None
    assert again.sessions.tolist() == [0, 1, 0, 2, 3]
    scaled = workload("{trace: t.csv, rate_scale: 2, requests: 2}", tmp_path).draw()
    assert scaled.arrival_s.tolist() == [0.0, 0.5]


def test_a_workload_without_a_rate_says_so(tmp_path: Path) -> None:
    assert "1 job/s" in str(workload("{arrivals: {poisson: {}}}", tmp_path).rate_notice)
    assert JobWorkload().draw(n_jobs=3).n == 3
    burst = workload("{arrivals: all_at_once, requests: 4}", tmp_path)
    assert burst.rate_notice is None
    assert burst.draw().arrival_s.tolist() == [0.0] * 4
    with pytest.raises(InputError, match="no arrival rate to set"):
        burst.draw(jobs_per_s=2.0)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{arrivals: {poisson: {}}, input_tokens: 5}", "a network has no tokens"),
        ("{jobs: [{sizes: {height: 8}}]}", "'arrivals' is missing"),
        ("{arrivals: {poisson: {}}, jobs: []}", "at least one kind"),
        ("{arrivals: {poisson: {}}, jobs: [{sizes: {height: -8}}]}", "height"),
        ("{arrivals: {poisson: {}}, jobs: [{height: 8}]}", "unknown key"),
        ("{arrivals: {poisson: {}}, job: []}", "nearest valid choice: jobs"),
        ("{arrivals: all_at_once, sessions: {jobs: 2}}", "all at once"),
        ("{arrivals: {poisson: {}}, duration_s: 5}", "duration_s needs arrivals with a rate"),
        ("{arrivals: {poisson: {}}, rate_scale: 5}", "needs a trace"),
        ("{trace: t.csv, jobs: []}", "has its own arrivals"),
    ],
)
def test_bad_workloads_are_refused_in_one_line(text: str, words: str) -> None:
    with pytest.raises(InputError) as error:
        load_job_workload(text)
    assert words in str(error.value)


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ("height\n8\n", "arrival_s"),
        ("arrival_s,height\n", "holds no jobs"),
        ("arrival_s,height\n1,8\n0,8\n", "row 2 is before"),
        ("arrival_s,height\n1,x\n", "height of row 1"),
        ("arrival_s,height\n1\n", "row 1 needs 2 columns"),
        ("arrival_s,height\ninf,8\n", "arrival_s of row 1"),
    ],
)
def test_bad_traces_are_refused_with_their_row(rows: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(rows, encoding="utf-8")
    with pytest.raises(InputError, match=words):
        load_job_workload(str(tmp_path / "t.csv"))


def test_a_name_of_the_catalog_is_no_workload_of_jobs() -> None:
    with pytest.raises(InputError, match="YAML file, a CSV trace or keys in braces"):
        load_job_workload("chat")
