"""Where the router stands: the living replicas that may take a request next, and why a request is refused there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf

from simulator.pool import Pool
from simulator.replica import Replica, ReplicaContext
from simulator.request import Request
from simulator.results import TOO_LARGE, TOO_LONG, TOO_WIDE
from simulator.router import Router
from simulator.rules import EngineRules
from simulator.schedulers import POLICIES


@dataclass(frozen=True, slots=True)
class Room:
    """What one replica of a pool can hold, tokens."""

    longest: int  # input and output
    widest: float  # of one step, where all a request may have to compute at once must fit in one
    recomputes: bool  # and that may be its output too
    cached: int

    @classmethod
    def of(cls, rules: EngineRules) -> Room:
        widest = inf if rules.chunked_prefill else rules.max_num_batched_tokens
        recomputes = POLICIES[rules.policy].preempts
        return cls(rules.max_model_len, widest, recomputes, rules.kv_blocks * rules.block_size)

    def refusal(self, input_tokens: int, output_tokens: int) -> int:
        """Why a request cannot be served, as a code of results.STATUS; 0 where it can."""
        tokens = input_tokens + output_tokens
        if tokens > self.longest:
            return TOO_LONG
        if (tokens if self.recomputes else input_tokens) > self.widest:
            return TOO_WIDE
        return TOO_LARGE if tokens - 1 > self.cached else 0


@dataclass(frozen=True, slots=True)
class OpenPool:
    """A pool in a run."""

    pool: Pool
    context: ReplicaContext
    room: Room
    keys: Sequence[tuple[int, ...]]  # content keys by request; none where nothing is shared

    def refusal(self, request: Request) -> int:
        return self.room.refusal(request.input_tokens, self.context.output_tokens[request.index])


@dataclass(slots=True)
class Stage:
    """One choice of the router: among those that compute prompts, or those that decode what others prefilled."""

    router: Router
    pools: dict[int, OpenPool] = field(default_factory=dict)  # that had a replica, by number
    replicas: list[Replica] = field(default_factory=list)  # that take requests

    def refusal(self, request: Request) -> int:
        """Why none of its pools can serve the request; 0 where one can."""
        refusal = 0
        for pool in self.pools.values():
            refusal = pool.refusal(request)
            if not refusal:
                break
        return refusal

    def choose(self, request: Request) -> Replica | None:
        """The replica that gets it; None where none that could is alive. Sets the request's content keys."""
        able = self.replicas
        if len(self.pools) > 1:
            able = [r for r in able if not self.pools[r.pool].refusal(request)]
        if not able:
            return None
        self._name_contents(request, able[0])
        replica = able[self.router.choose(request, able)]
        if replica.pool != able[0].pool:
            self._name_contents(request, replica)
        return replica

    def _name_contents(self, request: Request, replica: Replica) -> None:
        """By the block size of that replica."""
        keys = self.pools[replica.pool].keys
        if keys:
            request.keys = keys[request.index]
