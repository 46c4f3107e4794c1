"""A search on a real Ray cluster of two nodes: one process's answer, whatever dies meanwhile."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from catalogs.deployments.schema import Deployment
from catalogs.errors import InputError
from catalogs.workloads.request_set import RequestSet
from planner.search import ray_workers
from planner.search.candidate_tester import CandidateTester, Outcome
from planner.search.optuna_study import SearchSettings
from planner.search.ray_workers import RayPool, check_address, join_cluster
from planner.search.search import SearchResult, search
from simulator.analysis.metrics import summarise
from simulator.cluster.cluster import RunOptions
from simulator.cluster.compiled import compile_fleet
from simulator.cluster.simulate import simulate
from tests.planner.postgres_server import free_port
from tests.planner.queue_toy import QueueToy
from tests.planner.ray_toy import Watched
from tests.planner.search.test_search import SIZES, SLOS, race_of, space

#: Ray's daemons take their time and stop workers where memory runs short: run by its own command.
pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[3]
#: Everything; and a part of it, half of that proposed by the sampler.
SETTINGS = (SearchSettings(100, 0), SearchSettings(18, 0))


def started() -> Any:
    """Two nodes with a CPU each; None where a busy machine does not get them up in Ray's own time limits."""
    from ray.cluster_utils import Cluster as Nodes

    small = {"num_cpus": 1, "include_dashboard": False, "object_store_memory": 100 * 2**20}
    port, made = free_port(), Nodes()
    try:
        made.add_node(**small, ray_client_server_port=port)
        made.add_node(**small)
    except Exception as error:  # of Ray's own kinds
        made.shutdown()
        if "time" not in f"{type(error).__name__} {error}".lower():
            raise
        return None
    made.small, made.url = small, f"ray://127.0.0.1:{port}"
    return made


@pytest.fixture(scope="module")
def nodes() -> Iterator[Any]:
    """Two nodes with a CPU each, joined by `auto`; workers find the tests' own modules."""
    pytest.importorskip("ray", reason="Ray is not installed (pip install '.[ray]')")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), str(Path(__file__).parent), *sys.path]))
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("RAY_memory_monitor_refresh_ms", "0")  # not the workers fill this machine's memory
        made = started() or started()
        if made is None:
            pytest.skip("Ray's nodes did not start here within half a minute: the machine is too busy")
        patch.setenv("RAY_ADDRESS", made.address)
        yield made
        made.shutdown()


@pytest.fixture
def cluster(nodes: Any) -> Iterator[RayPool]:
    with join_cluster("auto") as joined:
        nodes.wait_for_nodes()
        yield joined


@pytest.fixture
def watched(tmp_path: Path) -> Watched:
    return Watched(race_of(CandidateTester(QueueToy(0.4), SLOS, SIZES, 0, 0.9, None)), tmp_path)


def alone(watched: Watched, settings: SearchSettings = SETTINGS[0]) -> SearchResult:
    return search(space(), watched.inner, settings)


def at_candidate(number: int, then: Callable[[], None]) -> Callable[[int, int, Outcome | None], None]:
    """A progress callback that does something once."""

    def progress(done: int, planned: int, best: Outcome | None) -> None:  # noqa: ARG001
        if done == number:
            then()

    return progress


def test_two_machines_answer_as_one_process(cluster: RayPool, watched: Watched) -> None:
    with cluster.lookahead(watched, 36) as lookahead:
        assert lookahead.depth == 2
        for settings in SETTINGS:
            found = search(space(), watched, settings, lookahead=lookahead)
            assert found.outcomes == alone(watched, settings).outcomes
    assert cluster.n_lost == 0
    assert os.getpid() not in watched.pids


def test_what_the_best_outclasses_is_passed_over_as_in_one_process(cluster: RayPool, watched: Watched) -> None:
    outclassed = watched.inner.outclassed  # type: ignore[attr-defined]
    for settings in SETTINGS:
        by_one = search(space(), watched.inner, settings, outclassed=outclassed)
        with cluster.lookahead(watched, 36) as lookahead:
            by_many = search(space(), watched, settings, outclassed=outclassed, lookahead=lookahead)
        assert by_many == by_one


def test_a_worker_that_is_killed_loses_nothing(cluster: RayPool, watched: Watched) -> None:
    doomed = replace(watched, dies=space()[4])
    with cluster.lookahead(doomed, 36) as lookahead:
        found = search(space(), doomed, SETTINGS[0], lookahead=lookahead)
    assert found.outcomes == alone(watched).outcomes
    assert cluster.n_lost == 1
    assert cluster.loss_notice == "1 worker of the cluster died; what it had begun was evaluated again"


def test_what_a_worker_refuses_is_refused_here(cluster: RayPool, watched: Watched) -> None:
    strict = replace(watched, refuses=space()[2])
    with cluster.lookahead(strict, 36) as lookahead, pytest.raises(InputError, match="nothing like this"):
        search(space(), strict, SETTINGS[0], lookahead=lookahead)


