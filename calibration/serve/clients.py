"""Load clients, which replay a set of requests against a server and return the measured run."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol, runtime_checkable

import numpy as np

from calibration.accuracy.measured_run import MeasuredRun
from calibration.importers.load_clients.results import measured_run_file
from calibration.serve.resident_program import ResidentProgram
from calibration.serve.server import log_tail
from catalogs.errors import InputError
from catalogs.io.output_files import make_folder, write_atomically
from catalogs.workloads.request_set import RequestSet

if TYPE_CHECKING:
    import pandas as pd


BLOCK_TOKENS: Final = 16  # tokens per content id of a trace

BASE_TIMEOUT_S: Final = 120.0  # allowance of a replay in addition to the time that depends on its requests

TRIES: Final = 3  # attempts at a replay in which single requests fail

_MAX_NUMBERS: Final = 5  # failed requests that an error names

CLIENTS_KEY: Final = "OPENAI_API_KEY"  # the environment variable from which clients read a key, for any server


@dataclass(frozen=True, slots=True)
class Endpoint:
    """An OpenAI-compatible server.

    `key_env` is the name of the environment variable with the server's key, never the key itself.
    """

    url: str
    model: str  # the name under which the server serves the model
    tokenizer: str  # folder or hub name, for clients that make prompts from tokens
    key_env: str | None = None

    def environment(self) -> dict[str, str]:
        """Return the environment of a client process.

        It is that of this process with the server's key in the variable that clients read. Any other key is removed,
        because a client would send it to this server. Access to model hubs is disabled.

        Raises:
            InputError: If the variable `key_env` is not set.
        """
        found = dict(os.environ) | {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
        found.pop(CLIENTS_KEY, None)
        if self.key_env is not None:
            if not os.environ.get(self.key_env):
                raise InputError("the environment variable holds no key for this endpoint", self.key_env)
            found[CLIENTS_KEY] = os.environ[self.key_env]
        return found


class IncompleteReplay(InputError):
    """The error that requests of a replay failed; a retry may succeed, for example after a closed connection.

    Attributes:
        run: The measured run of the other requests.
        finished: Whether each request finished. Shape (requests,).
        why: The failed requests by number, with their reasons.
    """

    def __init__(self, run: MeasuredRun, requests: RequestSet, out: Path) -> None:
        self.run = run
        self.finished = np.ones(requests.n, dtype=np.bool_)
        failed = {failure.position: failure.reason for failure in run.failures if failure.position < requests.n}
        self.finished[list(failed)] = False
        if run.n != int(self.finished.sum()):  # the client does not report which ones failed
            self.finished[:] = False
        by_reason: dict[str, list[int]] = {}
        for position, reason in sorted(failed.items()):
            by_reason.setdefault(reason, []).append(position + 1)
        self.why = "; ".join(f"request {_numbers(numbers)}: {reason}" for reason, numbers in by_reason.items())
        n_failed = max(requests.n - run.n, run.n_failed)
        rule = f"{n_failed} of {requests.n} requests failed ({self.why or 'the client gives no reason'})"
        super().__init__(rule, hint=f"the files of this replay are in {out}")


class Client(Protocol):
    """A load client, which replays requests against a server and measures their latencies."""

    @property
    def name(self) -> str:
        """Return the client's name in results."""

    def replay(self, requests: RequestSet, target: Endpoint, out: Path) -> MeasuredRun:
        """Send `requests` and return the measured run.

        Args:
            requests: The requests, sent at their arrival times or at their concurrency.
            target: The server.
            out: Folder for the client's files.

        Raises:
            InputError: If the client cannot run or fails.
            IncompleteReplay: If a request fails.
        """


@runtime_checkable
class InProcessEngine(Protocol):
    """The additional interface of a client that is also the engine, in this process."""

    @property
    def engine_version(self) -> str:
        """Return the version of the engine's package."""

    def steps(self) -> pd.DataFrame | None:
        """Return every engine step so far in the columns of an iteration log, or None where none are logged."""


@runtime_checkable
class ResidentClient(Protocol):
    """The additional interface of a client whose program stays loaded between replays."""

    @property
    def pids(self) -> frozenset[int]:
        """Return the ids of the client's processes."""

    def load(self, target: Endpoint, log: Path) -> None:
        """Start to load the program, so that it is ready when the server is."""

    def close(self) -> None:
        """End the client's program, if it is still loaded."""


