"""A served model by its URL: its address, its name, its key, and how far away it is."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Any, Final
from urllib.parse import urlsplit

from calibration.serve.request_load import RequestSettings
from calibration.serve.streaming_client import RequestForm
from catalogs.errors import InputError, nearest_name
from catalogs.io.http import ReplyError, ServerUrl, get_json, plain_text
from catalogs.io.pinned_connection import PinnedServer

#: Connections that are timed for the round trip of the network; the fastest counts. A judgement: of five connections,
#: at least one usually does not wait for other traffic.
_ROUND_TRIPS: Final = 5

#: Longest name of a model in characters; a longer one is no name.
_LONGEST_NAME: Final = 256

#: Shorter keys are too common as parts of words to be removed from texts.
_SHORTEST_KEY: Final = 6


@dataclass(frozen=True, slots=True)
class EndpointChoice:
    """What a user states about an endpoint.

    Attributes:
        url: Its address; `/v1` is added to an address without a path for the forms of OpenAI.
        form: The form of its requests.
        served: The name under which it serves the model; None for the first that it lists.
        key_env: The environment variable with its key.
        stream: Whether texts should come back token by token.
        extra: Further keys of each request.
    """

    url: str
    form: RequestForm = "chat"
    served: str | None = None
    key_env: str | None = None
    stream: bool = True
    extra: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class EndpointTarget:
    """An endpoint that answers connections.

    Attributes:
        server: The server with its checked addresses.
        settings: What all requests to it have in common, its key included.
        round_trip_s: The shortest time of a TCP connection, which is one round trip of the network.
        notes: What the server does not state.
    """

    server: PinnedServer
    settings: RequestSettings
    round_trip_s: float
    notes: tuple[str, ...] = ()

    @property
    def network_s(self) -> float:
        """Return the part of a time to first token that is network.

        A request opens a connection (a round trip), agrees on keys with TLS 1.3 (another; RFC 8446), and waits for its
        first byte (another).
        """
        return self.round_trip_s * (3 if self.server.tls else 2)

    @property
    def on_this_machine(self) -> bool:
        """Return whether the server runs on this machine."""
        return all(ip_address(address.partition("%")[0]).is_loopback for address in self.server.addresses)

    def problem_of(self, error: InputError) -> str:
        """Return an error in words without the key, which some servers repeat in their refusals."""
        return without_key(str(error), self.settings.key)


def without_key(text: str, key: str | None) -> str:
    """Return a text of a server without the key that was sent to it."""
    return text.replace(key, "***") if key is not None and len(key) >= _SHORTEST_KEY else text


def connect(choice: EndpointChoice, timeout_s: float) -> EndpointTarget:
    """Look up an endpoint, connect to it, and find the name of its model.

    Args:
        choice: What the user states.
        timeout_s: Limit of each step, seconds.

    Raises:
        InputError: The address is not a URL, nothing answers there, the key is missing, or another model is served.
    """
    url = ServerUrl.parse(choice.url, ("/chat/completions", "/completions", "/models"))
    if choice.form != "vertex" and not urlsplit(url.base).path:
        url = ServerUrl(f"{url.base}/v1", url.authorization)
    key = _key(choice.key_env)
    server = PinnedServer.of(url, private_network=True, timeout_s=timeout_s)
    round_trip_s = _round_trip_s(server, timeout_s)
    notes, served = list[str](), choice.served
    if choice.form != "vertex":
        names = _served_names(url, key, timeout_s)
        if names is None:
            notes.append("the server does not list its models" + (", so requests name none" if not served else ""))
        elif served is None:
            served = names[0]
        elif served not in names:
            nearest = nearest_name(served, names) or names[0]
            raise InputError("the endpoint does not serve this model", served, nearest)
    settings = RequestSettings(served, choice.form, choice.stream, choice.extra or {}, key)
    return EndpointTarget(server, settings, round_trip_s, tuple(notes))


def _key(variable: str | None) -> str | None:
    """Return the key in an environment variable.

    Raises:
        InputError: The variable is not set.
    """
    if variable is None:
        return None
    if not os.environ.get(variable):
        raise InputError("the environment variable holds no key for this endpoint", variable)
    return os.environ[variable]


def _round_trip_s(server: PinnedServer, timeout_s: float) -> float:
    """Return the shortest time of a connection to any address of a server.

    Raises:
        InputError: No address accepts a connection in time.
    """
    times, why = list[float](), "no address"
    for address in server.addresses:
        for _ in range(_ROUND_TRIPS):
            began_s = time.perf_counter()
            try:
                socket.create_connection((address, server.port), timeout_s).close()
            except OSError as error:
                why = plain_text(error)
                break
            times.append(time.perf_counter() - began_s)
        if times:
            return min(times)
    hint = "give the host and port that the server prints when it starts"
    raise InputError(f"no server accepts connections at this address ({why})", server.url.base, hint=hint)


def is_model_name(text: str) -> bool:
    """Return whether a text that a server lists can be the name of a model."""
    return 0 < len(text) <= _LONGEST_NAME and text.isprintable()


def _served_names(url: ServerUrl, key: str | None, timeout_s: float) -> list[str] | None:
    """Return the names of the models of a server; None if it does not list them.

    Raises:
        InputError: The server does not answer in time.
    """
    try:
        found = get_json(f"{url.base}/models", url.headers(key), timeout_s)
        entries = found["data"]
        names = [entry["id"] for entry in entries if isinstance(entry["id"], str)]
    except ReplyError as error:
        if any(status in error.rule for status in ("401", "403")):
            raise InputError(f"{error.rule}: the endpoint does not accept the key", url.base) from None
        return None
    except (KeyError, TypeError):
        return None
    usable = [name for name in names if is_model_name(name)]
    return usable or None
