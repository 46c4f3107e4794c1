"""Load clients: each replays a set of requests against a server and gives back what it measured."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol, runtime_checkable

from calibration.accuracy.measured_run import MeasuredRun
from calibration.importers.results import measured_run_file
from catalogs.errors import InputError
from catalogs.io.output_files import make_folder, write_atomically
from catalogs.workloads.request_set import RequestSet

if TYPE_CHECKING:
    import pandas as pd


BLOCK_TOKENS: Final = 16  # of the trace's content ids

PATIENCE_S: Final = 120.0  # beyond the trace's own length, and as many times it

LAST_LINES: Final = 8

CLIENTS_KEY: Final = "OPENAI_API_KEY"  # the variable that clients take a key from, whatever server they are given


@dataclass(frozen=True, slots=True)
class Endpoint:
    """An OpenAI-compatible server. `key_env` names the environment variable that holds its key, never the key."""

    url: str
    model: str  # the name it serves the model under
    tokenizer: str  # folder or hub name, for clients that make prompts of tokens
    key_env: str | None = None

    def environment(self) -> dict[str, str]:
        """Environment of a client: this process's, with the key where clients look for it and no other key, which they
        would send to this server; no hub is asked."""
        found = dict(os.environ) | {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
        found.pop(CLIENTS_KEY, None)
        if self.key_env is not None:
            if not os.environ.get(self.key_env):
                raise InputError("the environment holds no key for this endpoint under", self.key_env)
            found[CLIENTS_KEY] = os.environ[self.key_env]
        return found


class Incomplete(InputError):
    """Some requests of a replay failed; another try may go through (a server that closed an idle connection)."""


class Client(Protocol):
    """A load client."""

    @property
    def name(self) -> str:
        """As results name it."""

    def replay(self, requests: RequestSet, target: Endpoint, out: Path) -> MeasuredRun:
        """Send `requests` (arrivals as given, or its concurrency) and measure; files go to the folder `out`.

        InputError where the client cannot run, fails, or a request does.
        """


@runtime_checkable
class OwnEngine(Protocol):
    """What a client has besides where it is the engine as well, in this process."""

    @property
    def engine_version(self) -> str:
        """Of the engine's package."""

    def steps(self) -> pd.DataFrame | None:
        """Every engine step so far in the columns of an iteration log; None where the engine tells none."""


@dataclass(frozen=True, slots=True)
class VllmBench:
    """`vllm bench serve` of the environment whose Python is given. Prompts are random token ids, outputs exact."""

    python: Path
    name: str = "vllm bench serve"

    def replay(self, requests: RequestSet, target: Endpoint, out: Path) -> MeasuredRun:
        make_folder(out)
        trace, result = out / "trace.jsonl", out / "result.json"
        result.unlink(missing_ok=True)
        write_atomically(trace, [trace_text(requests)])
        command = [str(self.python), "-c", _VLLM_BENCH, *self._options(requests, target), "--dataset-path", str(trace)]
        command += ["--result-dir", str(out), "--result-filename", result.name]
        run_client(self.name, command, target, patience_s(requests), out / "client.log")
        if not result.is_file():
            raise InputError(f"{self.name} wrote no result", _tail(out / "client.log"))
        return complete(measured_run_file(result), requests, out)

    def _options(self, requests: RequestSet, target: Endpoint) -> list[str]:
        options = ["--backend", "openai", "--endpoint", "/v1/completions", "--base-url", target.url]
        options += ["--model", target.model, "--tokenizer", target.tokenizer]
        options += ["--dataset-name", "timed_trace", "--num-prompts", str(requests.n)]
        options += ["--self-timed", "--timed-trace-sec-multiplier", "0.001", "--disable-tqdm"]
        options += ["--save-result", "--save-detailed", "--percentile-metrics", "ttft,tpot,itl,e2el"]
        if requests.concurrency is not None:
            options += ["--max-concurrency", str(requests.concurrency)]
        return options


#: The client without the `vllm` command, which some builds of the package install without its metadata.
_VLLM_BENCH: Final = (
    "import argparse\n"
    "from vllm.benchmarks.serve import add_cli_args, main\n"
    "parser = argparse.ArgumentParser()\n"
    "add_cli_args(parser)\n"
    "main(parser.parse_args())\n"
)


def trace_text(requests: RequestSet) -> str:
    """The requests as a trace of JSON lines: timestamp in ms, lengths, content ids shared by nobody."""
    lines, used = [], 0
    rows = (requests.arrival_s.tolist(), requests.input_tokens.tolist(), requests.output_tokens.tolist())
    for arrival_s, n_in, n_out in zip(*rows, strict=True):
        blocks = -(-n_in // BLOCK_TOKENS)
        ids = list(range(used, used + blocks))
        used += blocks
        row = {"timestamp": arrival_s * 1e3, "input_length": n_in, "output_length": n_out, "hash_ids": ids}
        lines.append(json.dumps(row))
    return "\n".join(lines) + "\n"


def patience_s(requests: RequestSet) -> float:
    """How long a replay may take before it counts as hung."""
    last = float(requests.arrival_s.max()) if requests.n else 0.0
    tokens = float(requests.output_tokens.sum() + 0.1 * requests.input_tokens.sum())
    return PATIENCE_S + 2.0 * last + 1.0 * tokens


def run_client(name: str, command: Sequence[str], target: Endpoint, patience: float, log: Path) -> None:
    """Run a client to its end, output to `log`. InputError with its last lines where it fails or hangs."""
    with log.open("wb") as file:
        try:
            done = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                env=target.environment(),
                timeout=patience,
                check=False,
            )
        except OSError as error:
            raise InputError(f"{name} cannot be started", str(error)) from None
        except subprocess.TimeoutExpired:
            raise InputError(f"{name} was stopped after {patience:.0f} s", _tail(log)) from None
    if done.returncode:
        raise InputError(f"{name} failed with status {done.returncode}", _tail(log))


def complete(run: MeasuredRun, requests: RequestSet, out: Path) -> MeasuredRun:
    """The run, where every request finished with the output length it asked for; else InputError."""
    if run.n_failed or run.n != requests.n:
        raise Incomplete(f"{run.n_failed or requests.n - run.n} of {requests.n} requests failed", str(out))
    if not (run.output_tokens == requests.output_tokens).all():
        raise InputError(
            "the server did not give the output lengths asked for", str(out), "a server that honours ignore_eos"
        )
    return run


def _tail(log: Path) -> str:
    lines = [x for x in log.read_text("utf-8", "replace").splitlines() if x.strip() and "leaked" not in x]
    return f"log {log} ends:\n  " + "\n  ".join(lines[-LAST_LINES:])
