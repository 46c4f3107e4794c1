"""The endpoints that inference tasks may use: the file of `--endpoints`, in which the server's operator lists them.

The file is a YAML mapping by name:

    local-vllm:
      url: http://localhost:8000/v1
      models: [meta-llama/Llama-3.1-8B-Instruct]
      deployment: {model: llama3.1-8b, engine: vllm, hardware: h100x1}
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, field_validator

from calibration.serve.reply_statistics import TokenPrices
from calibration.serve.streaming_client import RequestForm
from catalogs.errors import InputError
from catalogs.io.http import ServerUrl
from catalogs.io.yaml_files import StrictYamlBlock, check_keys, read_yaml


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

    @property
    def tariff(self) -> TokenPrices:
        """Return what the endpoint costs."""
        return TokenPrices(self.usd_per_million_input_tokens, self.usd_per_million_output_tokens, self.usd_per_hour)

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
