"""The prefill and decode servers of a plan, and the router that pairs them."""

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
_HANDSHAKE: Final = 5600

_BOOTSTRAP: Final = 8998


@dataclass(frozen=True, slots=True)
class DisaggregatedServing:
    """The prefill and the decode replicas of a plan; both have the name of the deployment."""

    prefill: Serving
    decode: Serving

    @property
    def halves(self) -> tuple[Serving, Serving]:
        """Return the prefill and the decode replicas."""
        return self.prefill, self.decode

    @property
    def words(self) -> str:
        """Return a summary, for example "2 prefill x TP2 + 1 decode x TP4"."""
        p, d = self.prefill, self.decode
        return f"{p.replicas} prefill x {p.resolved.layout.words} + {d.replicas} decode x {d.resolved.layout.words}"

    @property
    def refusal(self) -> str | None:
        """Return the reason why KV blocks cannot be transferred, or None if they can.

        vLLM 0.33, kv_connector/v1/nixl: the larger tensor parallelism must be a multiple of the other, and fewer decode
        ranks cannot read prefill ranks that hold copies of a KV head.
        """
        unit, model = self.decode.resolved.hardware.accelerator, self.decode.resolved.model
        if unit.is_slice or unit.kind == "cpu":
            return f"no known transfer of KV blocks between {unit.full_name} devices"
        wrote, reads = (s.resolved.layout.tensor_parallel for s in self.halves)
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

    `name` is the name of its log, `first` the index of its first accelerator, and `meets` its port for KV transfer.
    """

    name: str
    serving: Serving
    port: int
    first: int
    meets: int

    @property
    def arguments(self) -> Arguments:
        """Return the arguments with the ports of this server."""
        made = self.serving.listening(self.port)
        if self.serving.family == "vllm":
            return replace(made, environment=made.environment | {"VLLM_NIXL_SIDE_CHANNEL_PORT": str(self.meets)})
        bootstrap = ("--disaggregation-bootstrap-port", str(self.meets))
        return replace(made, flags=(*made.flags, bootstrap)) if self.prefills else made

    @property
    def prefills(self) -> bool:
        """Return True for a prefill server."""
        return self.serving.resolved.role == "prefill"


def servers(a: DisaggregatedServing, first_port: int) -> list[LocalServer]:
    """Return all servers for one machine with distinct ports and accelerators, prefill servers first."""
    found: list[LocalServer] = []
    accelerator, meets = 0, _HANDSHAKE if a.decode.family == "vllm" else _BOOTSTRAP
    for s in a.halves:
        for i in range(s.replicas):
            name = f"{s.resolved.role}-{i}"
            found.append(LocalServer(name, s, first_port + len(found), accelerator, meets))
            accelerator += s.accelerators
            meets += s.resolved.layout.data_parallel
    return found


def router_words(found: Sequence[LocalServer], port: int) -> list[str]:
    """Return the command of the engine's router, which assigns prefill and decode servers in turn.

    vllm-router 0.1.17 lets the prefill server generate one token and then sends the location of its KV blocks to the
    decode server. sglang-router 0.3.2 sends a request to both, which connect at the prefill server's bootstrap port.
    """
    vllm = found[0].serving.family == "vllm"
    program = ["vllm-router", "--vllm-pd-disaggregation"]
    if not vllm:
        program = ["python3", "-m", "sglang_router.launch_router", "--pd-disaggregation"]
    words = [*program, "--policy", "round_robin", "--host", "0.0.0.0", "--port", str(port)]
    words += ["--request-timeout-secs", str(_TIMEOUT_S)]
    for server in found:
        url = f"http://127.0.0.1:{server.port}"
        met = [] if vllm or not server.prefills else [str(server.meets)]
        words += ["--prefill" if server.prefills else "--decode", url, *met]
    return words
