"""The identification of hardware and engine: laws of the likelihood, and deployments that are found again."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import chi2

from calibration.accuracy.regime import UNKNOWN
from calibration.accuracy.stated_error import StatedError
from calibration.serve.request_load import RequestSettings, SentLoad, SentRequest
from calibration.serve.streaming_client import GeneratedReply
from catalogs.io.http import ServerUrl
from catalogs.io.pinned_connection import PinnedServer
from catalogs.models.catalog import load_model
from catalogs.workloads.request_set import RequestSet
from simulator.cluster.compiled import compile_deployment
from simulator.cluster.simulate import simulate
from simulator.endpoint.identification import (
    Identification,
    LikelyDeployment,
    candidates,
    chi_square_exceeded,
    error_covariance,
    identify,
    log_error,
    observed_latencies,
)
from simulator.endpoint.measurement import EndpointMeasurement, MeasuredLevel, MeasuringPlan
from simulator.endpoint.target import EndpointTarget

MODEL = "llama3.1-8b"

NETWORK_S = 0.01


def measurement_of(truth: LikelyDeployment, slower: float = 1.0, streams: bool = True) -> EndpointMeasurement:
    """Return what a measurement of a simulated deployment would be, `slower` times as slow, through a network."""
    compiled = compile_deployment(truth.deployment(MODEL, 4096))
    plan = MeasuringPlan(requests=6, concurrency=(1, 4))
    server = PinnedServer(ServerUrl("http://127.0.0.1:1/v1"), "127.0.0.1", 1, False, ("127.0.0.1",))
    target = EndpointTarget(server, RequestSettings("m"), NETWORK_S / 2)
    levels = []
    for concurrency in plan.concurrency:
        prompts = plan.prompts(plan.level_size(concurrency), 1 + concurrency)
        inputs = np.array([len(p.text.split()) for p in prompts])
        outputs = np.array([p.output_tokens for p in prompts])
        run = simulate(compiled, RequestSet(np.zeros(len(prompts)), inputs, outputs, concurrency=concurrency))
        sent = [
            SentRequest(i, 0.0, answer_of(int(inputs[i]), int(outputs[i]), run, i, slower, streams))
            for i in range(len(prompts))
        ]
        levels.append(MeasuredLevel(concurrency, tuple(prompts), SentLoad(tuple(sent), 1.0)))
    return EndpointMeasurement(target, plan, tuple(levels), 1.0)


def answer_of(inputs: int, outputs: int, run: object, i: int, slower: float, streams: bool) -> GeneratedReply:
    times = [slower * float(getattr(run, name)[i]) + NETWORK_S for name in ("ttft_s", "e2e_s")]
    return GeneratedReply("", inputs, outputs, True, times[0] if streams else None, times[1], (), None)


def found(measurement: EndpointMeasurement, *among: LikelyDeployment) -> Identification:
    return identify(measurement, load_model(MODEL), MODEL, among, lambda *_: None)


L4, H100, H200, B200 = (LikelyDeployment(name, "vllm", 1, None) for name in ("l40s", "h100", "h200", "b200"))


@pytest.mark.parametrize("truth", [L4, H100], ids=lambda c: c.hardware)
def test_a_deployment_of_the_catalog_is_found_again(truth: LikelyDeployment) -> None:
    result = found(measurement_of(truth), L4, H100)
    assert next(iter(result.hardware)) == truth.hardware
    assert result.ranked[0].candidate == truth
    assert result.agreement > 0.05
    assert sum(r.probability for r in result.ranked) == pytest.approx(1.0)
    assert sum(sum(e.values()) for e in result.hardware.values()) == pytest.approx(1.0)


def test_the_network_is_taken_out_of_the_first_token_only() -> None:
    measurement = measurement_of(H100)
    observed = {(x.metric, x.level.concurrency): x.mean_s for x in observed_latencies(measurement)}
    compiled = compile_deployment(H100.deployment(MODEL, 4096))
    level = measurement.levels[0]
    inputs = np.array([s.reply.input_tokens for s in level.load.sent])
    outputs = np.array([s.reply.output_tokens for s in level.load.sent])
    run = simulate(compiled, RequestSet(np.zeros(len(inputs)), inputs, outputs, concurrency=1))
    assert observed["ttft", 1] == pytest.approx(run.ttft_s.mean())
    assert observed["tpot", 1] == pytest.approx(run.tpot_s.mean())


def test_what_no_hardware_does_agrees_with_none() -> None:
    result = found(measurement_of(H100, slower=400.0), L4, H100, B200)
    assert result.n_far == 3
    assert result.hardware == {}
    assert result.agreement == 0.0


def test_candidates_that_cannot_serve_are_counted_by_reason() -> None:
    result = found(
        measurement_of(H100),
        H100,
        LikelyDeployment("t4", "vllm", 1, None),
        LikelyDeployment("v100-16gb", "vllm", 1, None),
    )
    assert sum(result.refused.values()) == 2
    assert [r.candidate for r in result.ranked] == [H100]
    assert all("does not fit" in reason and "t4" not in reason for reason in result.refused)


def test_the_number_of_options_of_hardware_does_not_favour_it() -> None:
    twins = [LikelyDeployment("h100", "vllm", 1, weights) for weights in (None, "fp8", "int4")]
    alone, together = found(measurement_of(H100), H100, H200), found(measurement_of(H100), *twins, H200)
    odds = [sum(r.hardware["h100"].values()) / sum(r.hardware["h200"].values()) for r in (alone, together)]
    assert odds[1] <= odds[0] * 1.0001


def test_the_prior_does_not_depend_on_what_was_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    among = [LikelyDeployment(name, "vllm", n, w) for name in ("h100", "b200") for n in (1, 8) for w in (None, "fp8")]
    measurement = measurement_of(H100)
    few = found(measurement, *among)
    assert few.n_far > 0
    monkeypatch.setattr("simulator.endpoint.identification.FAR_DEVIATIONS", 1e6)
    every = found(measurement, *among)
    assert every.n_far == 0
    probabilities = {r.candidate: r.probability for r in every.ranked}
    # what is ruled out has next to no likelihood, and leaving it out changes no other probability
    assert all(r.probability == pytest.approx(probabilities[r.candidate], abs=1e-5) for r in few.ranked)


def test_without_a_stream_nothing_is_compared() -> None:
    from catalogs.errors import InputError

    with pytest.raises(InputError, match="does not stream"):
        found(measurement_of(H100, streams=False), H100)


def test_errors_of_a_metric_at_two_loads_go_together() -> None:
    covariance = error_covariance(["a", "a", "b"], np.array([0.1, 0.1, 0.2]), np.array([0.0, 0.0, 0.05]))
    assert covariance == pytest.approx(covariance.T)
    assert (np.linalg.eigvalsh(covariance) > 0).all()
    assert covariance[0, 1] == pytest.approx(0.8 * 0.01)
    assert covariance[0, 2] == 0.0
    assert covariance[2, 2] == pytest.approx(0.04 + 0.0025)


def test_an_engine_without_measured_runs_has_the_widest_error() -> None:
    known = [log_error(StatedError.of(name, 0.05, UNKNOWN), "tpot") for name in ("vllm", "sglang", "trtllm")]
    centre, sigma = log_error(StatedError.of("orca", 0.05, UNKNOWN), "tpot")
    assert StatedError.of("orca", 0.05, UNKNOWN).group("tpot") is None
    assert centre == 0.0
    assert sigma >= max(s for _, s in known)
    assert all(s > 0 for _, s in known)


def test_candidates_cover_the_catalog_and_keep_to_the_node() -> None:
    every = list(candidates((), (), local=False))
    assert len({c.hardware for c in every}) > 30
    assert {c.engine for c in every} == {"vllm", "sglang", "trtllm", "llama.cpp", "transformers"}
    assert all(c.count == 1 for c in every if c.hardware == "dgx-spark")
    assert {c.hardware for c in candidates(["h100"], ["vllm"], local=False)} == {"h100"}
    assert sum(c.hardware == "local" for c in candidates((), ["vllm"], local=True)) == 3


def test_the_chi_square_distribution_in_closed_form() -> None:
    for degrees in range(1, 25):
        for value in (0.0, 0.1, 1.0, 7.5, 40.0):
            assert chi_square_exceeded(value, degrees) == pytest.approx(chi2.sf(value, degrees), rel=1e-9, abs=1e-12)
    with pytest.raises(ValueError, match="degrees of freedom"):
        chi_square_exceeded(1.0, 0)
