"""The page on serving networks: its examples run, and its tables name every key."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import yaml

from catalogs.deployments.network_deployment import NetworkDeployment, NetworkEngine, as_network_deployment
from catalogs.workloads.jobs import load_job_workload
from simulator.jobs.batchers.registry import BATCHERS
from simulator.jobs.metrics import summarise_jobs
from simulator.jobs.simulate import simulate_jobs

PAGE = (Path(__file__).resolve().parent.parent.parent / "docs/jobs.md").read_text(encoding="utf-8")


def examples() -> dict[str, str]:
    """Return the YAML files of the page by the name in their first line."""
    blocks = re.findall(r"^```yaml\n# (\S+)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    return dict(blocks)


def test_the_examples_of_the_page_run(tmp_path: Path) -> None:
    files = examples()
    assert set(files) == {"sam.yaml", "jobs.yaml"}
    (tmp_path / "jobs.yaml").write_text(files["jobs.yaml"], encoding="utf-8")
    deployment = as_network_deployment(yaml.safe_load(files["sam.yaml"]), "sam.yaml")
    run = simulate_jobs(deployment, load_job_workload(str(tmp_path / "jobs.yaml")).draw(n_jobs=200))
    assert summarise_jobs(run)["metrics"]["n_completed"] > 100


def test_the_table_names_every_key() -> None:
    rows = re.findall(r"^\| (`.*?) \|", PAGE.split("## The keys", 1)[1].split("\n## ", 1)[0], re.MULTILINE)
    named = re.findall(r"`(\w+)`", " ".join(rows))
    assert sorted(named) == sorted(NetworkDeployment.model_fields)


def test_the_page_explains_every_engine() -> None:
    text = PAGE.split("## How batches are formed", 1)[1]
    assert [engine for engine in BATCHERS if f"**`{engine}`**" not in text] == []
    assert set(BATCHERS) == set(get_args(NetworkEngine))
