"""A comparison from end to end: probe, fit, replay, simulate, compare."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from calibration.engine_calibration import EngineCalibration, MeasuredHost
from calibration.serve.bystanders import CONTENDED_CORES
from calibration.serve.clients import Client
from calibration.serve.probe import BURST_INPUT_TOKENS, OUTPUT_TOKENS
from catalogs.errors import InputError
from simulator.engine_steps import EngineSteps
from simulator.plant import Plant, build_plant, with_host
from simulator.simulate import engine_rules, run, run_rules
from simulator.verify.compare import BOTTOM_UP, ENGINE_LEVEL, STANDARD, STANDARDS, Line, Standard, lines
from simulator.verify.measure import Bench, Probed, Told
from simulator.verify.probe_fit import fit_host, fit_requests, fit_steps
from simulator.verify.subject import Subject
from simulator.verify.trials import Lengths, Simulate, Size, trials


@dataclass(frozen=True, slots=True)
class Effort:
    """How much is measured. rates: requests/s of the open loops; () chooses them from light to near saturation."""

    size: Size = field(default_factory=Size)
    repeats: int = 3
    rates: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Verification:
    """What a comparison found. `ways`: how the simulator was calibrated."""

    subject: Subject
    client: str
    plant: Plant
    calibration: EngineCalibration
    ways: tuple[str, ...]
    lines: tuple[Line, ...]
    others_cores: float
    effort: Effort

    @property
    def contended(self) -> bool:
        return self.others_cores > CONTENDED_CORES

    @property
    def judged(self) -> str:
        """The way that must keep to the bars."""
        return _standard(self.subject).judged

    def missed(self, way: str) -> list[Line]:
        """Lines whose error exceeds its bar beyond the noise."""
        return [line for line in self.lines if line.met(way) is False]


def verify(subject: Subject, client: Client, effort: Effort, out: Path, told: Told) -> Verification:
    """Measure and simulate; everything measured stays in the folder `out`. InputError as engine or client raise it."""
    plant = build_plant(subject.deployment, measured_host=False)
    seats, most_input_tokens = plant.resolved.limits.max_num_seqs, _most_input_tokens(plant, effort.size.lengths)
    with Bench(subject, client, out, told) as bench:
        probed = bench.probe(most_input_tokens, seats)
        calibration = _calibration(plant, probed)
        fitted = _with(plant, calibration.host)
        ways = _ways(fitted, calibration, probed)
        chosen = trials(ways.get(ENGINE_LEVEL, ways[BOTTOM_UP]), seats, effort.size, effort.rates)
        replayed = bench.replay(chosen, effort.repeats)
    bars = _standard(subject).bars
    found: list[Line] = []
    for trial in chosen:
        runs = {way: simulate(trial.requests) for way, simulate in ways.items()}
        found += lines(trial.name, replayed.runs[trial.name], runs, bars)
    others = max([probed.others_cores, *replayed.others_cores.values()])
    return Verification(subject, client.name, fitted, calibration, tuple(ways), tuple(found), others, effort)


def _standard(subject: Subject) -> Standard:
    return STANDARDS.get(subject.deployment.engine, STANDARD)


def _most_input_tokens(plant: Plant, lengths: Lengths) -> int:
    """Of the probe: twice the longest request, where the engine takes that. InputError where it takes too little."""
    most, seats = plant.resolved.limits.max_model_len, plant.resolved.limits.max_num_seqs
    if max(lengths.longest, BURST_INPUT_TOKENS + OUTPUT_TOKENS) > most:
        raise InputError("the engine's longest sequence must hold every request", most, f"{lengths.longest} tokens")
    if seats < 2:
        raise InputError("a comparison needs an engine that runs several requests at once", seats, "max_num_seqs: 2")
    return min(2 * lengths.longest, most - OUTPUT_TOKENS)


def _ways(fitted: Plant, calibration: EngineCalibration, probed: Probed) -> dict[str, Simulate]:
    """How to simulate a set of requests, by way of calibrating."""
    found: dict[str, Simulate] = {BOTTOM_UP: partial(run, fitted)}
    if calibration.steps is not None:
        timer = EngineSteps(calibration.steps)
        rules = engine_rules(_with(fitted, fit_requests(probed.probe, fitted, timer)))
        found[ENGINE_LEVEL] = partial(run_rules, rules, timer)
    return found


def _calibration(plant: Plant, probed: Probed) -> EngineCalibration:
    resolved = plant.resolved
    return EngineCalibration(
        hardware=resolved.hardware.accelerator.name,
        engine=resolved.engine.name,
        engine_version=probed.engine_version,
        model=Path(resolved.model.name).name,
        weight_dtype=resolved.weight_dtype,
        n_layers=resolved.model.n_layers,
        tensor_parallel=resolved.layout.tensor_parallel,
        as_of=time.strftime("%Y-%m-%d"),
        source=f"probe of {probed.probe.lone.n + probed.probe.bursts.n} requests by {probed.probe.lone.client}",
        host=fit_host(probed.probe, plant),
        steps=fit_steps(probed.probe, probed.log, resolved.limits.max_num_batched_tokens),
        contended=probed.others_cores > CONTENDED_CORES,
    )


def _with(plant: Plant, host: MeasuredHost) -> Plant:
    return with_host(plant, replace(plant.resolved.engine.host, **host.model_dump(), measured=True))
