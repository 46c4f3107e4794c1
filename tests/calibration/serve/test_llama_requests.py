"""The log that llama-server writes by default: the time of each request, and the steps of those that ran alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from calibration.importers.iteration_log import COLUMNS
from calibration.serve.llama_requests import read_burst_slots, read_llama_requests, read_single_request_steps


def lines(task: int, at_s: float, prompt: tuple[int, float], output: tuple[int, float], slot: int = 3) -> str:
    """The lines of one request; times in ms."""

    def stamp(second: float) -> str:
        us = round(second * 1e6)
        minutes, rest = divmod(us, 60_000_000)
        return f"{minutes}.{rest // 1_000_000:02d}.{rest // 1000 % 1000:03d}.{rest % 1000:03d}"

    total_ms = prompt[1] + output[1]
    own, end_s = f"id {slot:2d} | task {task} |", at_s + total_ms * 1e-3
    return (
        f"{stamp(at_s - 1e-4)} I slot get_availabl: id  3 | task -1 | selected slot by LRU, t_last = -1\n"
        f"{stamp(at_s)} I slot launch_slot_: {own} processing task, is_child = 0\n"
        f"{stamp(end_s)} I slot print_timing: {own} prompt eval time = {prompt[1]:10.2f} ms / {prompt[0]:5d} tokens "
        f"(    1.15 ms per token,   868.74 tokens per second)\n"
        f"{stamp(end_s)} I slot print_timing: {own}        eval time = {output[1]:10.2f} ms / {output[0]:5d} tokens "
        f"(    2.41 ms per token,   415.63 tokens per second)\n"
        f"{stamp(end_s)} I slot print_timing: {own}       total time = {total_ms:10.2f} ms /    29 tokens\n"
    )


def test_requests_and_the_steps_of_single_requests(tmp_path: Path) -> None:
    """A single request across the full minute; two that overlap; one of a single token."""
    log = tmp_path / "server.log"
    pair = lines(1, 70.0, (96, 40.0), (24, 230.0)) + lines(2, 70.01, (96, 80.0), (24, 230.0))
    log.write_text("starting\n" + lines(0, 59.99, (21, 24.17), (8, 16.84)) + pair + lines(3, 80.0, (40, 9.0), (1, 0.0)))
    found = read_llama_requests(log)
    assert [(r.input_tokens, r.output_tokens) for r in found] == [(21, 8), (96, 24), (96, 24), (40, 1)]
    assert found[0].prompt_s == pytest.approx(0.02417)
    assert found[0].end_s - found[0].start_s == pytest.approx(0.04101, abs=1e-6)
    steps = read_single_request_steps(log)
    assert steps is not None
    assert tuple(steps.columns) == COLUMNS
    assert steps.context_tokens.tolist() == [21, 0, 40]
    assert steps.generation_requests.tolist() == [0, 1, 0]
    assert steps.seconds.tolist() == pytest.approx([0.02417, 0.01684 / 7, 0.009])
    assert steps.at_s.tolist() == pytest.approx([59.99, 60.01417, 80.0])


def test_a_log_without_single_requests_holds_no_steps(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.write_text(lines(1, 1.0, (96, 40.0), (24, 230.0)) + lines(2, 1.01, (96, 80.0), (24, 230.0)))
    assert read_single_request_steps(log) is None
    log.write_text("another version of the program\n")
    assert read_single_request_steps(log) is None


def test_the_slots_of_bursts_are_those_of_the_last_requests(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    prompt, output = (96, 40.0), (24, 230.0)
    bursts = [(1, 70.0, 3), (2, 70.01, 2), (3, 75.0, 0), (4, 75.01, 3)]
    log.write_text(
        lines(0, 60.0, (21, 9.0), (8, 9.0))
        + "".join(lines(task, at, prompt, output, slot) for task, at, slot in bursts)
    )
    assert read_burst_slots(log, (2, 2), 96) == [[2, 3], [0, 3]]
    assert read_burst_slots(log, (2,), 96) == [[0, 3]]
    assert read_burst_slots(log, (4,), 96) is None  # they do not overlap
    assert read_burst_slots(log, (2, 2), 64) is None
    assert read_burst_slots(log, (2, 2, 4), 96) is None
