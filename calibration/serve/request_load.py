"""A load of generation requests: prompts of stated lengths for one server, with limits on each reply and the whole."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field, replace
from typing import Any, Final

from calibration.serve.streaming_client import GeneratedReply, GenerationRequest, RequestForm, generate
from catalogs.errors import InputError
from catalogs.io.pinned_connection import PinnedServer, ReplyLimits

#: The reason of a request that was not sent because the time of its load was over.
TOO_LATE: Final = "the task had ended before this request was sent"

#: Words that common tokenizers encode as one token each; prompts of a stated length are drawn from them.
_WORDS: Final = (
    *("time", "year", "people", "way", "day", "man", "thing", "woman", "life", "child", "world", "school", "state"),
    *("family", "student", "group", "country", "problem", "hand", "part", "place", "case", "week", "company", "system"),
    *("program", "question", "work", "number", "night", "point", "home", "water", "room", "mother", "area", "money"),
)


def prompts_of_words(lengths: Sequence[int], seed: int = 0, first: int = 1) -> list[str]:
    """Return one prompt of random words for each length; each begins with its number, so that no prefix cache helps.

    Args:
        lengths: Words of each prompt, its number included.
        seed: Seed of the words.
        first: Number of the first prompt.
    """
    import numpy as np

    longest = max(lengths, default=1)
    draws = np.random.default_rng(seed).integers(len(_WORDS), size=(len(lengths), longest)).tolist()
    rows = zip(draws, lengths, strict=True)
    return [" ".join((str(n), *(_WORDS[i] for i in row[1:length]))) for n, (row, length) in enumerate(rows, first)]


@dataclass(frozen=True, slots=True)
class PromptToSend:
    """A prompt, and the most tokens to generate for it."""

    text: str
    output_tokens: int


@dataclass(frozen=True, slots=True)
class RequestSettings:
    """What all requests of a load have in common.

    Attributes:
        model: The name under which the server serves the model; None if it needs none.
        form: The form of the requests.
        stream: Whether texts come back token by token.
        extra: Further keys of each request, for example {"ignore_eos": True}.
        key: The key of the server; it is not printed.
    """

    model: str | None = None
    form: RequestForm = "chat"
    stream: bool = True
    extra: Mapping[str, Any] = field(default_factory=dict)
    key: str | None = field(default=None, repr=False)

    def request(self, prompt: PromptToSend) -> GenerationRequest:
        """Return the request of a prompt."""
        return GenerationRequest(self.model, prompt.text, prompt.output_tokens, self.form, self.stream, self.extra)


@dataclass(frozen=True, slots=True)
class SentRequest:
    """One request of a load: when it was sent, in seconds since the load began, and its reply or what went wrong."""

    position: int
    sent_s: float
    reply: GeneratedReply | None
    problem: str | None = None

    @property
    def end_s(self) -> float | None:
        """Return when its last message came, in seconds since the load began; None if it failed."""
        return None if self.reply is None else self.sent_s + self.reply.e2e_s


@dataclass(frozen=True, slots=True)
class SentLoad:
    """A load that was sent: its requests in the order of sending, and how long it took.

    `interrupted` is True if it was stopped early; requests that were not sent state so in `problem`.
    """

    sent: tuple[SentRequest, ...]
    duration_s: float
    interrupted: bool = False

    @property
    def replies(self) -> list[GeneratedReply]:
        """Return the replies of the requests that succeeded."""
        return [s.reply for s in self.sent if s.reply is not None]


@dataclass(frozen=True, slots=True)
class LoadLimits:
    """The limits of a load.

    Attributes:
        reply: The limits of each reply.
        seconds: Time after which everything under way is ended.
        failures_in_a_row: So many requests that fail one after the other end the load; None for no such limit.
    """

    reply: ReplyLimits = field(default_factory=ReplyLimits)
    seconds: float = 900.0
    failures_in_a_row: int | None = None


def send_load(
    server: PinnedServer,
    prompts: Sequence[PromptToSend],
    concurrency: int,
    settings: RequestSettings,
    limits: LoadLimits | None = None,
    progress: Callable[[int, int], None] | None = None,
    cancelled: threading.Event | None = None,
    problem_of: Callable[[InputError], str] = str,
) -> SentLoad:
    """Send prompts, at most `concurrency` at once, and return them with their replies.

    A request that fails is kept with its reason and does not end the load. An interrupt ends the load, which then holds
    what it has.

    Args:
        server: The server, whose name was looked up once.
        prompts: The prompts, in the order of sending.
        concurrency: Requests under way at once: the next is sent when one ends.
        settings: What all requests have in common.
        limits: The limits of each reply and of the whole.
        progress: Called with (requests done, requests in all) after each request.
        cancelled: An event that ends all requests when it is set.
        problem_of: Returns the reason of a request that failed.
    """
    stop, limits, began_s = cancelled or threading.Event(), limits or LoadLimits(), time.monotonic()

    def send(position: int, prompt: PromptToSend) -> SentRequest:
        sent_s = time.monotonic() - began_s
        if stop.is_set() or sent_s > limits.seconds:
            return SentRequest(position, sent_s, None, TOO_LATE)
        here = replace(limits.reply, seconds=min(limits.reply.seconds, limits.seconds - sent_s))
        try:
            reply = generate(server, settings.request(prompt), settings.key, here, stop)
        except InputError as error:
            failures.append(position)
            if limits.failures_in_a_row is not None and len(failures) >= limits.failures_in_a_row:
                stop.set()
            return SentRequest(position, sent_s, None, problem_of(error))
        failures.clear()
        return SentRequest(position, sent_s, reply)

    failures: list[int] = []  # positions of the last failed requests, without a success since
    with ThreadPoolExecutor(concurrency) as pool:
        waiting = [pool.submit(send, i, prompt) for i, prompt in enumerate(prompts)]
        try:
            for n, _ in enumerate(as_completed(waiting), 1):
                if progress is not None:
                    progress(n, len(prompts))
        except KeyboardInterrupt:
            stop.set()  # the requests under way end at once, and no other is sent
    return SentLoad(tuple(request.result() for request in waiting), time.monotonic() - began_s, stop.is_set())