@dataclass(slots=True)
class VllmBench:
    """`vllm bench serve` of a Python environment.

    Prompts are random token ids, and outputs have the exact lengths of the requests. The program is loaded at the first
    replay and stays loaded until `close`.

    Attributes:
        python: The interpreter of the environment.
        name: The client's name in results.
        new_connections: Whether each request opens a connection of its own. A server that closes connections without
            notice otherwise fails the request that is sent on one of them.
    """

    python: Path
    name: str = "vllm bench serve"
    new_connections: bool = False
    _program: ResidentProgram = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._program = ResidentProgram(self.name, self.python, _VLLM_BENCH)

    @property
    def pids(self) -> frozenset[int]:
        """Return the id of the client's process, if it runs."""
        return self._program.pids

    def load(self, target: Endpoint, log: Path) -> None:
        """Start to load the program, without waiting for it.

        Raises:
            InputError: The interpreter cannot be started, or the key of the endpoint is missing.
        """
        self._program.start(target.environment(), log)

    def close(self) -> None:
        """End the program, if it runs."""
        self._program.close()

    def replay(self, requests: RequestSet, target: Endpoint, out: Path) -> MeasuredRun:
        """Send `requests` and return the measured run; see `Client.replay`."""
        make_folder(out)
        trace, result = out / "trace.jsonl", out / "result.json"
        result.unlink(missing_ok=True)
        write_atomically(trace, [trace_text(requests)])
        words = [*self._options(requests, target), "--dataset-path", str(trace.resolve())]
        words += ["--result-dir", str(out.resolve()), "--result-filename", result.name]
        self._program.call(words, target.environment(), timeout_s(requests), out / "client.log")
        if not result.is_file():
            raise InputError(f"{self.name} wrote no result", log_tail(out / "client.log"))
        return complete(measured_run_file(result), requests, out)

    def _options(self, requests: RequestSet, target: Endpoint) -> list[str]:
        options = ["--backend", "openai", "--endpoint", "/v1/completions", "--base-url", target.url]
        options += [f"--model={target.model}", f"--tokenizer={target.tokenizer}"]
        options += ["--dataset-name", "timed_trace", "--num-prompts", str(requests.n)]
        options += ["--self-timed", "--timed-trace-sec-multiplier", "0.001", "--disable-tqdm"]
        options += ["--save-result", "--save-detailed", "--percentile-metrics", "ttft,tpot,itl,e2el"]
        if requests.concurrency is not None:
            options += ["--max-concurrency", str(requests.concurrency)]
        if self.new_connections:
            options += ["--header", "Connection=close"]
        return options


#: Runs the client without the `vllm` command, because some builds of the package are installed without its metadata.
_VLLM_BENCH: Final = (
    "import argparse\n"
    "from vllm.benchmarks.serve import add_cli_args, main\n"
    "def run(words):\n"
    "    parser = argparse.ArgumentParser()\n"
    "    add_cli_args(parser)\n"
    "    main(parser.parse_args(words))\n"
)


def trace_text(requests: RequestSet) -> str:
    """Return the requests as a trace of JSON lines with a timestamp in ms, lengths, and content ids that are unique."""
    blocks = -(-requests.input_tokens // BLOCK_TOKENS)
    ends = np.cumsum(blocks)
    columns = (requests.arrival_s * 1e3, requests.input_tokens, requests.output_tokens, ends - blocks, ends)
    lines = []
    for at_ms, n_in, n_out, first, end in zip(*(c.tolist() for c in columns), strict=True):
        row = {"timestamp": at_ms, "input_length": n_in, "output_length": n_out, "hash_ids": list(range(first, end))}
        lines.append(json.dumps(row) + "\n")
    return "".join(lines)


def timeout_s(requests: RequestSet) -> float:
    """Return the seconds after which a replay counts as hung."""
    last = float(requests.arrival_s.max()) if requests.n else 0.0
    tokens = float(requests.output_tokens.sum() + 0.1 * requests.input_tokens.sum())
    return BASE_TIMEOUT_S + 2.0 * last + 1.0 * tokens


def complete(run: MeasuredRun, requests: RequestSet, out: Path) -> MeasuredRun:
    """Return the run if every request finished with the output length of its request.

    Raises:
        IncompleteReplay: If requests failed or are missing.
        InputError: If output lengths differ.
    """
    if run.n_failed or run.n != requests.n:
        raise IncompleteReplay(run, requests, out)
    if not (run.output_tokens == requests.output_tokens).all():
        rule = "the server did not generate the requested output lengths"
        raise InputError(rule, str(out), hint="use a server that honours ignore_eos")
    return run


def _numbers(found: list[int]) -> str:
    """Return numbers in words, at most a few."""
    shown = ", ".join(map(str, found[:_MAX_NUMBERS]))
    return shown if len(found) <= _MAX_NUMBERS else f"{shown} and {len(found) - _MAX_NUMBERS} more"
