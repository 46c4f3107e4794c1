"""Limits in which an engine is a textbook queue: simulated means against theory, inside their confidence interval."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from scipy.stats import t as student
from worlds import Linear, rules

from catalogs.request_set import RequestSet
from simulator.simulate import run_rules

BATCHES = 25


def half_width(values: npt.NDArray[np.float64], confidence: float = 0.99) -> float:
    """Of the mean's confidence interval, by batch means (consecutive waits are correlated)."""
    means = values[: len(values) // BATCHES * BATCHES].reshape(BATCHES, -1).mean(axis=1)
    return float(student.ppf(0.5 + confidence / 2, BATCHES - 1) * means.std(ddof=1) / np.sqrt(BATCHES))


def test_one_seat_and_constant_service_is_m_d_1() -> None:
    """Pollaczek-Khinchine: mean wait = rho S / (2 (1 - rho)), S = 1 s."""
    n, rho = 30_000, 0.7
    arrivals = np.cumsum(np.random.default_rng(1).exponential(1.0 / rho, n))
    ones = np.ones(n, dtype=np.int64)
    run = run_rules(rules(max_num_seqs=1), Linear(), RequestSet(arrivals, 8 * ones, ones))
    waits = run.queue_s[1000:]
    width = half_width(waits)
    assert width < 0.15
    assert abs(waits.mean() - rho / (2.0 * (1.0 - rho))) < width


def test_steps_proportional_to_the_batch_are_processor_sharing() -> None:
    """Step time proportional to the requests in it, exponential output lengths: M/M/1-PS, sojourn S / (1 - rho)."""
    n, rho, mean_tokens = 30_000, 0.6, 2000.0
    token_s = 1.0 / mean_tokens  # S = 1 s
    rng = np.random.default_rng(2)
    arrivals = np.cumsum(rng.exponential(1.0 / rho, n))
    outputs = np.maximum(1, np.rint(rng.exponential(mean_tokens, n))).astype(np.int64)
    engine = rules(max_num_seqs=500, max_num_batched_tokens=4096, kv_blocks=10**7, max_model_len=10**6)
    timer = Linear(base_s=0.0, decode_s=token_s, prompt_token_s=token_s)
    run = run_rules(engine, timer, RequestSet(arrivals, np.ones(n, dtype=np.int64), outputs))
    sojourns = run.e2e_s[1000:]
    width = half_width(sojourns)
    assert width < 0.25
    assert abs(sojourns.mean() - 1.0 / (1.0 - rho)) < width
