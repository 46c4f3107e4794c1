"""Runs the score tables against public measurements and writes them whole between the marks of docs/accuracy.md.

    python benchmarks/accuracy.py SCORE.py [--closed-loop 200] [--steady-state 100] [--page docs/accuracy.md]

SCORE.py is the scorer that lies beside the public measurements; it calls the commands `simulate` and `catalog` and
nothing else. They run in this process, with the same arguments, files and output, because most of the time of a point
would be the start of Python; the wall time of a point is therefore that of a command already loaded. Two tables are
added to the scorer's own: the closed-loop points by engine without those a constant was fitted on
(`engine_host_terms.in_calibration_set`), and the steady-state points on the engine and the workload they were measured
with (`steady_state.py`).
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import importlib.metadata
import io
import platform
import runpy
import statistics
import subprocess
import sys
from pathlib import Path
from unittest import mock

from engine_host_terms import in_calibration_set
from error_budget import in_process, load
from page_section import write_section

import catalogs.cli.main
import simulator.cli.main
from catalogs.ui.entry_point import INTERRUPTED, run_command

COMMANDS = {"simulate": simulator.cli.main.app, "catalog": catalogs.cli.main.app}
SECTION = "tables"


def run_table(score: Path, arguments: list[str]) -> str:
    """Return the output of the scorer; its exit status is ignored, because a missed limit still leaves a table."""
    printed = io.StringIO()
    with (
        mock.patch.object(sys, "argv", [str(score), *arguments]),
        mock.patch.object(subprocess, "run", command_here),
        contextlib.redirect_stdout(printed),
        contextlib.suppress(SystemExit),
    ):
        runpy.run_path(str(score), run_name="__main__")
    if not printed.getvalue().strip():
        raise SystemExit(f"no table from {score} {' '.join(arguments)}")
    return printed.getvalue().rstrip()


def command_here(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
    """Run a command of this product in this process and return what `subprocess.run` would return."""
    name, *arguments = command
    out, error = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(error):
        status = run_command(name, COMMANDS[name], arguments)
    if status == INTERRUPTED:  # the end of this benchmark, not a failure of the point
        raise KeyboardInterrupt
    return subprocess.CompletedProcess(command, status, out.getvalue(), error.getvalue())


def section(title: str, arguments: list[str], table: str) -> str:
    command = " ".join(["python", "score.py", *arguments])
    return f"## {title}\n\n`{command}`; signed errors in percent.\n\n```\n{table}\n```\n"


def added(title: str, table: str) -> str:
    return f"## {title}\n\nMedian absolute errors in percent.\n\n```\n{table}\n```\n"


def by_engine(score: Path, n: int) -> str:
    """Return the median absolute errors of the scorer's sample by engine, without declared calibration points."""
    module = load(score)
    errors: list[list[float]] = []
    module.__dict__.update(simulate=in_process, summarise=lambda table, *_: errors.extend(table))
    table = module.HERE.parent / "validation/steady_state/inferencex_closed_loop.csv"
    rows = module.sample(table, n, 0, lambda _: True)
    arguments = argparse.Namespace(
        data=module.HERE.parent / "validation", only="", closed_loop=n, seed=0, timeout=300, limit=[]
    )
    with contextlib.redirect_stdout(io.StringIO()):
        module.closed_loop(arguments)
    kept = [(r["backend"], e) for r, e in zip(rows, errors, strict=True) if not in_calibration_set(r)]
    lines = [f"{'engine':12}{'points':>8}{'ttft_mean':>11}{'tpot_mean':>11}"]
    for engine in ("vllm", "sglang", "trtllm", "all"):
        found = [e for name, e in kept if engine in (name, "all")]
        medians = [statistics.median(abs(e[i]) for e in found) for i in range(2)]
        lines.append(f"{engine:12}{len(found):>8}" + "".join(f"{m:>11.1f}" for m in medians))
    return "\n".join(lines)


def as_measured(score: Path) -> str:
    """Return the errors of the steady-state points as they ran: medians by model, by number of seats, and of all."""
    done = run_script(Path(__file__).with_name("steady_state.py"), [str(score)])
    return done[done.index("median of absolute errors") :].rstrip()


def run_script(script: Path, arguments: list[str]) -> str:
    done = subprocess.run([sys.executable, str(script), *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{script.name}: {done.stderr.strip()[-300:]}")
    return done.stdout


def versions() -> str:
    names = ("llm-capacity-planner", "numpy", "simpy")
    parts = [f"{n} {importlib.metadata.version(n)}" for n in names]
    today = datetime.datetime.now(datetime.UTC).date()
    return f"Regenerated {today}, Python {platform.python_version()}, " + ", ".join(parts) + ".\n"


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("score", type=Path)
    p.add_argument("--closed-loop", type=int, default=200)
    p.add_argument("--vllm-only", type=int, default=100, help="closed-loop points of vLLM alone")
    p.add_argument("--steady-state", type=int, default=100)
    p.add_argument("--page", type=Path, default=Path(__file__).parent.parent / "docs/accuracy.md")
    a = p.parse_args()
    runs = [
        ("Open loop: per-request arrivals on real vLLM", []),
        ("Closed loop: public benchmark points", ["--closed-loop", str(a.closed_loop)]),
        ("Closed loop: vLLM alone", ["--closed-loop", str(a.vllm_only), "--only", "vllm"]),
        ("Steady state: latency, power, energy", ["--steady-state", str(a.steady_state)]),
    ]
    body = [versions(), *(section(title, args, run_table(a.score, args)) for title, args in runs)]
    body.append(added("Closed loop by engine, declared calibration points left out", by_engine(a.score, a.closed_loop)))
    title = "Steady state on the engine (vLLM 0.11, scheduled ahead) and the workload they were measured with"
    body.append(added(title, as_measured(a.score)))
    write_section(a.page, SECTION, "\n".join(body))


if __name__ == "__main__":
    main()
