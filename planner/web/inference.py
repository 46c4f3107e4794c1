"""Inference tasks: requests that the server sends to an endpoint which its operator has listed, with their latencies.

A visitor of the page chooses among the endpoints of the file of `--endpoints` by name and never states an address. The
file is a YAML mapping:

    local-vllm:
      url: http://localhost:8000/v1
      models: [meta-llama/Llama-3.1-8B-Instruct]
      deployment: {model: llama3.1-8b, engine: vllm, hardware: h100x1}
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import Field, field_validator, model_validator

from calibration.serve.streaming_client import GeneratedReply, GenerationRequest, RequestForm, generate
from catalogs.errors import InputError, nearest_name
from catalogs.io.http import ServerUrl, without_password
from catalogs.io.pinned_connection import PinnedServer, ReplyLimits
from catalogs.io.yaml_files import StrictYamlBlock, check_keys, read_yaml

SCHEMA_VERSION: Final = 1

#: Longest prompt, in characters.
MOST_PROMPT_CHARACTERS: Final = 200_000

#: Longest time of a whole task, in seconds. Requests that have not finished by then are ended.
MOST_TASK_S: Final = 900.0

#: Longest text of one request in the result, in characters.
MOST_SHOWN_CHARACTERS: Final = 20_000

_STATS: Final = ("mean", "p50", "p90", "p99")

#: Words that common tokenizers encode as one token each; prompts of a stated length are drawn from them.
_WORDS: Final = (
    *("time", "year", "people", "way", "day", "man", "thing", "woman", "life", "child", "world", "school", "state"),
    *("family", "student", "group", "country", "problem", "hand", "part", "place", "case", "week", "company", "system"),
    *("program", "question", "work", "number", "night", "point", "home", "water", "room", "mother", "area", "money"),
)


class ListedEndpoint(StrictYamlBlock):
    """An endpoint that inference tasks may use.

    Attributes:
        url: The address below which the paths of the form lie, for example http://localhost:8000/v1.
        form: The form of the requests: chat or completions of OpenAI-compatible servers, or vertex.
        models: The names under which it serves models, the default first; empty if requests need none.
        key_env: Name of the environment variable with the key of the endpoint.
        private_network: Whether the name in the URL may lead to a private network.
        extra: Further keys of each request, for example {ignore_eos: true}.
        usd_per_million_input_tokens: Price of a million tokens of prompts; None if unknown.
        usd_per_million_output_tokens: Price of a million generated tokens; None if unknown.
        usd_per_hour: Price of the machines behind the endpoint, dollars per hour; None if unknown.
        most_concurrency: The most requests that a task may have under way at once.
        most_requests: The most requests of a task.
        most_output_tokens: The most tokens that a request may generate.
        deployment: The keys of deployment.yaml, for the simulation of the same requests; None for no simulation.
    """

    url: str
    form: RequestForm = "chat"
    models: list[str] = Field(default_factory=list)
    key_env: str | None = None
    private_network: bool = False
    extra: dict[str, Any] = Field(default_factory=dict)
    usd_per_million_input_tokens: Annotated[float, Field(ge=0)] | None = None
    usd_per_million_output_tokens: Annotated[float, Field(ge=0)] | None = None
    usd_per_hour: Annotated[float, Field(ge=0)] | None = None
    most_concurrency: Annotated[int, Field(ge=1, le=256)] = 16
    most_requests: Annotated[int, Field(ge=1, le=10_000)] = 200
    most_output_tokens: Annotated[int, Field(ge=1, le=2**20)] = 4096
    deployment: dict[str, Any] | None = None

    @field_validator("url")
    @classmethod
    def _is_address(cls, text: str) -> str:
        ServerUrl.parse(text)
        return text

    def key(self) -> str | None:
        """Return the key of the endpoint.

        Raises:
            InputError: The environment variable of the key is not set.
        """
        if self.key_env is None:
            return None
        if not os.environ.get(self.key_env):
            raise InputError("the environment variable holds no key for this endpoint", self.key_env)
        return os.environ[self.key_env]

    def public(self, name: str) -> dict[str, Any]:
        """Return what visitors may know of the endpoint: neither its address nor the name of its key."""
        shown = ("form", "models", "most_concurrency", "most_requests", "most_output_tokens")
        return {"name": name, **{key: getattr(self, key) for key in shown}, "simulated": self.deployment is not None}


def read_endpoints(path: Path | None) -> dict[str, ListedEndpoint]:
    """Return the endpoints of a file by name; none without a file.

    Raises:
        InputError: The file is not such a file.
    """
    if path is None:
        return {}
    return {
        str(name): check_keys(ListedEndpoint, keys, f"{path.name}: {name}") for name, keys in read_yaml(path).items()
    }


class InferenceTask(StrictYamlBlock):
    """What a visitor wants sent to an endpoint.

    Attributes:
        endpoint: Name of the endpoint in the operator's list.
        model: One of the models of the endpoint; None for its first.
        prompt: The prompt of every request; None for prompts of `input_tokens` random words, each different.
        input_tokens: Approximate tokens of each prompt, where no prompt is given.
        output_tokens: The most tokens that each request generates.
        requests: Number of requests.
        concurrency: Requests under way at once: the next is sent when one ends.
        stream: Whether texts come back token by token.
        seed: Seed of the random words.
    """

    endpoint: str
    model: str | None = None
    prompt: Annotated[str, Field(min_length=1, max_length=MOST_PROMPT_CHARACTERS)] | None = None
    input_tokens: Annotated[int, Field(ge=1, le=MOST_PROMPT_CHARACTERS // 8)] | None = None
    output_tokens: Annotated[int, Field(ge=1)] = 128
    requests: Annotated[int, Field(ge=1)] = 1
    concurrency: Annotated[int, Field(ge=1)] = 1
    stream: bool = True
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0

    @model_validator(mode="after")
    def _has_one_prompt(self) -> InferenceTask:
        if (self.prompt is None) == (self.input_tokens is None):
            raise ValueError("a task has either a prompt or input_tokens")
        return self

    def prompts(self) -> list[str]:
        """Return the prompt of each request; random words begin with its number, so that no prefix cache helps."""
        if self.prompt is not None:
            return [self.prompt] * self.requests
        import numpy as np

        draws = np.random.default_rng(self.seed).integers(len(_WORDS), size=(self.requests, self.input_tokens or 1))
        rows = enumerate(draws.tolist(), 1)
        return [" ".join((str(n), *(_WORDS[i] for i in row[1:]))) for n, row in rows]


def checked_task(endpoints: Mapping[str, ListedEndpoint], body: object) -> tuple[InferenceTask, ListedEndpoint]:
    """Return a task and its endpoint, which allows it.

    Raises:
        InputError: The task has an unknown key or endpoint, or exceeds a limit of its endpoint.
    """
    task = check_keys(InferenceTask, body, "the inference task")
    if not endpoints:
        raise InputError("this server lists no endpoints", task.endpoint, hint="start plan serve with --endpoints FILE")
    if task.endpoint not in endpoints:
        nearest = nearest_name(task.endpoint, endpoints) or next(iter(endpoints))
        raise InputError("this endpoint is not on the server's list", task.endpoint, nearest)
    endpoint = endpoints[task.endpoint]
    if task.model is not None and endpoint.models and task.model not in endpoint.models:
        nearest = nearest_name(task.model, endpoint.models) or endpoint.models[0]
        raise InputError(f"{task.endpoint} does not serve this model", task.model, nearest)
    if task.model is not None and not endpoint.models:
        raise InputError(f"{task.endpoint} lists no models, so a task names none", task.model)
    for key in ("concurrency", "requests", "output_tokens"):
        most = getattr(endpoint, f"most_{key}")
        if getattr(task, key) > most:
            raise InputError(f"{key} of {task.endpoint} is at most {most}", getattr(task, key), str(most))
    return task, endpoint


@dataclass(frozen=True, slots=True)
class SentRequest:
    """One request of a task: when it was sent, in seconds since the task began, and its reply or what went wrong."""

    position: int
    sent_s: float
    reply: GeneratedReply | None
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class SentTask:
    """A task that was carried out: its requests in the order of sending, and how long it took.

    `interrupted` is True if it was stopped early; requests that were not sent state so in `problem`.
    """

    task: InferenceTask
    endpoint: ListedEndpoint
    sent: tuple[SentRequest, ...]
    duration_s: float
    interrupted: bool = False

    @property
    def replies(self) -> list[GeneratedReply]:
        """Return the replies of the requests that succeeded."""
        return [s.reply for s in self.sent if s.reply is not None]

    def document(self) -> dict[str, Any]:
        """Return the result as JSON: the requests, their statistics and what they cost."""
        return {
            "schema_version": SCHEMA_VERSION,
            "endpoint": self.endpoint.public(self.task.endpoint),
            "task": self.task.model_dump(),
            "summary": self._summary(),
            "requests": [self._row(s) for s in self.sent],
            "notes": list(self._notes()),
        }

    def _summary(self) -> dict[str, Any]:
        replies = self.replies
        columns = {name: [getattr(r, name) for r in replies] for name in ("ttft_s", "tpot_s", "e2e_s")}
        tokens = sum(r.output_tokens for r in replies)
        usd = [self._usd(r) for r in replies]
        known = [x for x in usd if x is not None]
        machine = self.endpoint.usd_per_hour
        return {
            "n": len(self.sent),
            "n_failed": len(self.sent) - len(replies),
            "duration_s": self.duration_s,
            "requests_per_s": len(replies) / self.duration_s if self.duration_s else None,
            "output_tokens": tokens,
            "output_tokens_per_s": tokens / self.duration_s if self.duration_s else None,
            **{name: _statistics([x for x in column if x is not None]) for name, column in columns.items()},
            "itl_s": _statistics([gap for r in replies for gap in r.itl_s]),
            "usd": sum(known) if known else None,
            "usd_of_machines": None if machine is None else machine * self.duration_s / 3600,
        }

    def _usd(self, reply: GeneratedReply) -> float | None:
        prices = self.endpoint.usd_per_million_input_tokens, self.endpoint.usd_per_million_output_tokens
        if prices == (None, None) or (prices[0] and reply.input_tokens is None):
            return None
        return ((prices[0] or 0.0) * (reply.input_tokens or 0) + (prices[1] or 0.0) * reply.output_tokens) / 1e6

    def _row(self, sent: SentRequest) -> dict[str, Any]:
        row: dict[str, Any] = {"position": sent.position, "sent_s": sent.sent_s, "problem": sent.problem}
        if sent.reply is None:
            return row
        found = asdict(sent.reply) | {"tpot_s": sent.reply.tpot_s, "usd": self._usd(sent.reply)}
        text = found.pop("text")
        found["itl_s"] = _statistics(found["itl_s"])
        return row | found | {"text": text[:MOST_SHOWN_CHARACTERS], "text_is_cut": len(text) > MOST_SHOWN_CHARACTERS}

    def _notes(self) -> Sequence[str]:
        notes = []
        if any(not r.counted_by_server for r in self.replies):
            notes.append("the server does not count tokens: each message with text counts as one output token")
        if any(r.ttft_s is None for r in self.replies):
            notes.append("the reply is not streamed, so there is no time to first token")
        if self.endpoint.usd_per_hour is None and all(self._usd(r) is None for r in self.replies):
            notes.append("the operator's list states no price for this endpoint")
        return notes


def send_task(
    task: InferenceTask,
    endpoint: ListedEndpoint,
    progress: Callable[[int, int], None] | None = None,
    cancelled: threading.Event | None = None,
    limits: ReplyLimits | None = None,
) -> SentTask:
    """Send the requests of a task, at most `concurrency` at once, and return them with their replies.

    The name of the endpoint is looked up once. A request that fails is kept with its reason and does not end the task.
    An interrupt ends the task, which then holds what it has.

    Args:
        task: The task, which the endpoint allows.
        endpoint: The endpoint.
        progress: Called with (requests done, requests in all) after each request.
        cancelled: An event that ends all requests when it is set.
        limits: The limits of each reply.

    Raises:
        InputError: The endpoint has no key, or its name leads to an address that must not be used.
    """
    key, stop = endpoint.key(), cancelled or threading.Event()
    server = PinnedServer.of(ServerUrl.parse(endpoint.url), endpoint.private_network)
    model = task.model or (endpoint.models[0] if endpoint.models else None)
    began_s = time.monotonic()

    def send(position: int, prompt: str) -> SentRequest:
        sent_s = time.monotonic() - began_s
        if stop.is_set() or sent_s > MOST_TASK_S:
            return SentRequest(position, sent_s, None, "the task had ended before this request was sent")
        request = GenerationRequest(model, prompt, task.output_tokens, endpoint.form, task.stream, endpoint.extra)
        most = limits or ReplyLimits()
        here = ReplyLimits(min(most.seconds, MOST_TASK_S - sent_s), most.bytes)
        try:
            return SentRequest(position, sent_s, generate(server, request, key, here, stop))
        except InputError as error:
            return SentRequest(position, sent_s, None, _without_address(error, endpoint))

    with ThreadPoolExecutor(task.concurrency) as pool:
        waiting = [pool.submit(send, i, prompt) for i, prompt in enumerate(task.prompts())]
        try:
            for n, _ in enumerate(as_completed(waiting), 1):
                if progress is not None:
                    progress(n, task.requests)
        except KeyboardInterrupt:
            stop.set()  # the requests under way end at once, and no other is sent
    sent = tuple(request.result() for request in waiting)
    return SentTask(task, endpoint, sent, time.monotonic() - began_s, stop.is_set())


def _without_address(error: InputError, endpoint: ListedEndpoint) -> str:
    """Return the rule of an error, and its value where it is not an address, which visitors need not know."""
    value = None if error.value is None else str(error.value)
    address = ServerUrl.parse(endpoint.url).base
    if value is None or address in value or without_password(endpoint.url) in value:
        return error.rule.replace(address, "the endpoint")
    return str(error)


def _statistics(values: Sequence[float]) -> dict[str, float] | None:
    """Return the mean and percentiles of values; None if there are none."""
    if not values:
        return None
    import numpy as np

    array = np.asarray(values)
    return {s: float(array.mean() if s == "mean" else np.percentile(array, float(s[1:]))) for s in _STATS}
