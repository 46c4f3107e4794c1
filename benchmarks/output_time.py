"""What the time to first token of real H100 servers has beyond the simulated steps and API server, by halves.

    python benchmarks/output_time.py VALIDATION_DIR

The ten stages of Llama-2 on H100 under vLLM 0.15 (inference-sim/training) are two models, whose steps take 7 to 17 ms
and 17 to 22 ms, at five loads each. For each stage, the rest is the measured median TTFT less the simulated one without
`output_s`, corrected for the error of the simulated steps: a first token waits for the rest of one step, for the step
that is scheduled already and for its own, so the error of the mean TPOT counts STEPS times. What is left neither grows
with the time of a step nor with the tokens of a step: the processing of a step's outputs in the engine's process, which
asynchronous scheduling hides from the device but not from the client, the hashing of blocks, the network, and the
connection and the event loop of the client.

The stages are halved by the hash of their names. The median over half 0 is what the profile ships, and half 1 checks
it.
"""

from __future__ import annotations

import argparse
import hashlib
import statistics
from collections.abc import Iterator
from pathlib import Path

from measured_points import open_loop

from catalogs.engines.files import load_engine

STAGES = "h100-llama-2-*"

#: Steps for which a first token waits: half of the running one, the one that is scheduled already, and its own.
STEPS = 2.5


def half_of(name: str) -> int:
    """Return the half of a case, 0 or 1, which depends only on its name."""
    return int(hashlib.sha256(name.encode()).hexdigest(), 16) % 2


def rests(data: Path) -> Iterator[tuple[str, float]]:
    """Yield each stage with the seconds of its median TTFT that steps and API server do not explain."""
    output_s = load_engine("vllm").host.output_s
    for folder in sorted(data.glob(STAGES)):
        found = {(p.metric, p.stat): p.measured - p.simulated for p in open_loop(folder)}
        yield folder.name, found["ttft", "p50"] - STEPS * found["tpot", "mean"] + output_s


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, metavar="VALIDATION_DIR")
    by_half: dict[int, list[float]] = {0: [], 1: []}
    for name, rest_s in rests(parser.parse_args().data):
        by_half[half_of(name)].append(rest_s)
        print(f"half {half_of(name)}  {name:40} {rest_s * 1e3:.2f} ms")
    for half, found in by_half.items():
        print(f"half {half}: median {statistics.median(found) * 1e3:.2f} ms of {len(found)} stages")


if __name__ == "__main__":
    main()
