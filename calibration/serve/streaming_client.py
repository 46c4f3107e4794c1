"""One request to a served model, with the time of every message that comes back.

The request forms are those of OpenAI-compatible servers (completions and chat completions, streamed or not) and of
Vertex AI endpoints (`:predict`, which returns the whole text at once). An endpoint of Vertex AI that speaks the OpenAI
form is used with that form.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final, Literal

from catalogs.errors import InputError
from catalogs.io.http import ReplyError, plain_text
from catalogs.io.pinned_connection import PinnedServer, Reply, ReplyLimits, posted

RequestForm = Literal["chat", "completions", "vertex"]

#: The path of each form below the URL of the server.
PATHS: Final[Mapping[RequestForm, str]] = {
    "chat": "/chat/completions",
    "completions": "/completions",
    "vertex": ":predict",
}

#: Longest line of an event stream, in bytes.
MOST_LINE_BYTES: Final = 2**18

#: Longest text of one reply that is kept, in characters; its tokens are counted in full.
MOST_CHARACTERS: Final = 200_000

#: Characters that are not printable by their Unicode category, but belong to texts: line ends, tabs, and the joiners of
#: many scripts.
_KEPT: Final = "\n\t\u200c\u200d"


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """A request for generated text.

    Attributes:
        model: The name under which the server serves the model; servers of one model need none.
        prompt: The text of the prompt.
        output_tokens: The most tokens to generate.
        form: The form of the request.
        stream: Whether the text should come back token by token.
        extra: Further keys of the body, for example {"ignore_eos": True}.
    """

    model: str | None
    prompt: str
    output_tokens: int
    form: RequestForm = "chat"
    stream: bool = True
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def streams(self) -> bool:
        """Return True if the reply is a stream; Vertex AI's form has none."""
        return self.stream and self.form != "vertex"

    def body(self) -> dict[str, Any]:
        """Return the body of the request."""
        if self.form == "vertex":
            return {"instances": [{"prompt": self.prompt, "max_tokens": self.output_tokens, **self.extra}]}
        found: dict[str, Any] = {"max_tokens": self.output_tokens, "stream": self.stream, **self.extra}
        if self.model is not None:
            found["model"] = self.model
        if self.stream:
            found["stream_options"] = {"include_usage": True}
        if self.form == "chat":
            return found | {"messages": [{"role": "user", "content": self.prompt}]}
        return found | {"prompt": self.prompt}


@dataclass(frozen=True, slots=True)
class GeneratedReply:
    """The reply to one request; times are seconds since the request was sent.

    Attributes:
        text: The generated text without control characters.
        input_tokens: Tokens of the prompt by the server's count; None if it gives none.
        output_tokens: Generated tokens by the server's count, otherwise the number of messages with text.
        counted_by_server: Whether the server gave `output_tokens`.
        ttft_s: Time of the first message with text; None if the reply was not streamed.
        e2e_s: Time of the last message, or of the end of a reply that was not streamed.
        itl_s: The gaps between messages with text.
        finish_reason: Why the server stopped, in its word.
    """

    text: str
    input_tokens: int | None
    output_tokens: int
    counted_by_server: bool
    ttft_s: float | None
    e2e_s: float
    itl_s: tuple[float, ...]
    finish_reason: str | None

    @property
    def tpot_s(self) -> float | None:
        """Return the seconds per output token after the first; None for one token or without a stream."""
        if self.ttft_s is None or self.output_tokens < 2:
            return None
        return (self.e2e_s - self.ttft_s) / (self.output_tokens - 1)


def generate(
    server: PinnedServer,
    request: GenerationRequest,
    key: str | None = None,
    limits: ReplyLimits | None = None,
    cancelled: threading.Event | None = None,
) -> GeneratedReply:
    """Send a request and measure its reply.

    Raises:
        ReplyError: The server answers an error, or its reply does not have the form of the request.
        InputError: The server does not answer, or its reply exceeds a limit.
    """
    headers = server.url.headers(key) | {"Accept": "text/event-stream" if request.streams else "application/json"}
    body = json.dumps(request.body()).encode()
    sent_s = time.monotonic()
    with posted(server, PATHS[request.form], body, headers, limits or ReplyLimits(), cancelled) as reply:
        if reply.content_type == "text/event-stream":
            return _read_stream(reply, sent_s)
        document = _parsed(reply.body())
        e2e_s = time.monotonic() - sent_s
    if request.streams:
        _raise_error(document)
        raise ReplyError("the server does not stream this request", reply.content_type, hint="send it with stream off")
    return _read_document(document, e2e_s)


def visible(text: str) -> str:
    """Return a text of a server without the characters that change a screen or the order of other characters."""
    return "".join(c if c in _KEPT or c.isprintable() else "\ufffd" for c in text)


