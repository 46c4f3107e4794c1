"""A comparison from end to end: probe, fit, replay, simulate, compare."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from calibration.accuracy.measured_run import MeasuredRun
from calibration.bundles.engine_calibration import EngineCalibration, MeasuredHost
from calibration.profile.machine.contention import CONTENDED_CORES
from calibration.serve.clients import Client
from calibration.serve.probe import BURST_INPUT_TOKENS, OUTPUT_TOKENS
from catalogs.errors import InputError
from simulator.cluster.compiled import CompiledDeployment, compile_deployment, with_host
from simulator.cluster.run import Run
from simulator.cluster.simulate import engine_rules, run_rules
from simulator.cluster.simulate import simulate as run
from simulator.costs.measured_steps import MeasuredStepTimer
from simulator.verify.comparison import (
    BOTTOM_UP,
    ENGINE_LEVEL,
    STANDARD,
    STANDARDS,
    ComparisonLine,
    LengthComparison,
    by_length,
    lines,
)
from simulator.verify.engines import EngineSubject
from simulator.verify.measurement import EngineUnderTest, Probed, Tell
from simulator.verify.probe_fit import fit_host, fit_requests, fit_steps
from simulator.verify.trials import MeanLengths, Simulate, TrialSize, trials


@dataclass(frozen=True, slots=True)
class VerificationEffort:
    """How much a comparison measures: the requests of each trial, the repeats and the rates.

    `rates` are the requests per second of the open loops; () chooses rates from light load to near saturation.
    """

    size: TrialSize = field(default_factory=TrialSize)
    repeats: int = 3
    rates: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Verification:
    """The result of a comparison. `ways` are the ways in which the simulator was calibrated."""

    subject: EngineSubject
    client: str
    compiled: CompiledDeployment
    calibration: EngineCalibration
    ways: tuple[str, ...]
    lines: tuple[ComparisonLine, ...]
    others_cores: float
    effort: VerificationEffort
    measured: Mapping[str, Sequence[MeasuredRun]] = field(default_factory=dict)  # the repeats of each trial
    simulated: Mapping[tuple[str, str], Run] = field(default_factory=dict)  # by trial and way of calibration
    by_length: tuple[LengthComparison, ...] = ()

    @property
    def contended(self) -> bool:
        """Return whether other processes used the machine."""
        return self.others_cores > CONTENDED_CORES

    @property
    def judged(self) -> str:
        """Return the way of calibration that must stay within the bars."""
        return STANDARDS.get(self.subject.deployment.engine, STANDARD).judged

    def missed(self, way: str) -> list[ComparisonLine]:
        """Return the lines whose error exceeds the bar plus the noise."""
        return [line for line in self.lines if line.met(way) is False]


def verify(
    subject: EngineSubject,
    client: Client,
    effort: VerificationEffort,
    out: Path,
    tell: Tell,
    machine: Path | None = None,
) -> Verification:
    """Measure, simulate and compare; all measurements stay in the folder `out`.

    The trace of the machine with its page goes to the folder `machine`, without the page to `out` if that is None.

    Raises:
        InputError: The engine or the client cannot run the comparison.
    """
    compiled = compile_deployment(subject.deployment, measured_host=False)
    seats, most_input_tokens = compiled.resolved.limits.max_num_seqs, _most_input_tokens(compiled, effort.size.lengths)
    with EngineUnderTest(subject, client, out, tell, machine) as engine:
        probed = engine.probe(most_input_tokens, seats)
        calibration = _calibration(compiled, probed)
        fitted = _with_measured(compiled, calibration.host)
        ways: dict[str, Simulate] = {BOTTOM_UP: partial(run, fitted)}
        if calibration.steps is not None:
            timer = MeasuredStepTimer(calibration.steps)
            rules = engine_rules(_with_measured(fitted, fit_requests(probed.probe, fitted, timer)))
            ways[ENGINE_LEVEL] = partial(run_rules, rules, timer)
        chosen = trials(ways.get(ENGINE_LEVEL, ways[BOTTOM_UP]), seats, effort.size, effort.rates)
        measured, others_cores = engine.replay(chosen, effort.repeats)
    bars = STANDARDS.get(subject.deployment.engine, STANDARD).bars
    found: list[ComparisonLine] = []
    simulated: dict[tuple[str, str], Run] = {}
    lengths: list[LengthComparison] = []
    for trial in chosen:
        runs = {way: simulate(trial.requests) for way, simulate in ways.items()}
        found += lines(trial.name, measured[trial.name], runs, bars)
        lengths += by_length(trial.name, measured[trial.name], runs)
        simulated |= {(trial.name, way): each for way, each in runs.items()}
    others = max(probed.others_cores, others_cores)
    judged = tuple(ways), tuple(found), others
    rows = measured, simulated, tuple(lengths)
    return Verification(subject, client.name, fitted, calibration, *judged, effort, *rows)


def _most_input_tokens(compiled: CompiledDeployment, lengths: MeanLengths) -> int:
    """Return the longest prompt of the probe: twice the longest request, if the engine takes that.

    Raises:
        InputError: The engine takes too short sequences or too few requests.
    """
    most, seats = compiled.resolved.limits.max_model_len, compiled.resolved.limits.max_num_seqs
    if max(lengths.longest, BURST_INPUT_TOKENS + OUTPUT_TOKENS) > most:
        raise InputError("the engine's longest sequence must hold every request", most, f"{lengths.longest} tokens")
    if seats < 2:
        raise InputError("a comparison needs an engine that runs several requests at once", seats, "max_num_seqs: 2")
    return min(2 * lengths.longest, most - OUTPUT_TOKENS)


def _calibration(compiled: CompiledDeployment, probed: Probed) -> EngineCalibration:
    resolved = compiled.resolved
    return EngineCalibration(
        hardware=resolved.hardware.accelerator.name,
        engine=resolved.engine.name,
        engine_version=probed.engine_version,
        model=Path(resolved.model.name).name,
        weight_dtype=resolved.weight_dtype,
        n_layers=resolved.model.n_layers,
        tensor_parallel=resolved.layout.tensor_parallel,
        as_of=time.strftime("%Y-%m-%d"),
        source=f"probe of {probed.probe.single.n + probed.probe.bursts.n} requests by {probed.probe.single.client}",
        host=fit_host(probed.probe, compiled),
        steps=fit_steps(probed.probe, probed.log, resolved.limits.max_num_batched_tokens),
        contended=probed.others_cores > CONTENDED_CORES,
    )


def _with_measured(compiled: CompiledDeployment, host: MeasuredHost) -> CompiledDeployment:
    return with_host(compiled, replace(compiled.resolved.engine.host, **host.model_dump(), measured=True))
