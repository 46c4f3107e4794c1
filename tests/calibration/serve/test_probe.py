"""A probe whose client loses requests: they are sent again, alone or with their burst, and the reason is shown."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from calibration.accuracy.measured_run import FailedRequest, MeasuredRun, combined
from calibration.serve.clients import Endpoint, IncompleteReplay, complete
from calibration.serve.probe import (
    BURSTS,
    N_LENGTHS,
    REPEATS,
    ProbeLimits,
    joined,
    probe,
    repeats_within,
    replay_groups,
)
from catalogs.errors import InputError
from catalogs.workloads.request_set import RequestSet

TARGET = Endpoint("", "m", "")
REASON = "ServerDisconnectedError: Server disconnected"


def measured(requests: RequestSet, lost: dict[int, str]) -> MeasuredRun:
    """A run in which a first token takes 1 ms for each prompt token, and each further token 10 ms."""
    kept = np.array([i not in lost for i in range(requests.n)])
    inputs, outputs = requests.input_tokens[kept].astype(float), requests.output_tokens[kept]
    n_gaps = tuple(int(n) - 1 for n in outputs)
    return MeasuredRun(
        client="test client",
        source="r",
        arrival_s=requests.arrival_s[kept],
        input_tokens=inputs,
        output_tokens=outputs.astype(float),
        ttft_s=1e-3 * inputs,
        tpot_s=np.full(len(inputs), 0.01),
        e2e_s=1e-3 * inputs + 0.01 * (outputs - 1),
        itl_s=np.full(sum(n_gaps), 0.01),
        duration_s=100.0,
        n_failed=len(lost),
        n_gaps=n_gaps,
        failures=tuple(FailedRequest(i, reason) for i, reason in sorted(lost.items())),
    )


class LossyClient:
    """Loses the given requests of its first replays, as a server that closes idle connections does."""

    name = "test client"

    def __init__(self, losses: list[list[int]]) -> None:
        self.losses, self.sent = losses, []

    def replay(self, requests: RequestSet, target: Endpoint, out: Path) -> MeasuredRun:  # noqa: ARG002
        lost = self.losses.pop(0) if self.losses else []
        self.sent.append(requests)
        return complete(measured(requests, dict.fromkeys(lost, REASON)), requests, out)


def test_a_probe_survives_what_ended_one(tmp_path: Path) -> None:
    """Five of 62 requests fail, in two bursts: only these bursts are sent again, with their distances."""
    told: list[str] = []
    clean = probe(LossyClient([]), TARGET, ProbeLimits(256, 32), tmp_path, told.append)
    assert not told
    sizes = [n for n in BURSTS if n <= 32]
    assert sum(sizes) == 62
    # the warm-up and the single requests once more, the first bursts twice more, the further ones once
    client = LossyClient([[3], [], [0, 23], [], [4, 30, 31, 32, 33], [1], []])
    found = probe(client, TARGET, ProbeLimits(256, 32), tmp_path, told.append)
    assert [len(told), len(client.sent)] == [4, 8]
    assert REASON in told[0]
    assert "request 4" in told[0]
    assert "5 of 62 requests failed (request 5, 31, 32, 33, 34:" in told[2]
    for mine, own in ((found.single, clean.single), (found.bursts, clean.bursts)):
        assert (mine.n, mine.n_failed) == (own.n, 0)
        assert mine.input_tokens.tolist() == own.input_tokens.tolist()
        assert mine.ttft_s == pytest.approx(own.ttft_s)
        assert mine.n_gaps == own.n_gaps
    again = client.sent[5]
    spoiled = sorted({burst_of(sizes, i) for i in (4, 30, 31, 32, 33)})
    assert again.n == sum(sizes[b] for b in spoiled)
    starts = np.unique(again.arrival_s)
    assert len(starts) == len(spoiled)
    assert starts[0] == 0.0


def test_a_fast_model_is_probed_at_several_moments(tmp_path: Path) -> None:
    """Rounds that are over quickly are repeated more often, each with every length and every size of burst."""
    client = LossyClient([])
    found = probe(client, TARGET, ProbeLimits(16, 4), tmp_path, [].append)
    assert repeats_within(10.0, 4.0) == 2
    assert repeats_within(10.0, 1.0) == REPEATS[1]
    rounds = found.single.input_tokens.reshape(-1, N_LENGTHS)
    assert len(rounds) == repeats_within(10.0, float(found.single.e2e_s[:N_LENGTHS].sum()))
    assert (np.sort(rounds) == np.sort(rounds[0])).all()
    assert (rounds[0] != rounds[1]).any()
    assert found.burst_sizes == (2, 4) * (len(found.burst_sizes) // 2)
    assert len(found.burst_sizes) > 2 * REPEATS[0]
    once, further = client.sent[2:]
    assert (once.n, further.n) == (6, found.bursts.n - 6)
    spaces_s = 2.0 * (0.096 + 0.23) + 0.05
    assert np.unique(further.arrival_s)[:3] == pytest.approx([0.0, spaces_s, 2 * spaces_s])
    assert float(once.arrival_s[-1]) > spaces_s


def test_probes_are_joined_request_by_request(tmp_path: Path) -> None:
    first, second = (probe(LossyClient([]), TARGET, ProbeLimits(16, most), tmp_path, [].append) for most in (2, 4))
    both = joined([first, second])
    assert both.burst_sizes == first.burst_sizes + second.burst_sizes
    assert both.bursts.n == sum(both.burst_sizes)
    assert both.single.input_tokens.tolist() == [
        *first.single.input_tokens.tolist(),
        *second.single.input_tokens.tolist(),
    ]
    assert [len(gaps) for gaps in both.single.gaps()] == [23] * both.single.n
    assert not both.burst_passes
    known = (replace(first, burst_passes=(1,) * len(first.burst_sizes)), replace(second, burst_passes=(2,) * 4))
    assert joined(known).burst_passes == known[0].burst_passes + (2,) * 4
    assert joined([known[0], second]).burst_passes == ()


def burst_of(sizes: list[int], position: int) -> int:
    return int(np.searchsorted(np.cumsum(sizes), position, side="right"))


def test_requests_that_always_fail_end_the_probe_with_their_reason(tmp_path: Path) -> None:
    client, told = LossyClient([[0]] * 10), []
    requests = RequestSet(np.zeros(3), np.array([5, 6, 7]), np.array([4, 4, 4]), concurrency=1)
    with pytest.raises(IncompleteReplay) as caught:
        replay_groups(client, TARGET, requests, np.arange(3), tmp_path / "single", told.append)
    line = str(caught.value)
    assert "1 of 1 requests failed (request 1: ServerDisconnectedError" in line
    assert "got" not in line
    assert [each.n for each in client.sent] == [3, 1, 1]
    assert len(told) == 2


def test_a_client_without_reasons_repeats_everything(tmp_path: Path) -> None:
    requests = RequestSet(np.zeros(3), np.array([5, 6, 7]), np.array([4, 4, 4]), concurrency=1)
    run = measured(requests, {1: ""})
    unnamed = MeasuredRun(**{name: getattr(run, name) for name in run.__dataclass_fields__} | {"failures": ()})
    with pytest.raises(IncompleteReplay, match="gives no reason") as caught:
        complete(unnamed, requests, tmp_path)
    assert not caught.value.finished.any()


def test_runs_are_combined_in_the_order_of_their_requests() -> None:
    requests = RequestSet(np.zeros(3), np.array([5, 6, 7]), np.array([2, 3, 4]), concurrency=1)
    whole = measured(requests, {})
    parts = [(np.array([k]), whole.picked(np.arange(3) == k)) for k in (2, 0, 1)]
    found = combined(parts)
    assert found.input_tokens.tolist() == [5.0, 6.0, 7.0]
    assert found.n_gaps == whole.n_gaps
    assert [len(gaps) for gaps in found.gaps()] == [1, 2, 3]


def test_no_finished_request_names_the_reason() -> None:
    from calibration.importers.load_clients.vllm_bench import read_vllm_bench

    document = {
        "duration": 1.0, "completed": 0, "request_throughput": 0.0, "input_lens": [4], "output_lens": [0],
        "ttfts": [0.0], "itls": [[]], "errors": ["Traceback\n  x\nServerDisconnectedError: \x1b[31mno"],
    }  # fmt: skip
    with pytest.raises(InputError, match=r"1 failed: ServerDisconnectedError: \?\[31mno"):
        read_vllm_bench(document, "r")
