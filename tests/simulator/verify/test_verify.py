"""Simulated against measured: errors, noise and bars by hand; what is installed is used, and only where it belongs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from calibration.accuracy.measured_run import MeasuredRun
from calibration.bundles import engine_calibration
from calibration.bundles.engine_calibration import EngineCalibration, MeasuredHost
from catalogs.deployments.resolve import resolve
from catalogs.deployments.schema import Deployment
from catalogs.engines.profile import HostTimes
from catalogs.errors import InputError
from catalogs.hardware.catalog import parse_hardware
from simulator.cluster.compiled import HOST_NOTICE, compile_deployment, measured_host_of, with_measured_host
from simulator.cluster.simulate import simulate
from simulator.verify.comparison import STANDARD, THROUGHPUT, by_length, lines
from simulator.verify.trials import SHARES, MeanLengths, TrialSize, trials
from tests.simulator.served_worlds import measured, synchronous_plant

HOST = HostTimes(1e-3, 0.0, 0.0, 2e-3, 0.0, 0.0)


@pytest.fixture(scope="module")
def plant():
    return synchronous_plant(HOST)


@pytest.fixture(scope="module")
def trial(plant):
    return trials(lambda requests: simulate(plant, requests), 16, TrialSize(MeanLengths(), 60), rates=[2.0])[0]


def _times(run_: MeasuredRun, factor: float) -> MeasuredRun:
    values = {name: getattr(run_, name) * factor for name in ("ttft_s", "tpot_s", "e2e_s", "itl_s")}
    return replace(run_, **values)


def test_the_simulator_against_itself_has_no_error(plant, trial) -> None:
    truth = measured(plant, trial.requests)
    for line in lines("t", [truth, truth], {"own": simulate(plant, trial.requests)}, STANDARD.bars):
        tolerance = 0.02 if line.metric == "itl" else 1e-9  # inter-token percentiles are read from runs of steps
        assert abs(line.error("own")) <= tolerance
        assert line.noise == 0.0
        assert line.met("own") is not False


def test_the_simulator_against_itself_at_equal_length_is_one(plant, trial) -> None:
    truth, run = measured(plant, trial.requests), simulate(plant, trial.requests)
    (same,) = by_length("t", [truth, truth], {"own": run})
    assert same.ratios.ratio == pytest.approx(1.0, abs=1e-9)
    assert same.measured is not None
    assert same.simulated is not None
    assert same.measured.output_token_s == pytest.approx(same.simulated.output_token_s)
    assert same.words == (
        "t, own: at equal length, simulated end-to-end times are 1.00 times the measured ones "
        f"(1.00 to 1.00 in {len(same.ratios.bins)} bins of length)"
    )
    (half,) = by_length("t", [_times(truth, 2.0)], {"own": run})
    assert half.ratios.ratio == pytest.approx(0.5)
    assert half.block()["ratio"] == half.ratios.ratio


def test_error_noise_and_bar_by_hand(plant, trial) -> None:
    """Repeats 0.9 and 1.1 times the truth: mean 1, noise 10 %; a simulation 1.2 times it misses 8 % but not 15 %."""
    truth = measured(plant, trial.requests)
    slow = synchronous_plant(HOST)
    repeats = [_times(truth, 0.9 / 1.2), _times(truth, 1.1 / 1.2)]
    found = lines("t", repeats, {"own": simulate(slow, trial.requests)}, STANDARD.bars)
    by_name = {(line.metric, line.stat): line for line in found}
    tpot, e2e = by_name["tpot", "mean"], by_name["e2e", "p50"]
    assert tpot.error("own") == pytest.approx(0.2)
    assert tpot.noise == pytest.approx(0.1)
    assert tpot.met("own") is False  # 20 % less 10 % of noise is more than 8 %
    assert by_name["ttft", "mean"].met("own") is True  # its bar is 15 %
    assert e2e.met("own") is None  # nothing is asked of medians
    assert (THROUGHPUT, "mean") in by_name


def test_rates_are_shares_of_what_a_simulation_carries(plant) -> None:
    found = trials(lambda requests: simulate(plant, requests), 16, TrialSize(MeanLengths(), 40))
    rates = [float(t.name.removesuffix("/s")) for t in found[:-1]]
    assert [r / rates[-1] for r in rates] == pytest.approx([s / SHARES[-1] for s in SHARES], rel=0.1)
    last = found[-1].requests
    assert last.concurrency == 4
    for each in found:
        assert each.requests.n == 40
        assert 64 <= each.requests.input_tokens.min() <= each.requests.input_tokens.max() <= 192


def _calibration(**keys: object) -> EngineCalibration:
    host = MeasuredHost(
        step_s=5e-3, step_s_per_sequence=0, step_gap_s=0, request_s=1e-3, request_s_per_input_token=0, output_s=0
    )
    given = {
        "hardware": "rtx4090",
        "engine": "vllm",
        "engine_version": "0.32.0",
        "model": "m",
        "weight_dtype": "fp32",
        "n_layers": 24,
        "as_of": "2026-01-01",
        "source": "a probe",
        "host": host,
    }
    return EngineCalibration(**(given | keys))


@pytest.fixture
def user_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    return tmp_path


def test_measured_host_times_are_used_on_their_hardware_only(user_data: Path) -> None:  # noqa: ARG001
    engine_calibration.save(_calibration())
    small = {"model": "qwen2.5-0.5b", "max_num_seqs": 8, "max_num_batched_tokens": 512, "max_model_len": 2048}
    here, elsewhere = (compile_deployment(Deployment(hardware=name, **small)) for name in ("rtx4090", "h100"))
    assert here.resolved.engine.host.step_s == 5e-3
    assert here.resolved.engine.host.collective_skew_s == elsewhere.resolved.engine.host.collective_skew_s
    assert elsewhere.resolved.engine.host.step_s != 5e-3
    assert any("host times of vllm measured here" in text for text in here.notices)
    assert HOST_NOTICE not in here.notices
    other_engine = compile_deployment(Deployment(hardware="rtx4090", engine="sglang", **small))
    assert not other_engine.resolved.engine.host.measured


def test_eager_host_times_of_a_shallow_model_are_not_a_deep_ones(user_data: Path) -> None:  # noqa: ARG001
    """Without graphs the host launches every layer: a third of the layers is another host time, and that is said."""
    engine_calibration.save(_calibration(hardware="local", n_layers=8))
    cpu = replace(
        parse_hardware("rtx4090").accelerator, name="local", kind="cpu", peak_flops={"bf16": 1e12, "fp32": 1e12}
    )
    assert not _calibration(n_layers=8).suits(24)
    assert _calibration(n_layers=8).suits(16)
    written = Deployment(
        model="qwen2.5-0.5b", hardware="rtx4090", max_num_seqs=8, max_num_batched_tokens=512, max_model_len=2048
    )
    found = resolve(written)
    hardware = replace(found.hardware, node=replace(found.hardware.node, accelerator=cpu))
    eager = replace(found, hardware=hardware, engine=found.engine.on("cpu"))
    measured = with_measured_host(eager, measured_host_of(cpu, eager.engine))
    assert any("are not used: it has 8 layers, this model has 24" in text for text in measured.notices)
    assert not measured.engine.host.measured


@pytest.mark.parametrize("spoil", [lambda text: text[:40], lambda text: text.replace("rtx4090", "h100")])
def test_a_damaged_or_foreign_file_is_one_line(user_data: Path, spoil) -> None:  # noqa: ARG001
    path = engine_calibration.save(_calibration())
    path.write_text(spoil(path.read_text()))
    with pytest.raises(InputError, match="remove it"):
        engine_calibration.find("rtx4090", "vllm")
