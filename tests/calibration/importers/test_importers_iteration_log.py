"""vLLM's iteration lines: read exactly, and what cannot be read is counted and said."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from calibration.importers.iteration_log import COLUMNS, read_iteration_log
from catalogs.errors import InputError

#: As vLLM 0.32 wrote it on a CPU.
REAL = """\
INFO:     Application startup complete.
INFO:     127.0.0.1:52980 - "GET /health HTTP/1.1" 200 OK
(APIServer pid=14239) INFO 11-20 12:16:47 [loggers.py:199] Engine 000: Iteration(0): 1 context requests, 80 context \
tokens, 0 generation requests, 0 generation tokens, iteration elapsed time: 54.50 ms, CPU KV cache usage: 0.6%
(APIServer pid=14239) INFO 11-20 12:16:47 [loggers.py:199] Engine 000: Iteration(1): 1 context requests, 179 context \
tokens, 1 generation requests, 1 generation tokens, iteration elapsed time: 101.46 ms, CPU KV cache usage: 1.8%
(APIServer pid=14239) INFO 11-20 12:16:49 [loggers.py:199] Engine 000: Iteration(2): 0 context requests, 0 context \
tokens, 2 generation requests, 2 generation tokens, iteration elapsed time: 19.41 ms, CPU KV cache usage: 1.8%
(APIServer pid=14239) INFO 11-20 12:17:03 [loggers.py:335] Engine 000: Avg prompt throughput: 103.0 tokens/s
"""


def step(index: int, ms: str = "10.00", engine: int = 0, tail: str = "", prefix: str = "INFO 11-20 12:00:00 ") -> str:
    return (
        f"{prefix}Engine {engine:03d}: Iteration({index}): 0 context requests, 0 context tokens, "
        f"3 generation requests, 3 generation tokens, iteration elapsed time: {ms} ms{tail}, "
        "GPU KV cache usage: 12.5%\n"
    )


def test_a_real_log(tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    path.write_text(REAL)
    log = read_iteration_log(path)
    assert log.notes == ()
    assert tuple(log.rows.columns) == COLUMNS
    assert log.rows.seconds.tolist() == pytest.approx([0.0545, 0.10146, 0.01941])
    assert log.rows.at_s.tolist() == [0, 0, 2]
    assert log.rows.context_tokens.tolist() == [80, 179, 0]
    assert log.rows.generation_requests.tolist() == [0, 1, 2]
    assert log.rows.kv_usage_fraction.tolist() == pytest.approx([0.006, 0.018, 0.018])


def test_every_step_written_comes_back(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    seconds = rng.uniform(0.001, 1, 200).round(5)
    path = tmp_path / "server.log"
    path.write_text("".join(step(i, f"{s * 1e3:.2f}") for i, s in enumerate(seconds)))
    steps = read_iteration_log(path).rows
    assert steps.seconds.to_numpy() == pytest.approx(seconds, abs=5.1e-6)
    assert steps["index"].tolist() == list(range(200))


@pytest.mark.parametrize(
    ("extra", "note"),
    [
        (step(1)[:80] + "\n", "left out 1 malformed or truncated lines"),
        (step(1).replace(" ms", ""), "left out 1 malformed or truncated lines"),
        (step(1, tail=" (dummy)"), "left out 1 dummy steps"),
        (step(1, ms="0.00"), "left out 1 steps that took no time"),
        (step(1).replace("3 generation tokens", "2 generation tokens"), "left out 1 steps with fewer tokens"),
        (step(4), "3 steps are not in the log"),
        (step(0), "the engine started again 1 times"),
    ],
)
def test_what_is_left_out_is_said(tmp_path: Path, extra: str, note: str) -> None:
    path = tmp_path / "server.log"
    path.write_text(step(0) + extra)
    log = read_iteration_log(path)
    assert any(n.startswith(note) for n in log.notes)
    assert len(log.rows) == (1 if note.startswith("left out") else 2)


def test_colours_two_engines_on_one_line_json_stamps_and_new_year(tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    coloured = step(0, prefix="\x1b[32mINFO\x1b[0m 12-31 23:59:59 ").rstrip("\n")
    path.write_text(coloured + step(0, engine=1, prefix="") + step(1, prefix="INFO 01-01 00:00:01 "))
    steps = read_iteration_log(path).rows
    assert steps.engine.tolist() == [0, 1, 0]
    assert steps.at_s.tolist() == [0, 0, 2]
    line = {"asctime": "2026-11-20 12:16:47,250", "message": step(0, prefix="").strip()}
    path.write_text(json.dumps(line) + "\n" + step(1, prefix=""))
    at_s = read_iteration_log(path).rows.at_s.tolist()
    assert at_s[0] == 0
    assert np.isnan(at_s[1])


def test_a_log_without_steps_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    for text, match in (("hello\n", "no such line"), (step(0)[:90], "1 malformed")):
        path.write_text(text)
        with pytest.raises(InputError, match=match):
            read_iteration_log(path)
    with pytest.raises(InputError, match="cannot be read"):
        read_iteration_log(tmp_path / "absent.log")
