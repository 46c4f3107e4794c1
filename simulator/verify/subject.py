"""What is verified: a deployment as the simulator reads it, and the server that runs it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from urllib.request import Request, urlopen

from calibration.serve.clients import CLIENTS_KEY, Target
from calibration.serve.server import Launch
from catalogs.deployment import Deployment, load_deployment
from catalogs.errors import InputError


@dataclass(frozen=True, slots=True)
class Subject:
    """`launch` is None for a server that the user runs. `keeps_log`: its log tells every engine step."""

    deployment: Deployment
    target: Target
    launch: Launch | None
    keeps_log: bool


def endpoint(
    url: str, deployment: Path | None, served: str | None, tokenizer: str | None, key_env: str | None
) -> Subject:
    """A server that somebody runs, hosted or not. InputError where it does not answer, or what it runs is not said."""
    if deployment is None:
        raise InputError("the simulator must know what the endpoint runs", url, "--deployment FILE.yaml")
    written = load_deployment(deployment)
    base = url.rstrip("/").removesuffix("/v1")
    if not base.startswith(("http://", "https://")):
        raise InputError("an endpoint is a URL", url, f"http://{url}")
    key = Target(base, "", "", key_env).environment().get(CLIENTS_KEY)
    names = _served_names(base, key)
    if served is not None and served not in names:
        raise InputError("the endpoint serves no such model", served, ", ".join(names[:3]))
    name = served or names[0]
    return Subject(written, Target(base, name, tokenizer or _tokenizer(written.model, name), key_env), None, False)


def _tokenizer(model: str, served: str) -> str:
    """The model's own folder, else the name it is served by, which clients look up."""
    return model if Path(model).is_dir() else served


def _served_names(base: str, key: str | None) -> list[str]:
    asked = Request(f"{base}/v1/models", headers={"Authorization": f"Bearer {key}"} if key else {})
    try:
        with urlopen(asked, timeout=10.0) as answer:
            names = [str(entry["id"]) for entry in json.load(answer)["data"]]
    except (OSError, HTTPException, ValueError, KeyError, TypeError) as error:
        raise InputError(f"the endpoint does not list its models ({error})", f"{base}/v1/models") from None
    if not names:
        raise InputError("the endpoint serves no model", base)
    return names


def engine_version(target: Target) -> str:
    """What the server says of its version; "" where it says nothing."""
    for path, key in (("/version", "version"), ("/props", "build_info")):
        try:
            with urlopen(target.url + path, timeout=5.0) as answer:
                return str(json.load(answer).get(key, ""))
        except (OSError, HTTPException, ValueError, AttributeError):
            continue
    return ""
