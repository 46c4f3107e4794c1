"""Laws of models that are cut by layers in one process: stages compute one batch in turn."""

from __future__ import annotations

import pytest

from catalogs.deployments.resolve import resolve
from catalogs.deployments.schema import Deployment
from catalogs.errors import InputError
from catalogs.workloads.workload import load_workload
from simulator.analysis.metrics import summarise
from simulator.cluster.compiled import compile_fleet
from simulator.cluster.run import Run
from simulator.cluster.simulate import simulate

LENGTHS = "input_tokens: 100, output_tokens: 40"


def run_on(stages: int, engine: str = "llama.cpp", clients: int = 2) -> Run:
    written = Deployment(
        model="llama3.1-8b",
        engine=engine,
        hardware=f"h100x{stages}",
        pipeline_parallel=stages,
        max_num_seqs=clients,
        max_model_len=1024,
    )
    fleet = compile_fleet(written)
    workload = load_workload(f"{{arrivals: {{closed_loop: {{concurrency: {clients}}}}}, requests: 8, {LENGTHS}}}")
    return simulate(fleet, workload.materialise())


@pytest.mark.parametrize("engine", ["llama.cpp", "transformers-static"])
def test_more_stages_are_never_faster(engine: str) -> None:
    latencies = [summarise(run_on(stages, engine))["metrics"]["e2e_s"]["mean"] for stages in (1, 2, 4)]
    assert latencies == sorted(latencies)
    assert latencies[-1] < 1.1 * latencies[0]  # the stages only add their sends


def test_one_batch_is_in_flight() -> None:
    run = run_on(4)
    assert len(run.logs) == 1
    assert resolve(Deployment(model="opt-13b", hardware="h100x2", pipeline_parallel=2)).batches_in_flight == 2


def test_step_seconds_are_those_of_the_run() -> None:
    run = run_on(4)
    seconds = summarise(run)["time_breakdown"]
    assert sum(seconds.values()) == pytest.approx(run.span_s[1] - run.span_s[0], rel=1e-6)


def test_accelerators_that_wait_draw_less_than_the_one_that_computes() -> None:
    one, four = (summarise(run_on(stages))["metrics"]["power"]["gpu_w_mean"] for stages in (1, 4))
    assert four < one


def test_layers_and_tensors_are_not_split_together() -> None:
    written = Deployment(
        model="llama3.1-70b", engine="llama.cpp", hardware="h100x4", tensor_parallel=2, pipeline_parallel=2
    )
    with pytest.raises(InputError, match="by layers or by tensors"):
        resolve(written)
