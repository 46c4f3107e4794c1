"""Inference tasks: requests that the server sends to an endpoint which its operator has listed, with their latencies.

A visitor of the page chooses among these endpoints by name and never states an address.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from typing import Annotated, Final

from pydantic import Field, model_validator

from calibration.serve.streaming_client import GeneratedReply, GenerationRequest, generate
from catalogs.errors import InputError, nearest_name
from catalogs.io.http import ServerUrl, without_password
from catalogs.io.pinned_connection import PinnedServer, ReplyLimits
from catalogs.io.yaml_files import StrictYamlBlock, check_keys
from planner.web.endpoints import ListedEndpoint

#: Longest prompt, in characters.
MOST_PROMPT_CHARACTERS: Final = 200_000

#: Longest time of a whole task, in seconds. Requests that have not finished by then are ended.
MOST_TASK_S: Final = 900.0

#: Words that common tokenizers encode as one token each; prompts of a stated length are drawn from them.
_WORDS: Final = (
    *("time", "year", "people", "way", "day", "man", "thing", "woman", "life", "child", "world", "school", "state"),
    *("family", "student", "group", "country", "problem", "hand", "part", "place", "case", "week", "company", "system"),
    *("program", "question", "work", "number", "night", "point", "home", "water", "room", "mother", "area", "money"),
)


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
