"""Prefill and decode servers of one plan, and what pairs them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from catalogs.launch.arguments import Arguments
from planner.deploy.serving import Serving

#: Longer than any answer takes.
_TIMEOUT_S: Final = 3600

#: Where servers tell each other which blocks are theirs: the defaults of vLLM's NixlConnector, one more for each
#: data-parallel rank, and of SGLang's `--disaggregation-bootstrap-port`.
_HANDSHAKE: Final = 5600

_BOOTSTRAP: Final = 8998


@dataclass(frozen=True, slots=True)
class DisaggregatedServing:
    """prefill.name and decode.name are equal: the deployment's."""

    prefill: Serving
    decode: Serving

    @property
    def halves(self) -> tuple[Serving, Serving]:
        return self.prefill, self.decode

    @property
    def words(self) -> str:
        p, d = self.prefill, self.decode
        return f"{p.replicas} prefill x {p.resolved.layout.words} + {d.replicas} decode x {d.resolved.layout.words}"

    @property
    def refusal(self) -> str | None:
        """Why no KV block gets from one to the other; None where they do. vLLM 0.33, kv_connector/v1/nixl: the larger
        tensor parallelism is a multiple of the other; prefill ranks that hold copies of a KV head are not read by fewer
        ranks."""
        unit, model = self.decode.resolved.hardware.accelerator, self.decode.resolved.model
        if unit.is_slice or unit.kind == "cpu":
            return f"no way is known for KV blocks from one {unit.full_name} to another"
        wrote, reads = (s.resolved.layout.tensor_parallel for s in self.halves)
        if max(wrote, reads) % min(wrote, reads):
            return f"NIXL hands blocks over where one TP is a multiple of the other, not from TP{wrote} to TP{reads}"
        split = (g.mixer.kv_heads_to_split for g in model.groups if g.mixer is not None)
        heads = min((n for n in split if n is not None), default=wrote)
        if reads < wrote and wrote > heads:
            return f"NIXL reads no copies of {heads} KV heads by fewer ranks (from TP{wrote} to TP{reads})"
        return None


@dataclass(frozen=True, slots=True)
class LocalServer:
    """One server on this machine. name: of its log. first: its first accelerator. meets: its port for the others."""

    name: str
    serving: Serving
    port: int
    first: int
    meets: int

    @property
    def arguments(self) -> Arguments:
        """With addresses of its own."""
        made = self.serving.listening(self.port)
        if self.serving.family == "vllm":
            return replace(made, environment=made.environment | {"VLLM_NIXL_SIDE_CHANNEL_PORT": str(self.meets)})
        bootstrap = ("--disaggregation-bootstrap-port", str(self.meets))
        return replace(made, flags=(*made.flags, bootstrap)) if self.prefills else made

    @property
    def prefills(self) -> bool:
        return self.serving.resolved.role == "prefill"


def servers(a: DisaggregatedServing, first_port: int) -> list[LocalServer]:
    """All of them side by side on one machine, prefill servers first."""
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
    """The command of the engine's own router: each request to the next prefill and the next decode server.

    vllm-router 0.1.17 has the prefill server answer one token, then gives the decode server where its blocks are;
    sglang-router 0.3.2 sends a request to both, which meet at the prefill server's bootstrap port.
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
