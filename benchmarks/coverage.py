"""How often the stated expected error of step times covers the real error, over open-loop runs on real engines.

    python benchmarks/coverage.py VALIDATION_DIR

VALIDATION_DIR holds one folder per case: deployment.yaml, requests.jsonl.gz, case.json with the measured statistics.
The expected error is a median, so it should cover about half of the cases; twice it, some four fifths.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np

from catalogs.deployment import load_deployment
from catalogs.workloads import load_workload
from simulator.metrics import summarise
from simulator.plant import build_plant
from simulator.simulate import run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", type=Path)
    folders = sorted(p.parent for p in parser.parse_args().cases.glob("*/case.json"))
    covered = twice = 0
    for folder in folders:
        case = json.loads((folder / "case.json").read_text())
        done = run(
            build_plant(load_deployment(folder / "deployment.yaml")),
            load_workload(str(folder / "requests.jsonl.gz")).materialise(),
        )
        got = float(np.nanmean(done.tpot_s[case["warmup_requests"] :]))
        error = got / case["measured"]["tpot_s"]["mean"] - 1
        expected = summarise(done)["calibration"]["expected_error"]
        covered += abs(error) <= expected
        twice += abs(error) <= 2 * expected
        print(f"{folder.name:44} TPOT {error:+6.1%}   expected {expected:5.1%}")
    print(f"within the expected error: {covered} of {len(folders)}; within twice it: {twice} of {len(folders)}")


if __name__ == "__main__":
    main()
