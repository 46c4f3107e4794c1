"""Runs the score tables against public measurements and writes them whole between the marks of docs/accuracy.md.

    python benchmarks/accuracy.py SCORE.py [--closed-loop 40] [--steady-state 24] [--page docs/accuracy.md]

SCORE.py is the scorer that lies beside the public measurements; it calls the installed `simulate` and nothing else.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.metadata
import platform
import subprocess
import sys
from pathlib import Path

BEGIN, END = "<!-- tables: begin -->", "<!-- tables: end -->"


def run_table(score: Path, arguments: list[str]) -> str:
    """The scorer's output, its exit status ignored (a missed limit is still a table)."""
    command = [sys.executable, str(score), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if not done.stdout.strip():
        raise SystemExit(f"no table from {score} {' '.join(arguments)}: {done.stderr.strip()[-300:]}")
    return done.stdout.rstrip()


def section(title: str, arguments: list[str], table: str) -> str:
    command = " ".join(["python", "score.py", *arguments])
    return f"## {title}\n\n`{command}`; signed errors in percent.\n\n```\n{table}\n```\n"


def versions() -> str:
    names = ("llm-capacity-planner", "numpy", "simpy")
    parts = [f"{n} {importlib.metadata.version(n)}" for n in names]
    today = datetime.datetime.now(datetime.UTC).date()
    return f"Regenerated {today}, Python {platform.python_version()}, " + ", ".join(parts) + ".\n"


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("score", type=Path)
    p.add_argument("--closed-loop", type=int, default=40)
    p.add_argument("--vllm-only", type=int, default=100, help="closed-loop points of vLLM alone")
    p.add_argument("--steady-state", type=int, default=24)
    p.add_argument("--page", type=Path, default=Path(__file__).parent.parent / "docs/accuracy.md")
    a = p.parse_args()
    runs = [
        ("Open loop: per-request arrivals on real vLLM", []),
        ("Closed loop: public benchmark points", ["--closed-loop", str(a.closed_loop)]),
        ("Closed loop: vLLM alone", ["--closed-loop", str(a.vllm_only), "--only", "vllm"]),
        ("Steady state: latency, power, energy", ["--steady-state", str(a.steady_state)]),
    ]
    body = [versions(), *(section(title, args, run_table(a.score, args)) for title, args in runs)]
    page = a.page.read_text()
    head, rest = page.split(BEGIN)
    tail = rest.split(END)[1]
    a.page.write_text(f"{head}{BEGIN}\n" + "\n".join(body) + f"{END}{tail}")


if __name__ == "__main__":
    main()
