"""Fit the catalog's workload tables to public traces: `python tools/fit_workloads.py TRACE_DIR`.

The catalog keeps quantile tables, a rate and a coefficient of variation, never rows of a trace. Run this script again
after a change of it: a test compares the shipped tables with a fresh fit. Tables whose file is not in the folder stay.
"""

from __future__ import annotations

import pickle
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import yaml

from catalogs.deployments.key_texts import with_keys
from catalogs.errors import InputError
from catalogs.io.output_files import write_atomically
from catalogs.io.yaml_files import DATA
from catalogs.workloads.fit import fit_workload
from catalogs.workloads.traces import Trace, read_trace


@dataclass(frozen=True, slots=True)
class FittedWorkload:
    """A catalog workload and the trace that it is fitted to.

    Attributes:
        input_classes: Number of equally likely classes of input length. Each has a table of output lengths, fitted to
            over 100 rows.
        own_arrivals: Whether the arrival times of the trace are real, so that their rate and burstiness are kept.
        changes: Keys that are not fitted, and their values; the notes give the reasons.
        most_tokens: Requests of this many tokens or more, input and output together, are left out; None keeps all.
    """

    name: str
    file: str
    source: str
    as_of: str
    input_classes: int | None = None
    own_arrivals: bool = False
    notes: str = ""
    changes: tuple[tuple[str, Any], ...] = ()
    most_tokens: int | None = None


FITTED: Final = (
    FittedWorkload(
        name="azure-conv",
        file="azure_llm_2023_conv.csv.gz",
        source="Azure/AzurePublicDataset, AzureLLMInferenceTrace_conv (CC-BY), 19,366 requests of one hour",
        as_of="2023-11-16",
        input_classes=8,
        own_arrivals=True,
        notes="The default: whole prompts of a conversation service, with system prompt and history. Prompts share no "
        "prefix, so nothing is saved by a prefix cache. Gaps are drawn independently: slow swings of the real rate "
        "within the hour are not kept.",
    ),
    FittedWorkload(
        name="azure-code",
        file="azure_llm_2023_code.csv.gz",
        source="Azure/AzurePublicDataset, AzureLLMInferenceTrace_code (CC-BY), 8,819 requests of one hour",
        as_of="2023-11-16",
        input_classes=8,
        own_arrivals=True,
        notes="Gaps are drawn independently: bursts of minutes are not kept; replay the trace where they matter.",
    ),
    FittedWorkload(
        name="lmsys-turns",
        file="lmsys_lengths.csv",
        source="LMSYS-Chat-1M lengths, 1,024 requests as published by microsoft/apex_plus (MIT)",
        as_of="2023-09",
        input_classes=4,
        notes="Single turns of a public chat demo, without system prompt and history; chat services see longer "
        "prompts. The file's arrivals are synthetic and were left out.",
    ),
    FittedWorkload(
        name="creation",
        file="creation_lengths.csv",
        source="Content-creation lengths, 512 requests as published by microsoft/apex_plus (MIT)",
        as_of="2024",
        input_classes=4,
        notes="Long answers that grow with the prompt. The file's arrivals are synthetic and were left out.",
    ),
    FittedWorkload(
        name="summarization",
        file="arxiv_summarization_lengths.csv.gz",
        source="arXiv summarisation lengths, 28,257 requests as published by microsoft/vidur (MIT)",
        as_of="2024",
        input_classes=8,
        notes="Prompt plus answer was cut at 4,096 tokens by the publisher.",
    ),
    FittedWorkload(
        name="sharegpt-long",
        file="sharegpt_300.csv",
        source="ShareGPT sample of 300 requests as published by casys-kaist/LLMServingSim (MIT)",
        as_of="2025",
        input_classes=2,
        notes="A filtered sample: no answer below 512 tokens. For ShareGPT at large take `sharegpt`.",
    ),
    FittedWorkload(
        name="agentic-coding",
        file="weka",
        source="callanjfox/kv-cache-tester (Apache-2.0), 60 of 710 recorded sessions of coding agents, 4,653 requests",
        as_of="2026-01",
        notes="Agents in a closed loop: each turn waits for the end of the one before. Not fitted: contexts above "
        "200,000 tokens are compacted, as most served models need (recorded: up to 820,000); gaps above 600 s "
        "are cut, because an agent that waits for longer is not one of those at work (recorded: up to 13 hours).",
        changes=(
            ("arrivals.closed_loop.concurrency", 16),
            ("turns.restarts.above_tokens", 200_000),
            ("turns.gap_s.longest_s", 600),
        ),
    ),
)


#: Workloads that are fitted to files which the folder of traces need not hold.
FITTED_ELSEWHERE: Final = (
    FittedWorkload(
        name="sharegpt",
        file="sharegpt_opt_text_completion_length.pkl",
        source="ShareGPT lengths, first turns of 79,725 conversations in tokens of OPT, of the artifact of the vLLM "
        "paper (Kwon et al., SOSP 2023): sosp-ae-39/sosp-ae-astra, datasets",
        as_of="2023-03",
        input_classes=16,
        notes="Conversations of 2,048 tokens and more are left out, as in the paper, whose means (161.31 in, 337.99 "
        "out) the rest has.",
        most_tokens=2048,
    ),
)


class _PlainData(pickle.Unpickler):
    """Reads pickled lists, tuples and numbers, and refuses everything that would run code."""

    def find_class(self, module: str, name: str) -> Any:
        """Refuse every class.

        Raises:
            InputError: Always.
        """
        raise InputError("a file of lengths holds pairs of numbers only", f"{module}.{name}")


def read_lengths(path: Path, most_tokens: int | None) -> Trace:
    """Return the (input, output) pairs of a pickled list, or a trace, without requests that are too long.

    Raises:
        InputError: The file cannot be read, or it holds anything else.
    """
    if path.suffix != ".pkl":
        return read_trace(path)
    with path.open("rb") as file:
        pairs = np.array(_PlainData(file).load(), dtype=np.int64)
    kept = pairs[pairs.sum(axis=1) < most_tokens] if most_tokens else pairs
    return Trace(None, kept[:, 0], kept[:, 1], None, 16, "pickled pairs")


def fit(fitted: FittedWorkload, folder: Path) -> dict[str, Any]:
    """Return the catalog entry of one workload as plain data.

    Raises:
        InputError: The trace cannot be read.
    """
    trace = read_lengths(folder / fitted.file, fitted.most_tokens)
    entry: dict[str, Any] = {"source": fitted.source, "as_of": fitted.as_of}
    if fitted.notes:
        entry["notes"] = fitted.notes
    keys = fit_workload(trace, fitted.input_classes, fitted.own_arrivals)
    return entry | with_keys(keys, dict(fitted.changes))


def main(arguments: Sequence[str]) -> int:
    """Write catalogs/data/workloads/NAME.yaml for every fitted workload."""
    if len(arguments) != 1 or not Path(arguments[0]).is_dir():
        print("usage: python tools/fit_workloads.py TRACE_DIR", file=sys.stderr)
        return 2
    for fitted in (*FITTED, *FITTED_ELSEWHERE):
        if not (Path(arguments[0]) / fitted.file).exists():
            print(f"{fitted.name}: {fitted.file} is not there, so the table stays", file=sys.stderr)
            continue
        text = yaml.safe_dump(fit(fitted, Path(arguments[0])), sort_keys=False, default_flow_style=None, width=118)
        header = "# Written by `python tools/fit_workloads.py`; see there how each number is made.\n"
        write_atomically(DATA / "workloads" / f"{fitted.name}.yaml", [header + text])
        print(f"{fitted.name}: fitted from {fitted.file}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
