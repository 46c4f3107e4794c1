"""transformers' continuous batching in this process, on a model of two layers: lengths, times, steps, and its end."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="torch is not installed (pip install '.[calibration]')")
pytest.importorskip("transformers", "5.17", reason="transformers 5.17 is not installed (pip install '.[calibration]')")

from calibration.serve.clients import Endpoint, InProcessEngine
from calibration.serve.engines import ServedLimits
from calibration.serve.tiny_model import TinyShape, write_tiny_model
from calibration.serve.transformers_engine import TransformersEngine
from catalogs.errors import InputError
from catalogs.workloads.request_set import RequestSet

LIMITS = ServedLimits(4, 64, 256, 16, 64, weight_dtype="fp32", threads=1)
SMALL = TinyShape(64, 2, 128, 4, 2, 512, 512).config() | {"model_type": "llama"}
TARGET = Endpoint("", "m", "")


@pytest.fixture(scope="module")
def engine() -> TransformersEngine:
    return TransformersEngine.random(SMALL, LIMITS)


def requests(concurrency: int | None = None) -> RequestSet:
    arrivals = np.array([0.0, 0.05, 0.05, 0.1, 0.3, 0.3])
    inputs, outputs = np.array([5, 100, 17, 40, 64, 9]), np.array([7, 1, 12, 3, 9, 5])
    return RequestSet(arrivals if concurrency is None else np.zeros(6), inputs, outputs, concurrency=concurrency)


def test_an_open_loop_is_replayed_with_exact_lengths_and_times_that_add_up(
    engine: TransformersEngine, tmp_path: Path
) -> None:
    wanted = requests()
    run = engine.replay(wanted, TARGET, tmp_path)
    assert (run.output_tokens == wanted.output_tokens).all()
    assert (run.input_tokens == wanted.input_tokens).all()
    assert (run.arrival_s >= wanted.arrival_s - 0.01).all()  # they count from the first, which may itself be late
    assert float(np.abs(run.arrival_s - wanted.arrival_s).max()) < 0.2
    assert run.n_gaps == tuple(n - 1 for n in wanted.output_tokens.tolist())
    for i, gaps in enumerate(run.gaps()):
        assert run.ttft_s[i] > 0
        assert run.ttft_s[i] + gaps.sum() == pytest.approx(run.e2e_s[i])
        assert (gaps > 0).all()
    assert np.isnan(run.tpot_s[1])
    assert run.duration_s == pytest.approx(float((run.arrival_s + run.e2e_s).max()))
    assert (tmp_path / "result.json").is_file()


def test_a_closed_loop_never_has_more_requests_than_clients(engine: TransformersEngine, tmp_path: Path) -> None:
    run = engine.replay(requests(concurrency=2), TARGET, tmp_path)
    ends = run.arrival_s + run.e2e_s
    for at in run.arrival_s:
        assert ((run.arrival_s <= at) & (ends > at)).sum() <= 2
    one = engine.replay(requests(concurrency=1), TARGET, tmp_path)
    assert (one.arrival_s[1:] >= (one.arrival_s + one.e2e_s)[:-1] - 1e-3).all()


def test_the_steps_hold_every_token_once_within_the_limits(tmp_path: Path) -> None:
    engine = TransformersEngine.random(SMALL, LIMITS)
    assert isinstance(engine, InProcessEngine)
    wanted = requests()
    run = engine.replay(wanted, TARGET, tmp_path)
    steps = engine.steps()
    assert steps is not None
    assert steps.context_tokens.sum() == wanted.input_tokens.sum()
    assert steps.generation_tokens.sum() == (wanted.output_tokens - 1).sum()
    assert (steps.generation_tokens == steps.generation_requests).all()
    assert (steps.context_tokens + steps.generation_tokens <= LIMITS.max_num_batched_tokens).all()
    assert (steps.context_requests + steps.generation_requests <= LIMITS.max_num_seqs).all()
    assert (steps.seconds > 0).all()
    assert steps.pairs[0] == 5 * 5
    alone = steps[steps.generation_requests == 1].query("context_requests == 0")
    lengths = zip(wanted.input_tokens.tolist(), wanted.output_tokens.tolist(), strict=True)
    assert set(alone.pairs) <= {n_in + j for n_in, n_out in lengths for j in range(1, n_out)}
    assert steps.seconds.sum() <= run.duration_s


def test_a_model_from_a_folder(tmp_path: Path) -> None:
    made = TransformersEngine.random(SMALL, LIMITS)
    made.model.save_pretrained(tmp_path / "model")
    run = TransformersEngine.load(tmp_path / "model", LIMITS).replay(requests(), TARGET, tmp_path)
    assert run.n == 6
    with pytest.raises(InputError, match="cannot load"):
        TransformersEngine.load(tmp_path, LIMITS)


def test_what_it_refuses_in_one_line(engine: TransformersEngine, tmp_path: Path) -> None:
    long = replace(requests(), input_tokens=np.full(6, 300))
    with pytest.raises(InputError, match="longer than the engine's limit"):
        engine.replay(long, TARGET, tmp_path)
    with pytest.raises(InputError, match="fp32, bf16 or fp16"):
        TransformersEngine.random(SMALL, replace(LIMITS, weight_dtype="fp8"))


def test_an_interrupt_leaves_no_thread_and_the_engine_usable(
    engine: TransformersEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = set(threading.enumerate())
    get, calls = engine.model.init_continuous_batching, []

    def starting(**options: Any) -> Any:
        manager = get(**options)
        result = manager.get_result

        def interrupted(**more: Any) -> Any:
            calls.append(time.perf_counter())
            if len(calls) > 6:
                raise KeyboardInterrupt
            return result(**more)

        monkeypatch.setattr(manager, "get_result", interrupted)
        return manager

    with monkeypatch.context() as patch:
        patch.setattr(engine.model, "init_continuous_batching", starting)
        with pytest.raises(KeyboardInterrupt):
            engine.replay(requests(), TARGET, tmp_path)
    assert set(threading.enumerate()) <= before
    assert engine.replay(requests(), TARGET, tmp_path).n == 6


def test_an_engine_that_dies_says_why(
    engine: TransformersEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = set(threading.enumerate())

    def broken(*_: Any, **__: Any) -> Any:
        raise RuntimeError("out of memory, say")

    with monkeypatch.context() as patch:
        patch.setattr(engine.model, "forward", broken)
        with pytest.raises(InputError, match="out of memory, say"):
            engine.replay(requests(), TARGET, tmp_path)
    assert set(threading.enumerate()) <= before


def test_one_replay_at_a_time(engine: TransformersEngine, tmp_path: Path) -> None:
    messages: list[str] = []

    def second() -> None:
        try:
            engine.replay(requests(), TARGET, tmp_path / "b")
        except InputError as error:
            messages.append(str(error))

    other = threading.Timer(0.1, second)
    other.start()
    engine.replay(replace(requests(), arrival_s=np.array([0, 0.1, 0.2, 0.3, 0.4, 0.6])), TARGET, tmp_path / "a")
    other.join()
    assert messages
    assert "another replay" in messages[0]


def test_a_test_model_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").mkdir()  # as on a full disk, the tokenizer's writer raises a bare Exception
    with pytest.raises(InputError, match="cannot write the test model"):
        write_tiny_model(tmp_path, TinyShape(64, 2, 128, 4, 2, 512, 512))
