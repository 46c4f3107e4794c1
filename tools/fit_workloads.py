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

from catalogs.arrays import IntArray
from catalogs.errors import InputError
from catalogs.io.output_files import write_atomically
from catalogs.io.yaml_files import DATA
from catalogs.workloads.traces import Trace, read_trace

#: The tabulated probabilities. They are close together in the upper tail, where linear interpolation between distant
#: entries would raise the mean.
PROBABILITIES: Final = (
    0,
    0.01,
    0.05,
    *(k / 10 for k in range(1, 9)),
    0.85,
    0.9,
    0.93,
    0.95,
    0.97,
    0.98,
    0.99,
    0.995,
    0.999,
    1,
)


@dataclass(frozen=True, slots=True)
class FittedWorkload:
    """A catalog workload and the trace that it is fitted to.

    Attributes:
        input_classes: Number of equally likely classes of input length. Each has a table of output lengths, fitted to
            over 100 rows.
        own_arrivals: Whether the arrival times of the trace are real, so that their rate and burstiness are kept.
        most_tokens: Requests of this many tokens or more, input and output together, are left out; None keeps all.
    """

    name: str
    file: str
    source: str
    as_of: str
    input_classes: int
    own_arrivals: bool = False
    notes: str = ""
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
    entry["arrivals"] = fit_arrivals(trace) if fitted.own_arrivals else {"poisson": {}}
    entry["input_tokens"] = {"quantiles": dict(zip(PROBABILITIES, quantiles(trace.input_tokens), strict=True))}
    entry["output_tokens"] = fit_outputs(trace, fitted.input_classes)
    return entry


def fit_arrivals(trace: Trace) -> dict[str, Any]:
    """Return gamma-distributed gaps with the trace's mean rate and its burstiness in windows of one second.

    cv^2 = variance / mean of the number of arrivals in a window, the ratio of a renewal process in long windows (Cox
    and Lewis 1966). The cv of the gaps would be dominated by a few pauses of minutes: for azure-code it is 13, and
    gamma gaps with cv 13 send 200 requests within 0.1 s, where the trace never sends more than 13. Windows of one
    second are long enough for a burst to build a queue.

    Raises:
        InputError: The trace has no arrival times.
    """
    if trace.arrival_s is None:
        raise InputError("this trace has no arrival times to fit")
    rate = 1.0 / float(np.diff(trace.arrival_s).mean())
    counts = np.bincount(trace.arrival_s.astype(np.int64))
    return {"gamma": {"requests_per_s": round(rate, 3), "cv": round(float(np.sqrt(counts.var() / counts.mean())), 3)}}


def fit_outputs(trace: Trace, input_classes: int) -> dict[str, Any]:
    """Return a table of output quantiles for each class of input length; equal lengths are split in file order."""
    by_input = trace.output_tokens[np.argsort(trace.input_tokens, kind="stable")]
    rows = [quantiles(part) for part in np.array_split(by_input, input_classes)]
    return {"quantiles_by_input": {"probabilities": list(PROBABILITIES), "tokens": rows}}


def quantiles(tokens: IntArray) -> list[float]:
    """Return the token counts at PROBABILITIES, rounded to a tenth of a token."""
    return [round(float(q), 1) for q in np.quantile(tokens, PROBABILITIES)]


def main(arguments: Sequence[str]) -> int:
    """Write catalogs/data/workloads/NAME.yaml for every fitted workload."""
    if len(arguments) != 1 or not Path(arguments[0]).is_dir():
        print("usage: python tools/fit_workloads.py TRACE_DIR", file=sys.stderr)
        return 2
    for fitted in (*FITTED, *FITTED_ELSEWHERE):
        if not (Path(arguments[0]) / fitted.file).is_file():
            print(f"{fitted.name}: {fitted.file} is not there, so the table stays", file=sys.stderr)
            continue
        text = yaml.safe_dump(fit(fitted, Path(arguments[0])), sort_keys=False, default_flow_style=None, width=118)
        header = "# Written by `python tools/fit_workloads.py`; see there how each number is made.\n"
        write_atomically(DATA / "workloads" / f"{fitted.name}.yaml", [header + text])
        print(f"{fitted.name}: fitted from {fitted.file}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
