"""The servers of a plan on one machine: their ports, devices and environment, and the router in front of them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from catalogs.launch.arguments import Arguments
from planner.deploy.serving import Serving

#: Request timeout of the router in seconds, longer than any request takes.
_TIMEOUT_S: Final = 3600

#: Port on which servers of vLLM exchange the addresses of KV blocks: the default of NixlConnector, plus one for each
#: data-parallel rank.
HANDSHAKE: Final = 5600

#: Port on which servers of SGLang exchange the addresses of KV blocks: the default of
#: `--disaggregation-bootstrap-port`.
BOOTSTRAP: Final = 8998


#: The first port at which servers of vLLM accept embeddings (ECTransferConfig.ec_port); each rank has one of its own.
EMBEDDINGS: Final = 14579

#: Ports kept for the ranks of one server.
MOST_RANKS: Final = 16

#: The flag of vLLM with the connector of embeddings.
EC_FLAG: Final = "--ec-transfer-config"

#: vLLM's example proxy for encoder servers.
ENCODER_PROXY: Final = "disagg_epd_proxy.py"


def pools_words(pools: Sequence[Serving]) -> str:
    """Return a summary of the replicas of a plan: "2 replicas x TP1", or "2 prefill x TP2 + 1 decode x TP4"."""
    if len(pools) > 1:
        names = {"both": "language-model"}
        parts = ((s.replicas, names.get(s.resolved.role, s.resolved.role), s.resolved.layout.words) for s in pools)
        return " + ".join(f"{n} {name} x {layout}" for n, name, layout in parts)
    (s,) = pools
    return f"{s.replicas} replica{'' if s.replicas == 1 else 's'} x {s.resolved.layout.words}"


def device_refusal(decode: Serving) -> str | None:
    """Return the reason why devices cannot transfer KV blocks, or None; `resolve_pools` checks the layouts."""
    unit = decode.resolved.hardware.accelerator
    if unit.is_slice or unit.kind == "cpu":
        return f"no known transfer of KV blocks between {unit.full_name} devices"
    return None


@dataclass(frozen=True, slots=True)
class LocalServer:
    """One server on a machine.

    `name` is the name of its log, `first` the index of its first accelerator, and `transfer_port` its port for KV
    transfer, None if it transfers no KV blocks. Behind an encoder pool, `encoder_urls` are the addresses of the encoder
    servers, and `embedding_port` is the first port at which a server of vLLM accepts their embeddings.
    """

    name: str
    serving: Serving
    port: int
    first: int
    transfer_port: int | None
    encoder_urls: tuple[str, ...] = ()
    embedding_port: int | None = None

    @property
    def arguments(self) -> Arguments:
        """Return the arguments with the ports of this server, and the addresses of its encoder servers."""
        made = self._behind_encoders(self.serving.listening(self.port))
        if self.transfer_port is None:
            return made
        if self.serving.family == "vllm":
            own = {"VLLM_NIXL_SIDE_CHANNEL_PORT": str(self.transfer_port)}
            return replace(made, environment=made.environment | own)
        bootstrap = ("--disaggregation-bootstrap-port", str(self.transfer_port))
        return replace(made, flags=(*made.flags, bootstrap)) if self.prefills else made

    def _behind_encoders(self, made: Arguments) -> Arguments:
        """Return the arguments of a server that gets embeddings; SGLang takes the encoder servers as several words."""
        if not self.encoder_urls:
            return made
        if self.serving.family == "sglang":
            first, *others = self.encoder_urls
            return replace(made, flags=(*made.flags, ("--encoder-urls", first), *((url, None) for url in others)))
        flags = tuple((flag, self._listening(value) if flag == EC_FLAG else value) for flag, value in made.flags)
        return replace(made, flags=flags)

    def _listening(self, config: str | None) -> str:
        return json.dumps(json.loads(config or "{}") | {"ec_ip": "127.0.0.1", "ec_port": self.embedding_port})

    @property
    def encodes(self) -> bool:
        """Return True for an encoder server."""
        return self.serving.resolved.role == "encode"

    @property
    def prefills(self) -> bool:
        """Return True for a prefill server."""
        return self.serving.resolved.role == "prefill"


def local_servers(pools: Sequence[Serving], first_port: int) -> list[LocalServer]:
    """Return all servers for one machine with distinct ports and accelerators, encoder and prefill servers first."""
    found: list[LocalServer] = []
    accelerator, transfer_port = 0, HANDSHAKE if pools[-1].family == "vllm" else BOOTSTRAP
    for s in pools:
        for i in range(s.replicas):
            role = s.resolved.role
            name = f"replica-{i}" if role == "both" else f"{role}-{i}"
            own = transfer_port if role in ("prefill", "decode") else None
            found.append(LocalServer(name, s, first_port + len(found), accelerator, own))
            accelerator += s.accelerators
            transfer_port += s.resolved.layout.data_parallel
    urls = tuple(f"http://127.0.0.1:{server.port}" for server in found if server.encodes)
    return [
        replace(server, encoder_urls=urls, embedding_port=EMBEDDINGS + MOST_RANKS * i)
        if urls and server.serving.resolved.role in ("both", "prefill")
        else server
        for i, server in enumerate(found)
    ]


def encoder_proxy_words(found: Sequence[LocalServer], port: int) -> list[str]:
    """Return the command of vLLM's example proxy, which sends each item to an encoder server before the prompt.

    vLLM 0.33, examples/disaggregated/disaggregated_encoder. With Mooncake it pairs encoder servers with servers that
    prefill and decode.
    """
    encoders = [f"http://127.0.0.1:{s.port}" for s in found if s.encodes]
    others = [s for s in found if not s.encodes]
    words = ["python3", ENCODER_PROXY, "--host", "0.0.0.0", "--port", str(port)]
    words += ["--encode-servers-urls", ",".join(encoders), "--prefill-servers-urls", "disable"]
    words += ["--decode-servers-urls", ",".join(f"http://127.0.0.1:{s.port}" for s in others)]
    return [*words, "--ec-consumer-zmq-addrs", ",".join(f"tcp://127.0.0.1:{s.embedding_port}" for s in others)]


@dataclass(frozen=True, slots=True)
class ServerAddress:
    """The address of a server for its router, and the port at which a prefill server of SGLang meets the others."""

    url: str
    prefills: bool
    bootstrap_port: int | None = None


def local_addresses(found: Sequence[LocalServer]) -> list[ServerAddress]:
    """Return the addresses of the servers of one machine."""
    return [ServerAddress(f"http://127.0.0.1:{s.port}", s.prefills, s.transfer_port) for s in found]


def router_package(family: str) -> str:
    """Return the Python package of the engine's router."""
    return "vllm-router==0.1.17" if family == "vllm" else "sglang-router==0.3.2"


def router_words(found: Sequence[ServerAddress], family: str, port: int) -> list[str]:
    """Return the command of the engine's router, which assigns prefill and decode servers in turn.

    vllm-router 0.1.17 lets the prefill server generate one token and then sends the location of its KV blocks to the
    decode server. sglang-router 0.3.2 sends a request to both, which connect at the prefill server's bootstrap port.
    """
    vllm = family == "vllm"
    program = ["vllm-router", "--vllm-pd-disaggregation"]
    if not vllm:
        program = ["python3", "-m", "sglang_router.launch_router", "--pd-disaggregation"]
    words = [*program, "--policy", "round_robin", "--host", "0.0.0.0", "--port", str(port)]
    words += ["--request-timeout-secs", str(_TIMEOUT_S)]
    for server in found:
        words += ["--prefill" if server.prefills else "--decode", server.url]
        words += [str(server.bootstrap_port)] if server.prefills and not vllm else []
    return words
