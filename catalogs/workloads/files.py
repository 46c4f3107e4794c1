"""Workload files: the strict YAML format that users and the catalog write."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import PositiveFloat

from catalogs.errors import InputError
from catalogs.io.input_files import exists, is_file
from catalogs.io.yaml_files import Seed, YamlBlock, check_keys
from catalogs.workloads.arrivals import Arrivals, ClosedLoopArrivals, Count, Weight, parse_arrivals
from catalogs.workloads.lengths import ConstantLength, Lengths, Quantiles, QuantilesByInput, Uniform, parse_lengths
from catalogs.workloads.media_blocks import AudioClips, Images, MediaBlocks, Videos
from catalogs.workloads.replay import Replay
from catalogs.workloads.service_classes import parse_classes
from catalogs.workloads.sessions.scenarios import load_scenario
from catalogs.workloads.sessions.turns import SharedPrefix, Turns
from catalogs.workloads.synthetic import Adapters, SyntheticWorkload
from catalogs.workloads.traces import read_trace

#: Requests drawn where a file gives no number.
DEFAULT_REQUESTS = 1000


class WorkloadFile(YamlBlock):
    """The keys of a workload file.

    It has either `trace` (with hash_block_tokens, rate_scale, tokenizer, agents, scenario), or arrivals, input_tokens
    and output_tokens.
    """

    trace: str | None = None
    hash_block_tokens: Count | None = None
    rate_scale: PositiveFloat = 1.0
    tokenizer: str | None = None
    agents: Count | None = None
    scenario: str | None = None
    arrivals: Any = None
    requests: Count | None = None
    duration_s: PositiveFloat | None = None
    models: dict[str, Weight] | None = None
    classes: Any = None
    adapters: Any = None
    seed: Seed = 0
    input_tokens: Any = None
    random_prompts: bool | None = None
    output_tokens: Any = None
    shared_prefix: Any = None
    turns: Any = None
    images: Any = None
    videos: Any = None
    audio: Any = None
    name: str | None = None
    source: str | None = None
    as_of: Any = None
    notes: str | None = None


TRACE_KEYS = {"trace", "hash_block_tokens", "rate_scale", "tokenizer", "agents", "scenario"}

RECIPE_KEYS = {
    "adapters",
    "arrivals",
    "audio",
    "classes",
    "duration_s",
    "images",
    "input_tokens",
    "models",
    "output_tokens",
    "random_prompts",
    "shared_prefix",
    "turns",
    "videos",
}


def parse_workload_file(
    data: object, folder: Path, where: str
) -> tuple[WorkloadFile, SyntheticWorkload | Replay, tuple[str, ...]]:
    """Return the file as written, its content, and notices; `folder` is where a trace is searched.

    Raises:
        InputError: The file breaks a rule, or its trace is missing or invalid.
    """
    written = check_keys(WorkloadFile, data, where)
    given = written.model_fields_set
    if written.trace is None:
        _refuse(given & TRACE_KEYS, f"{where}: this key needs a trace")
        return written, _recipe(written, where), ()
    _refuse(given & RECIPE_KEYS, f"{where}: a trace has its own arrivals and lengths; remove this key")
    path = folder / written.trace
    if not is_file(path) and not path.is_dir():
        raise InputError(f"{where}: trace file not found", str(path))
    trace = read_trace(path, written.hash_block_tokens, _tokenizer(written.tokenizer, folder))
    n = written.requests or len(trace.input_tokens)
    if written.agents is not None and trace.recorded is None:
        rule = f"{where}: agents play recorded sessions, and this trace holds none"
        raise InputError(rule, written.agents, "remove agents")
    if written.scenario is not None and written.agents is None:
        raise InputError(f"{where}: a scenario needs a number of agents", written.scenario, "agents: 8")
    scenario = None if written.scenario is None else load_scenario(written.scenario)
    return written, Replay(trace, n, written.rate_scale, written.seed, written.agents, scenario), trace.notices


def _refuse(keys: set[str], rule: str) -> None:
    if keys:
        raise InputError(rule, min(keys))


def _tokenizer(text: str | None, folder: Path) -> str | None:
    return str(folder / text) if text and exists(folder / text) else text


def _draws_prompts(written: WorkloadFile, arrivals: Arrivals, inputs: Lengths) -> bool:
    """Return whether prompts are random tokens.

    A file that does not say so has them if it describes what load generators do: a fixed number of clients that never
    think, and prompts of a constant length or of lengths that are equally probable between two limits
    (`--dataset-name random` of vLLM, SGLang and InferenceX), without shared prefixes or turns.
    """
    if written.random_prompts is not None:
        return written.random_prompts
    generated = isinstance(arrivals, ClosedLoopArrivals) and not arrivals.think_time_s
    return generated and isinstance(inputs, (ConstantLength, Uniform)) and not (written.shared_prefix or written.turns)


def _recipe(written: WorkloadFile, where: str) -> SyntheticWorkload:
    if written.duration_s is not None and written.requests is not None:
        raise InputError(f"{where}: give only one of requests and duration_s", "duration_s", "requests")
    for key in ("arrivals", "input_tokens", "output_tokens"):
        if getattr(written, key) is None:
            raise InputError(f"{where}: key {key!r} is missing (or give a trace)")
    inputs = parse_lengths(written.input_tokens, "input_tokens")
    outputs = parse_lengths(written.output_tokens, "output_tokens")
    if isinstance(inputs, QuantilesByInput):
        raise InputError("input_tokens cannot depend on itself", "quantiles_by_input", "quantiles")
    if isinstance(outputs, QuantilesByInput) and not isinstance(inputs, Quantiles):
        raise InputError("quantiles_by_input needs input_tokens given as quantiles", written.input_tokens)
    arrivals = parse_arrivals(written.arrivals)
    turns = {"per_session": written.turns} if isinstance(written.turns, int) else written.turns
    prefix = None if written.shared_prefix is None else check_keys(SharedPrefix, written.shared_prefix, "shared_prefix")
    return SyntheticWorkload(
        arrivals=arrivals,
        input_tokens=inputs,
        output_tokens=outputs,
        n_requests=written.requests or _requests_of(written.duration_s, arrivals, where) or DEFAULT_REQUESTS,
        sized=bool(written.requests or written.duration_s),
        seed=written.seed,
        random_prompts=_draws_prompts(written, arrivals, inputs),
        shared_prefix=prefix,
        turns=None if turns is None else check_keys(Turns, turns, "turns"),
        adapters=None if written.adapters is None else check_keys(Adapters, written.adapters, "adapters"),
        models=written.models or {},
        classes=() if written.classes is None else parse_classes(written.classes, where),
        media=_media(written),
    )


def _media(written: WorkloadFile) -> MediaBlocks | None:
    found = MediaBlocks(
        None if written.images is None else check_keys(Images, written.images, "images"),
        None if written.videos is None else check_keys(Videos, written.videos, "videos"),
        None if written.audio is None else check_keys(AudioClips, written.audio, "audio"),
    )
    return found if found.given else None


def _requests_of(duration_s: float | None, arrivals: Arrivals, where: str) -> int:
    """Return the expected number of requests in `duration_s`; 0 where it is not given."""
    if duration_s is None:
        return 0
    if arrivals.mean_per_s is None:
        raise InputError(f"{where}: duration_s needs arrivals with a rate; give requests", duration_s, "requests: 1000")
    return max(1, round(arrivals.mean_per_s * duration_s))