def _read_stream(reply: Reply, sent_s: float) -> GeneratedReply:
    pieces: list[str] = []
    kept, at_s, usage, reason = 0, list[float](), dict[str, Any](), None
    for arrived_s, data in _events(reply):
        if data == "[DONE]":
            break
        event = _parsed(data.encode())
        _raise_error(event)
        usage = event["usage"] if isinstance(event.get("usage"), dict) else usage
        text, finished = _choice(event)
        reason = finished or reason
        if text:
            at_s.append(arrived_s)
            pieces.append(text[: max(MOST_CHARACTERS - kept, 0)])
            kept += len(text)
    if not at_s:
        raise ReplyError("the server's stream has no text", plain_text(reason or "no finish reason"))
    gaps = tuple(b - a for a, b in pairwise(at_s))
    counted = _count(usage, "completion_tokens")
    return GeneratedReply(
        visible("".join(pieces)),
        _count(usage, "prompt_tokens"),
        len(at_s) if counted is None else counted,
        counted is not None,
        at_s[0] - sent_s,
        at_s[-1] - sent_s,
        gaps,
        reason,
    )


def _events(reply: Reply) -> Iterator[tuple[float, str]]:
    """Yield (time, data) of each server-sent event; a last event without an empty line counts too.

    Raises:
        InputError: A line is longer than MOST_LINE_BYTES.
    """
    rest, data, now_s = b"", list[str](), 0.0
    for now_s, chunk in reply.chunks():
        *lines, rest = (rest + chunk).replace(b"\r\n", b"\n").split(b"\n")
        if len(rest) > MOST_LINE_BYTES:
            raise InputError(f"a line of the server's stream is longer than {MOST_LINE_BYTES // 2**10} KiB")
        for line in lines:
            if line.startswith(b"data:"):
                data.append(line[5:].decode("utf-8", "replace").removeprefix(" "))
            elif not line and data:
                yield now_s, "\n".join(data)
                data = []
    if rest.startswith(b"data:"):
        data.append(rest[5:].decode("utf-8", "replace").removeprefix(" "))
    if data:
        yield now_s, "\n".join(data)


def _parsed(body: bytes) -> dict[str, Any]:
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        raise ReplyError("the server's reply is not JSON", plain_text(body[:200].decode("utf-8", "replace"))) from None
    if not isinstance(found, dict):
        raise ReplyError("the server's reply is not a JSON object", type(found).__name__)
    return found


def _raise_error(document: Mapping[str, Any]) -> None:
    """Raise the error that a server reports inside a reply with status 200."""
    error = document.get("error")
    if error:
        words = error.get("message") if isinstance(error, dict) else error
        raise ReplyError("the server reports an error", plain_text(words or error))


def _choice(event: Mapping[str, Any]) -> tuple[str, str | None]:
    """Return the text and the finish reason of the first choice of a message, streamed or not.

    The text of a model's reasoning counts, because its tokens are generated and paid for like any other.
    """
    choices = event.get("choices")
    first = choices[0] if isinstance(choices, list) and choices and isinstance(choices[0], dict) else {}
    inner = first.get("delta") or first.get("message") or {}
    inner = inner if isinstance(inner, dict) else {}
    parts = (inner.get("reasoning_content"), inner.get("reasoning"), inner.get("content"), first.get("text"))
    reason = first.get("finish_reason")
    return "".join(p for p in parts if isinstance(p, str)), plain_text(reason, 40) if reason else None


def _read_document(document: Mapping[str, Any], e2e_s: float) -> GeneratedReply:
    _raise_error(document)
    usage: Any = document.get("usage") or {}
    if "predictions" in document:
        text, usage, reason = _prediction(document)
    else:
        text, reason = _choice(document)
    counted = _count(usage, "completion_tokens")
    if not text and not counted:
        raise ReplyError("the server's reply has no text", plain_text(", ".join(map(str, document))))
    kept = visible(text[:MOST_CHARACTERS])
    return GeneratedReply(
        kept, _count(usage, "prompt_tokens"), counted or 0, counted is not None, None, e2e_s, (), reason
    )


def _prediction(document: Mapping[str, Any]) -> tuple[str, Any, str | None]:
    """Return the text, the usage and the finish reason of the first prediction of Vertex AI.

    Containers answer a text, or an object with the text as content, text or generated_text, or with the choices of the
    OpenAI form.
    """
    found = document["predictions"]
    first = found[0] if isinstance(found, list) and found else found
    if isinstance(first, str):
        return first, {}, None
    if not isinstance(first, dict):
        return "", {}, None
    texts = (first.get(name) for name in ("content", "text", "generated_text"))
    chosen, reason = _choice(first)
    return next((t for t in texts if isinstance(t, str)), chosen), first.get("usage") or {}, reason


def _count(usage: Any, name: str) -> int | None:
    value = usage.get(name) if isinstance(usage, dict) else None
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**31 else None
