"""Every reader of files and arguments as a function of a folder with one hostile file, and its valid examples.

A reader returns, or raises InputError; anything else is a defect. Network replies and bundles have tests of their own.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

CORPUS = Path(__file__).parent / "corpus"


def deployment(path: Path) -> None:
    from catalogs.deployments.resolve import resolve_pools
    from catalogs.deployments.schema import load_deployment

    resolve_pools(load_deployment(path))


def workload(path: Path) -> None:
    from catalogs.workloads.workload import load_workload

    found = load_workload(str(path))
    found.materialise(n_requests=25)
    found.materialise(n_requests=3, requests_per_s=2.0 if found.content.has_rate else None)


def model(path: Path) -> None:
    from catalogs.models.catalog import load_model

    found = load_model(str(path))
    assert found.weight_bytes("bf16") > 0
    assert found.kv_bytes_per_token("bf16") + found.state_bytes_per_sequence > 0
    assert found.n_layers > 0


def scenario(path: Path) -> None:
    from planner.problem.scenario import arguments_of, command_of, keys_of, read_scenario, request_of_keys

    request = request_of_keys(read_scenario(path))
    command_of(request)
    arguments_of(keys_of(request))


def answer(path: Path) -> None:
    import json

    from planner.cli.screens.plan import show
    from planner.sections.full_answer import read_answer

    read = read_answer(path)
    json.dumps(read.document(), allow_nan=False)
    show(read)


def owned(path: Path) -> None:
    from planner.economics.ownership import parse_owned

    parse_owned(str(path))


def measured(path: Path) -> None:
    from calibration.importers.load_clients.model_name import measured_model
    from calibration.importers.load_clients.results import measured_runs

    measured_model(path)
    measured_runs(path)


def steps(path: Path) -> None:
    from calibration.importers.engine_steps import read_steps

    read_steps(path)


def arguments(path: Path) -> None:
    """Read the lines of a file as the values of options."""
    from catalogs.errors import InputError
    from catalogs.hardware.catalog import parse_hardware
    from catalogs.models.catalog import load_model
    from catalogs.ui.words import parse_duration
    from catalogs.workloads.workload import load_workload
    from planner.problem.scenario import parse_plan_settings, request_of_keys
    from planner.problem.slo import parse_slos

    text = path.read_bytes().decode("utf-8", "surrogateescape").replace("\0", "")
    line, _, rest = text.partition("\n")
    keys = {"model": "llama3.2-1b", "hardware": "l40s", "slo": ["p99=2s"]}
    for read in (
        lambda: parse_slos([line]),
        lambda: parse_hardware(line),
        lambda: load_model(line),
        lambda: parse_duration(line),
        lambda: load_workload(line),
        lambda: request_of_keys(keys | parse_plan_settings([line, *rest.splitlines()])),
    ):
        with suppress(InputError):
            read()


@dataclass(frozen=True)
class Reader:
    """A reader and the valid files that hostile ones are made from."""

    name: str
    read: Callable[[Path], None]
    examples: tuple[str, ...]

    def contents(self) -> list[tuple[str, bytes]]:
        """Return the name and the content of every example."""
        return [(name, (CORPUS / name).read_bytes()) for name in self.examples]


TRACES = (
    *("azure.csv", "burstgpt.csv", "plain.csv", "vidur.csv", "vidur_lengths.csv", "lengths.csv", "mooncake.jsonl"),
    *("bailian.jsonl", "llmservingsim.jsonl", "sharegpt.json", "alpaca.json"),
)

CLIENTS = ("aiperf", "guidellm", "inference_perf", "vllm_bench")

READERS = (
    Reader("deployment", deployment, ("deployment.yaml", "pools.yaml", "disaggregated.yaml", "speculative.yaml")),
    Reader("workload", workload, ("workload.yaml", "sessions.yaml", "rates.yaml", "diurnal.yaml")),
    Reader("trace", workload, TRACES),
    Reader("model", model, ("dense.config.json", "moe.config.json", "hybrid.config.json")),
    Reader("scenario", scenario, ("scenario.yaml", "scenario.json")),
    Reader("answer", answer, ("answer.json", "refusal.json")),
    Reader("owned", owned, ("owned.yaml",)),
    Reader("measured", measured, tuple(f"{client}.result.json" for client in CLIENTS)),
    Reader("steps", steps, ("forward.steps.json", "server.steps.log")),
    Reader("arguments", arguments, ("slo.argument", "hardware.argument", "model.argument", "settings.argument")),
)
