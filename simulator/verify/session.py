"""A comparison from end to end: probe, fit, replay, simulate, compare."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from calibration.engine_calibration import EngineCalibration, MeasuredHost
from calibration.serve.bystanders import CONTENDED_CORES
from calibration.serve.clients import Client
from simulator.engine_steps import EngineSteps
from simulator.plant import Plant, build_plant, with_host
from simulator.run_record import Run
from simulator.simulate import engine_rules, run, run_rules
from simulator.verify.compare import Line, bars_for, lines
from simulator.verify.measure import Bench, Probed, Told
from simulator.verify.probe_fit import fit_host, fit_requests, fit_steps
from simulator.verify.subject import Subject
from simulator.verify.trials import Lengths, Trial, trials

BOTTOM_UP: Final = "bottom-up"  # operators and host times
ENGINE_LEVEL: Final = "engine-level"  # whole steps


@dataclass(frozen=True, slots=True)
class Effort:
    """How much is measured. rates: requests/s of the open loops; () chooses them from light to near saturation."""

    lengths: Lengths = field(default_factory=Lengths)
    requests: int = 100
    repeats: int = 3
    rates: tuple[float, ...] = ()
    seed: int = 1


@dataclass(frozen=True, slots=True)
class Verification:
    """What a comparison found. `ways`: how the simulator was calibrated, the first is judged."""

    subject: Subject
    client: str
    plant: Plant
    calibration: EngineCalibration
    ways: tuple[str, ...]
    lines: tuple[Line, ...]
    others_cores: float
    repeats: int
    requests: int

    @property
    def contended(self) -> bool:
        return self.others_cores > CONTENDED_CORES

    def missed(self, way: str) -> list[Line]:
        """Lines whose error exceeds its bar beyond the noise."""
        return [line for line in self.lines if line.met(way) is False]


def verify(subject: Subject, client: Client, effort: Effort, out: Path, told: Told) -> Verification:
    """Measure and simulate; everything measured stays in the folder `out`. InputError as engine or client raise it."""
    plant = build_plant(subject.deployment)
    with Bench(subject, client, out, told) as bench:
        probed = bench.probe(effort.lengths.longest * 2, plant.resolved.max_num_seqs)
        calibration = _calibration(plant, probed)
        fitted = _with(plant, calibration.host)
        chosen = trials(fitted, effort.lengths, effort.requests, effort.seed, effort.rates)
        replayed = bench.replay(chosen, effort.repeats)
    bars = bars_for(subject.deployment.engine)
    found: list[Line] = []
    ways: tuple[str, ...] = ()
    for trial in chosen:
        runs = _simulated(trial, fitted, calibration, probed)
        ways = tuple(runs)
        found += lines(trial.name, replayed.runs[trial.name], runs, bars)
    others = max([probed.others_cores, *replayed.others_cores.values()])
    return Verification(
        subject, client.name, fitted, calibration, ways, tuple(found), others, effort.repeats, effort.requests
    )


def _calibration(plant: Plant, probed: Probed) -> EngineCalibration:
    resolved = plant.resolved
    return EngineCalibration(
        hardware=resolved.hardware.accelerator.name,
        engine=resolved.engine.name,
        engine_version=probed.engine_version,
        model=Path(resolved.model.name).name,
        weight_dtype=resolved.weight_dtype,
        tensor_parallel=resolved.tensor_parallel,
        as_of=time.strftime("%Y-%m-%d"),
        source=f"probe of {probed.probe.lone.n + probed.probe.bursts.n} requests by {probed.probe.lone.client}",
        host=fit_host(probed.probe, plant),
        steps=None if probed.log is None else fit_steps(probed.probe, probed.log),
        contended=probed.others_cores > CONTENDED_CORES,
    )


def _simulated(trial: Trial, fitted: Plant, calibration: EngineCalibration, probed: Probed) -> dict[str, Run]:
    """The trial by every way of calibrating that there is."""
    found = {BOTTOM_UP: run(fitted, trial.requests)}
    if calibration.steps is not None:
        timer = EngineSteps(calibration.steps)
        host = fit_requests(probed.probe, fitted, timer)
        found[ENGINE_LEVEL] = run_rules(engine_rules(_with(fitted, host)), timer, trial.requests)
    return found


def _with(plant: Plant, host: MeasuredHost) -> Plant:
    return with_host(plant, replace(plant.resolved.engine.host, **host.model_dump(), measured=True))
