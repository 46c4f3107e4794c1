"""Inference tasks: requests that the server sends to an endpoint which its operator has listed, with their latencies.

A visitor of the page chooses among these endpoints by name and never states an address.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Final

from pydantic import Field, model_validator

from calibration.serve.request_load import (
    LoadLimits,
    PromptToSend,
    RequestSettings,
    SentLoad,
    prompts_of_words,
    send_load,
)
from catalogs.errors import InputError, nearest_name
from catalogs.io.http import ServerUrl, without_password
from catalogs.io.pinned_connection import PinnedServer, ReplyLimits
from catalogs.io.yaml_files import StrictYamlBlock, check_keys
from planner.web.listed_endpoints import ListedEndpoint

#: Longest prompt, in characters.
MOST_PROMPT_CHARACTERS: Final = 200_000

#: Longest time of a whole task, in seconds. Requests that have not finished by then are ended.
MOST_TASK_S: Final = 900.0


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
        return prompts_of_words([self.input_tokens or 1] * self.requests, self.seed)


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
class SentTask:
    """A task that was carried out, and the load that it sent."""

    task: InferenceTask
    endpoint: ListedEndpoint
    load: SentLoad


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
    key = endpoint.key()
    server = PinnedServer.of(ServerUrl.parse(endpoint.url), endpoint.private_network)
    model = task.model or (endpoint.models[0] if endpoint.models else None)
    settings = RequestSettings(model, endpoint.form, task.stream, endpoint.extra, key)
    prompts = [PromptToSend(text, task.output_tokens) for text in task.prompts()]
    most = LoadLimits(limits or ReplyLimits(), MOST_TASK_S)

    def problem_of(error: InputError) -> str:
        return _without_address(error, endpoint)

    load = send_load(server, prompts, task.concurrency, settings, most, progress, cancelled, problem_of)
    return SentTask(task, endpoint, load)


def _without_address(error: InputError, endpoint: ListedEndpoint) -> str:
    """Return the rule of an error, and its value where it is not an address, which visitors need not know."""
    value = None if error.value is None else str(error.value)
    address = ServerUrl.parse(endpoint.url).base
    if value is None or address in value or without_password(endpoint.url) in value:
        return error.rule.replace(address, "the endpoint")
    return str(error)