def test_a_machine_with_another_version_is_refused(
    cluster: RayPool, watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_workers, "code_digest", lambda: "another")
    with pytest.raises(InputError, match="another version"), cluster.lookahead(watched, 36):
        pass


def test_a_node_that_is_lost_and_one_that_joins(nodes: Any, cluster: RayPool, watched: Watched) -> None:
    slow = replace(watched, pause_s=2.0)
    before: set[int] = set()

    def lose() -> None:
        before.update(watched.pids)
        slow.hold.touch()  # the rest of the search lasts until the new node is at work, or a minute
        nodes.remove_node(nodes.list_all_nodes()[-1], allow_graceful=False)
        nodes.add_node(**nodes.small)

    def look(done: int, planned: int, best: Outcome | None) -> None:
        at_candidate(6, lose)(done, planned, best)
        if before and cluster.n_cpus == 2 and watched.pids - before:
            slow.hold.unlink(missing_ok=True)

    with cluster.lookahead(slow, 36) as lookahead:
        found = search(space(), slow, SETTINGS[0], look, lookahead=lookahead)
    assert found.outcomes == alone(watched).outcomes
    assert cluster.n_lost <= 1  # what ran on the lost node, if anything did
    assert not slow.hold.exists()
    assert watched.pids - before


def test_where_every_worker_dies_this_process_goes_on(cluster: RayPool, watched: Watched) -> None:
    deadly = replace(watched, here=os.getpid())
    with cluster.lookahead(deadly, 36) as lookahead:
        found = search(space()[:6], deadly, SETTINGS[0], lookahead=lookahead)
    assert found.outcomes == search(space()[:6], watched.inner, SETTINGS[0]).outcomes
    assert cluster.n_lost >= 6 * ray_workers._MAX_LOSSES
    assert os.getpid() in watched.pids


def test_where_no_cpu_is_left_this_process_goes_on(
    cluster: RayPool, watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    with cluster.lookahead(watched, 36) as lookahead:

        def lose() -> None:
            monkeypatch.setattr(RayPool, "n_cpus", 0)

        found = search(space(), watched, SETTINGS[0], at_candidate(6, lose), lookahead=lookahead)
    assert found.outcomes == alone(watched).outcomes
    assert os.getpid() in watched.pids


def planned(folder: Path, name: str, *options: str) -> dict[str, Any]:
    """The answer of the command, without its seconds."""
    asked = [
        "--model",
        "llama3.1-8b",
        "--hw",
        "h100x2",
        "--slo",
        "ttft.p99=2s,tpot.p99=40ms",
        "--set",
        "search.trials=12",
    ]
    command = [sys.executable, "-m", "planner.cli.main", *asked, "--json", name, *options]
    subprocess.run(command, check=True, cwd=folder, stdout=subprocess.DEVNULL)
    answer: dict[str, Any] = json.loads((folder / name).read_text())
    del answer["search"]["seconds"]
    return answer


def test_plan_on_a_cluster_equals_plan_here(nodes: Any, tmp_path: Path) -> None:
    """A minute: pytest -m slow tests/planner/search/test_ray_cluster.py"""
    here = planned(tmp_path, "here.json")
    assert planned(tmp_path, "there.json", "--set", f"search.distributed={nodes.url}") == here
    kept = f"sqlite:///{tmp_path / 'study.db'}"
    assert planned(tmp_path, "kept.json", "--set", "search.distributed=auto", "--study", kept) == here
    again = planned(tmp_path, "again.json", "--set", "search.distributed=auto", "--study", kept)
    assert again["search"].pop("n_resumed") == here["search"].pop("n_resumed") + 12
    assert again == here


@pytest.mark.parametrize("text", ["", "local", "ray://", "ray://host", "ray://host:0", "ray://h:99999", "http://h:1"])
def test_an_address_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="a cluster is ray://HOST:PORT, ray://local or auto"):
        check_address(text)


def test_addresses_with_a_port_are_hosts_and_ports() -> None:
    assert check_address("ray://head.example:10001") == ("head.example", 10001)
    assert check_address("ray://[::1]:10001") == ("::1", 10001)
    assert check_address("ray://local") is None


def test_where_nobody_listens_is_one_line() -> None:
    pytest.importorskip("ray", reason="Ray is not installed (pip install '.[ray]')")
    with pytest.raises(InputError, match="no cluster answers") as error, join_cluster(f"ray://127.0.0.1:{free_port()}"):
        pass
    assert "\n" not in str(error.value)


def test_without_ray_the_command_to_install_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(InputError, match=r"pip install '\.\[ray\]'"), join_cluster("ray://local"):
        pass


def test_a_fleet_on_two_machines_is_that_of_one_process(cluster: RayPool) -> None:
    fleet = compile_fleet(Deployment(model="llama3.1-8b", hardware="h100x8", replicas=8))
    work = RequestSet(np.arange(400) / 40, np.full(400, 700), np.arange(400) % 90 + 20)
    alone, spread = (simulate(fleet, work, RunOptions(spread=each)) for each in (None, cluster.spread))
    assert summarise(spread) == summarise(alone)
    np.testing.assert_array_equal(spread.last_token_s, alone.last_token_s)
