"""How long `plan` takes and how much memory it needs: whole commands, as a user runs them.

python benchmarks/plan_speed.py              # the table below
python benchmarks/plan_speed.py --only 405b  # questions whose text contains a word
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass

QUESTIONS = (
    "--help",
    "--model llama3.1-405b --slo p99=2s --hw h100x8",
    "--model llama3.1-405b --slo p99=2s --hw h100x4",
    "--model llama3.1-8b --slo ttft.p99=500ms,tpot.p99=30ms --hw h100x8",
    "--model llama3.1-8b --slo p99=1s --hw h100x8 --rate 40",
    "--model deepseek-v3 --slo ttft.p99=2s,tpot.p99=60ms --hw h200x8",
    "--model llama3.1-70b --slo p99=2s --hw h100x8 --objective energy",
    "--model llama3.1-70b --slo p99=2s --hw h100x8 --engine sglang",
    "--model llama3.1-70b --slo p99=2s --hw h100x8 --engine trtllm",
    "--model llama3.1-8b --slo p99=2s --hw rtx4090",
    "--model llama3.1-70b --slo p99=2s --hw any",
)


@dataclass(frozen=True)
class Timing:
    """One command. `peak_mib` is the largest resident set of one of its processes."""

    wall_s: float
    cpu_s: float
    peak_mib: float
    status: int
    search: dict[str, object]


def environment(folder: str) -> dict[str, str]:
    """Return the environment of the commands, with the compiled modules of an installed product in `folder`."""
    found = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return found | {"PYTHONPYCACHEPREFIX": folder}


def measure(question: str, own_environment: dict[str, str]) -> Timing:
    """Run one `plan` command."""
    words = question.split()
    json_args = [] if question == "--help" else ["--json", "-"]
    start = time.perf_counter()
    command = [sys.executable, "-m", "planner.main", *words, *json_args]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=own_environment
    )
    assert process.stdout is not None
    with process.stdout as stdout:
        written = stdout.read()
    _, status, used = os.wait4(process.pid, 0)  # of this command and the processes that it has waited for
    wall_s = time.perf_counter() - start
    process.returncode = os.waitstatus_to_exitcode(status)
    search = json.loads(written)["search"] if json_args and process.returncode < 2 else {}
    return Timing(wall_s, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024, process.returncode, search)


def main() -> None:
    """Print one row per question."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="questions whose text contains this")
    only = parser.parse_args().only
    print("wall s  CPU s  peak MiB  exit   space  bounded  simulated  question")
    with tempfile.TemporaryDirectory() as folder:
        own_environment = environment(folder)
        for question in QUESTIONS[:2]:  # compiles the modules, also those of other packages, as an installer does
            measure(question, own_environment)
        for question in (q for q in QUESTIONS if only in q):
            show(question, measure(question, own_environment))


def show(question: str, t: Timing) -> None:
    """Print one row."""
    space, bounded, simulated = (str(t.search.get(k, "")) for k in ("n_space", "n_bounded_out", "n_simulated"))
    times = f"{t.wall_s:6.2f} {t.cpu_s:6.2f} {t.peak_mib:9.0f} {t.status:5d}"
    print(f"{times} {space:>7} {bounded:>8} {simulated:>10}  plan {question}", flush=True)


if __name__ == "__main__":
    main()
