"""The servers of a plan on one machine, and prefill and decode servers: which can be paired, and by which router."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from catalogs.launch.arguments import Arguments
from planner.deploy.serving import Serving

#: Request timeout of the router in seconds, longer than any request takes.
_TIMEOUT_S: Final = 3600

#: Ports on which servers exchange the addresses of KV blocks: the default of vLLM's NixlConnector, plus one for each
#: data-parallel rank, and the default of SGLang's `--disaggregation-bootstrap-port`.
HANDSHAKE: Final = 5600

BOOTSTRAP: Final = 8998


def pools_words(pools: Sequence[Serving]) -> str:
    """Return a summary of the replicas of a plan: "2 replicas x TP1", or "2 prefill x TP2 + 1 decode x TP4"."""
    if len(pools) > 1:
        return " + ".join(f"{s.replicas} {s.resolved.role} x {s.resolved.layout.words}" for s in pools)
    (s,) = pools
    return f"{s.replicas} replica{'' if s.replicas == 1 else 's'} x {s.resolved.layout.words}"


def transfer_refusal(prefill: Serving, decode: Serving) -> str | None:
    """Return the reason why KV blocks cannot be transferred between the servers of two pools, or None if they can.

    vLLM 0.33, kv_connector/v1/nixl: the larger tensor parallelism must be a multiple of the other, and fewer decode
    ranks cannot read prefill ranks that hold copies of a KV head.
    """
    unit, model = decode.resolved.hardware.accelerator, decode.resolved.model
    if unit.is_slice or unit.kind == "cpu":
        return f"no known transfer of KV blocks between {unit.full_name} devices"
    wrote, reads = (s.resolved.layout.tensor_parallel for s in (prefill, decode))
    if max(wrote, reads) % min(wrote, reads):
        return f"NIXL transfers blocks only if one TP is a multiple of the other, not from TP{wrote} to TP{reads}"
    split = (g.mixer.kv_heads_to_split for g in model.groups if g.mixer is not None)
    heads = min((n for n in split if n is not None), default=wrote)
    if reads < wrote and wrote > heads:
        return f"NIXL cannot read copies of {heads} KV heads with fewer ranks (from TP{wrote} to TP{reads})"
    return None


@dataclass(frozen=True, slots=True)
class LocalServer:
    """One server on a machine.

    `name` is the name of its log, `first` the index of its first accelerator, and `transfer_port` its port for KV
    transfer, None if it transfers no KV blocks.
    """

    name: str
    serving: Serving
    port: int
    first: int
    transfer_port: int | None

    @property
    def arguments(self) -> Arguments:
        """Return the arguments with the ports of this server."""
        made = self.serving.listening(self.port)
        if self.transfer_port is None:
            return made
        if self.serving.family == "vllm":
            own = {"VLLM_NIXL_SIDE_CHANNEL_PORT": str(self.transfer_port)}
            return replace(made, environment=made.environment | own)
        bootstrap = ("--disaggregation-bootstrap-port", str(self.transfer_port))
        return replace(made, flags=(*made.flags, bootstrap)) if self.prefills else made

    @property
    def prefills(self) -> bool:
        """Return True for a prefill server."""
        return self.serving.resolved.role == "prefill"


def local_servers(pools: Sequence[Serving], first_port: int) -> list[LocalServer]:
    """Return all servers for one machine with distinct ports and accelerators, prefill servers first."""
    found: list[LocalServer] = []
    accelerator, transfer_port = 0, HANDSHAKE if pools[-1].family == "vllm" else BOOTSTRAP
    for s in pools:
        for i in range(s.replicas):
            name = f"{s.resolved.role}-{i}" if len(pools) > 1 else f"replica-{i}"
            own = transfer_port if len(pools) > 1 else None
            found.append(LocalServer(name, s, first_port + len(found), accelerator, own))
            accelerator += s.accelerators
            transfer_port += s.resolved.layout.data_parallel
    return found


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
