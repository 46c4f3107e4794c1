"""Which hardware and engine of the catalog would serve a model as an endpoint does, with the likelihood of each.

The requests that the endpoint answered are simulated on every candidate: the same lengths, with as many clients. The
ratio of a measured to a simulated latency has a known distribution, the error that is stated with every answer of this
engine (calibration.accuracy.stated_error), and so every candidate has a likelihood. Of the candidates that can serve
the model, all hardware is equally likely a priori, then all engines on it, then all sizes and number formats of these.
The measured values have no part in this: candidates that they rule out keep their share. The calculation is:

- The measured values are the mean time to first token, without the time of the network, and the mean time per output
  token, at every concurrency.
- Their logarithms are normal around those of the simulated values plus the centre of the stated error. Its standard
  deviation is half the range between the 16 % and the 84 % quantile of the stated error.
- The errors of one metric at two concurrencies are correlated by CORRELATION, because a model that is wrong at one load
  is wrong in the same direction at another. The errors of two metrics are independent. The standard error of a measured
  mean is added.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np

from calibration.accuracy.regime import Regime
from calibration.accuracy.stated_error import METRICS, StatedError, load_file, waiting_share
from catalogs.arrays import FloatArray
from catalogs.deployments.schema import Deployment
from catalogs.errors import InputError
from catalogs.hardware.catalog import list_hardware, parse_hardware
from catalogs.models.spec import ModelSpec
from catalogs.ui.progress import CountCallback
from catalogs.workloads.request_set import RequestSet
from simulator.analysis.energy import pool_uses
from simulator.cluster.compiled import CompiledDeployment, compile_deployment
from simulator.cluster.simulate import simulate
from simulator.endpoint.measurement import EndpointMeasurement, MeasuredLevel, lengths

#: Engines that are compared where the user names none: the present versions of those that serve language models.
ENGINES: Final = ("vllm", "sglang", "trtllm", "llama.cpp", "transformers")

#: Accelerators that one replica is split over by tensor parallelism.
COUNTS: Final = (1, 2, 4, 8)

#: Number formats of weights; None is the model's own.
WEIGHTS: Final = (None, "fp8", "int4")

#: The compared latencies.
COMPARED: Final = ("ttft", "tpot")

#: Correlation of the errors of one metric at two concurrencies. A judgement: a model that is wrong at one load is
#: mostly wrong in the same way at another, but not entirely.
CORRELATION: Final = 0.8

#: Candidates that are further from the measurement without load than this, in standard deviations, are not simulated
#: under load: their likelihood is below 1e-7 of that of a candidate that agrees.
FAR_DEVIATIONS: Final = 6.0

#: Below this probability of so large a deviation, no candidate agrees with the measurement. A judgement: the usual 1 %.
DISAGREES: Final = 0.01

#: The least relative standard error of a measured mean. A judgement: few equal requests would otherwise seem exact.
_LEAST_NOISE: Final = 0.01


@dataclass(frozen=True, slots=True)
class LikelyDeployment:
    """One replica of an engine on hardware of the catalog."""

    hardware: str
    engine: str
    count: int
    weight_dtype: str | None

    def deployment(self, model: str, max_model_len: int) -> Deployment:
        """Return the deployment of the candidate."""
        text = self.hardware if self.hardware == "local" else f"{self.hardware}x{self.count}"
        return Deployment(
            model=model,
            engine=self.engine,
            hardware=text,
            tensor_parallel=self.count,
            weight_dtype=self.weight_dtype,
            max_model_len=max_model_len,
        )


@dataclass(frozen=True, slots=True)
class ObservedLatency:
    """The mean of a latency of an endpoint at a concurrency, seconds, and its relative standard error."""

    metric: str
    level: MeasuredLevel
    mean_s: float
    noise: float


@dataclass(frozen=True, slots=True)
class RankedCandidate:
    """A candidate with its share of the likelihood of all.

    Attributes:
        candidate: The candidate.
        weight_dtype: The number format of its weights.
        log_likelihood: Natural logarithm of the density of the measured values.
        deviation: Square of the distance to the measured values in standard deviations (Mahalanobis).
        simulated_s: Simulated mean latencies in the order of the observed ones.
        probability: The probability of the candidate, given that one of all candidates serves the endpoint.
    """

    candidate: LikelyDeployment
    weight_dtype: str
    log_likelihood: float
    deviation: float
    simulated_s: tuple[float, ...]
    probability: float = 0.0


@dataclass(frozen=True, slots=True)
class Identification:
    """The candidates in the order of their probability.

    Attributes:
        model: Name of the model in the catalog.
        observed: The measured values that were compared.
        ranked: The candidates that were simulated at all concurrencies.
        hardware: The probability of each accelerator, the highest first, with that of each engine on it.
        n_far: Candidates that are too far from the measurement without load.
        refused: Candidates that cannot serve the model, by reason.
        agreement: The probability of a deviation as large as that of the nearest candidate or larger, if it
            is the true one.
    """

    model: str
    observed: tuple[ObservedLatency, ...]
    ranked: tuple[RankedCandidate, ...]
    hardware: dict[str, dict[str, float]] = field(default_factory=dict)
    n_far: int = 0
    refused: dict[str, int] = field(default_factory=dict)
    agreement: float = 0.0


def candidates(hardware: Sequence[str], engines: Sequence[str], local: bool) -> Iterator[LikelyDeployment]:
    """Yield the candidates of some hardware, or of all, and some engines.

    Args:
        hardware: Names of accelerators; () for all of the catalog.
        engines: Names of engines; () for ENGINES.
        local: Whether this machine is a candidate.
    """
    names = list(hardware) or [*(["local"] if local else []), *list_hardware()]
    for name in names:
        found = parse_hardware(name)
        plain = found.accelerator.name if found.text != "local" else "local"
        most = 1 if plain == "local" else found.node.max_accelerators
        for engine in engines or ENGINES:
            for count in (n for n in COUNTS if n <= most):
                for weights in WEIGHTS:
                    yield LikelyDeployment(plain, engine, count, weights)


def observed_latencies(found: EndpointMeasurement) -> tuple[ObservedLatency, ...]:
    """Return the latencies that are compared; () if the endpoint does not stream."""
    rows = []
    for metric in COMPARED:
        for level in found.levels:
            values = np.array([_value(reply, metric) for _, _, reply in lengths(level)], dtype=np.float64)
            values = values[np.isfinite(values)]
            if not len(values):
                continue
            mean_s = float(values.mean()) - (found.target.network_s if metric == "ttft" else 0.0)
            if mean_s <= 0:
                continue
            spread = float(values.std(ddof=1)) / mean_s if len(values) > 1 else 1.0
            rows.append(ObservedLatency(metric, level, mean_s, max(spread / math.sqrt(len(values)), _LEAST_NOISE)))
    return tuple(rows)


def _value(reply: Any, metric: str) -> float:
    found = getattr(reply, f"{metric}_s")
    return float("nan") if found is None else float(found)


def identify(
    found: EndpointMeasurement,
    model: ModelSpec,
    model_name: str,
    among: Sequence[LikelyDeployment],
    tell: CountCallback,
) -> Identification:
    """Return the candidates that would behave as an endpoint does.

    Args:
        found: The measurement.
        model: The model that the endpoint serves.
        model_name: Its name in the catalog, or the folder of its configuration.
        among: The candidates.
        tell: Shows how many candidates are compared.

    Raises:
        InputError: The endpoint does not stream, so its latencies cannot be compared.
    """
    observed = observed_latencies(found)
    if not observed:
        raise InputError("the endpoint does not stream, so its latencies are not compared", found.target.server.host)
    longest = max(i + o for level in found.levels for i, o, _ in lengths(level))
    context = _context(longest, model)
    refused: Counter[str] = Counter()
    far, ranked, able = 0, list[RankedCandidate](), Counter[tuple[str, str]]()
    lightest = min(x.level.concurrency for x in observed)
    for i, candidate in enumerate(among, 1):
        tell(i, len(among), "deployments compared")
        try:
            compiled = compile_deployment(candidate.deployment(model_name, context))
            if candidate.weight_dtype is not None and compiled.resolved.weight_dtype == model.weight_dtype:
                continue  # the same deployment as that with the model's own weights
            able[candidate.hardware, candidate.engine] += 1
            light = [x for x in observed if x.level.concurrency == lightest]
            if _compared(candidate, compiled, light).deviation > FAR_DEVIATIONS**2 + len(light):
                far += 1
                continue
            ranked.append(_compared(candidate, compiled, observed))
        except InputError as error:
            refused[_kind(error.rule)] += 1
    return _weighted(Identification(model.name, observed, tuple(ranked), {}, far, dict(refused.most_common())), able)


def _kind(rule: str) -> str:
    """Return a rule without the hardware and the sizes that differ from candidate to candidate."""
    return re.sub(r" on [\w.:-]+x\d+$", "", rule.partition(": ")[0])


def _context(longest: int, model: ModelSpec) -> int:
    """Return the longest sequence of the candidates: twice that of the requests, and at least 4,096."""
    wanted = 1 << max(2 * longest - 1, 1).bit_length()
    return min(max(wanted, 4096), model.max_position_tokens)


def _compared(
    candidate: LikelyDeployment, compiled: CompiledDeployment, observed: Sequence[ObservedLatency]
) -> RankedCandidate:
    """Return a candidate with its likelihood.

    Raises:
        InputError: A request cannot be served.
    """
    runs = {}
    simulated, sigmas, centres = list[float](), list[float](), list[float]()
    for value in observed:
        key = value.level.concurrency
        if key not in runs:
            runs[key] = _simulated(compiled, value.level)
        means_s, stated = runs[key]
        centre, sigma = log_error(stated, value.metric)
        simulated.append(means_s[value.metric])
        centres.append(centre)
        sigmas.append(sigma)
    measured = np.array([x.mean_s for x in observed])
    residuals = np.log(measured / np.array(simulated)) - np.array(centres)
    covariance = error_covariance([x.metric for x in observed], np.array(sigmas), np.array([x.noise for x in observed]))
    deviation = float(residuals @ np.linalg.solve(covariance, residuals))
    log_det = float(np.linalg.slogdet(covariance)[1])
    log_likelihood = -0.5 * (deviation + log_det + len(observed) * math.log(2 * math.pi))
    return RankedCandidate(candidate, compiled.resolved.weight_dtype, log_likelihood, deviation, tuple(simulated))


def _simulated(compiled: CompiledDeployment, level: MeasuredLevel) -> tuple[dict[str, float], StatedError]:
    """Return the simulated mean latencies of the requests of a level by metric, and their stated error.

    Raises:
        InputError: A request cannot be served.
    """
    pairs = np.array([(i, o) for i, o, _ in lengths(level)], dtype=np.int64)
    n = len(pairs)
    requests = RequestSet(np.zeros(n), pairs[:, 0], pairs[:, 1], concurrency=min(level.concurrency, n), name="endpoint")
    run = simulate(compiled, requests)
    if not run.completed.all():
        raise InputError("requests of the endpoint do not fit", int((~run.completed).sum()))
    share = waiting_share(run.ttft_s, run.queue_s, np.mean)
    error = pool_uses(run)[0].totals.expected_error
    regime = Regime.of(compiled.resolved.model, compiled.resolved.hardware.accelerator)
    stated = StatedError.of(compiled.resolved.engine.name, error, regime, share)
    return {"ttft": float(np.mean(run.ttft_s)), "tpot": float(np.nanmean(run.tpot_s))}, stated


def log_error(stated: StatedError, metric: str) -> tuple[float, float]:
    """Return the centre and the standard deviation of log(measured / simulated) of a metric.

    An engine without compared whole runs has the widest error of those with them, centred at zero.
    """
    if stated.group(metric) is not None:
        low, middle, high = np.log(stated.factors(metric, np.array([0.16, 0.5, 0.84])))
        return float(middle), max(float(high - low) / 2, 1e-3)
    assert metric in METRICS
    engines = {group.engine for group in load_file().groups if group.metric == metric}
    known = [StatedError.of(engine, stated.operator_error, stated.regime, stated.waiting_share) for engine in engines]
    return 0.0, max((log_error(other, metric)[1] for other in known), default=1.0)


def error_covariance(metrics: Sequence[str], sigmas: FloatArray, noise: FloatArray) -> FloatArray:
    """Return the covariance of the logarithms of measured over simulated values, shape (n, n).

    Args:
        metrics: The metric of each value.
        sigmas: Standard deviation of the simulation's error of each value. Shape (n,).
        noise: Relative standard error of each measured value. Shape (n,).
    """
    same = np.array([[a == b for b in metrics] for a in metrics])
    correlation = np.where(same, CORRELATION, 0.0)
    np.fill_diagonal(correlation, 1.0)
    return np.asarray(np.outer(sigmas, sigmas) * correlation + np.diag(noise**2))


def chi_square_exceeded(value: float, degrees: int) -> float:
    """Return the probability that a sum of `degrees` squared standard normal values exceeds `value`.

    The closed form for whole degrees of freedom is equations 26.4.4 and 26.4.5 of Abramowitz and Stegun, *Handbook of
    Mathematical Functions* (1964).

    Raises:
        ValueError: There is not at least one degree of freedom, or the value is negative.
    """
    if degrees < 1 or value < 0.0:
        raise ValueError(f"no chi-square distribution has {degrees} degrees of freedom and a value of {value}")
    half = value / 2.0
    if degrees % 2:
        total, term, first = math.erfc(math.sqrt(half)), math.exp(-half) * 2.0 * math.sqrt(half / math.pi), 1.5
    else:
        total, term, first = 0.0, math.exp(-half), 1.0
    for i in range(degrees // 2):
        total += term
        term *= half / (first + i)
    return total


def _weighted(found: Identification, able: Mapping[tuple[str, str], int]) -> Identification:
    """Return an identification with the probabilities of its candidates, in their order.

    Args:
        found: The identification.
        able: How many candidates of each hardware and engine can serve the model, also those that are not ranked.
    """
    if not found.ranked:
        return found
    engines = Counter(hardware for hardware, _ in able)
    logs = np.array(
        [
            r.log_likelihood
            - math.log(able[r.candidate.hardware, r.candidate.engine])
            - math.log(engines[r.candidate.hardware])
            for r in found.ranked
        ]
    )
    weights = np.exp(logs - logs.max())
    shares = (weights / weights.sum()).tolist()
    ranked = [replace(r, probability=p) for r, p in zip(found.ranked, shares, strict=True)]
    ranked.sort(key=lambda r: -r.probability)
    hardware: dict[str, dict[str, float]] = {}
    for each in ranked:
        inner = hardware.setdefault(each.candidate.hardware, {})
        inner[each.candidate.engine] = inner.get(each.candidate.engine, 0.0) + each.probability
    ordered = dict(sorted(hardware.items(), key=lambda item: -sum(item[1].values())))
    nearest = min(r.deviation for r in ranked)
    return replace(
        found, ranked=tuple(ranked), hardware=ordered, agreement=chi_square_exceeded(nearest, len(found.observed))
    )
