"""vLLM V1 with LoRA adapters: a batch uses at most `max_loras` of them.

While the batch uses its maximum of adapters, a waiting request with another adapter is skipped (`scheduled_loras` in
vllm/v1/core/sched/scheduler.py) and keeps its place in the queue. An adapter that is not on the device is loaded before
the first step that needs it, and that step waits (`set_active_adapters` in the worker). Prefixes are shared only among
requests of the same adapter.
"""

from __future__ import annotations

from simulator.cache.lora_slots import AdapterSlots
from simulator.core.batch import Batch
from simulator.core.request import Request
from simulator.schedulers.rules import EngineRules
from simulator.schedulers.vllm.v1 import VllmV1


class LoraV1(VllmV1):
    """vLLM V1 with LoRA adapters."""

    pipelines = False
    takes_over = False

    def __init__(self, rules: EngineRules) -> None:
        super().__init__(rules)
        assert rules.lora is not None
        self._lora = rules.lora
        self.slots = self._slots = AdapterSlots(rules.lora)
        self._active: dict[int, int] = {}  # scheduled requests by adapter
        self._passed_over: list[Request] = []
        self._n_passed_over = 0  # requests skipped by the last schedule() call
        self._prompts = [0, 0]  # requests and tokens of this step's prompts with an adapter
        self._brought = (0, 0)  # adapters loaded in this step: to the device, and from disk

    def add(self, request: Request) -> None:
        """Add a request, whose prefix keys are made distinct for its adapter."""
        if request.keys:
            own, n = request.adapter + 1, self._lora.adapters + 1
            request.keys = tuple([key * n + own for key in request.keys])
        super().add(request)

    def schedule(self) -> Batch | None:
        """Return the batch of the next step, with the adapters that it uses, or None if nothing can run."""
        self._n_passed_over, self._prompts, self._brought = 0, [0, 0], (0, 0)
        batch = super().schedule()
        if batch is not None and self._active:
            moves = batch.moving()
            moves.adapters = len(self._active)
            moves.adapter_tokens = sum(self._active.values()) - self._prompts[0] + self._prompts[1]
            moves.brought_adapters = self._brought
        return batch

    def _admit(self, batch: Batch, budget: int) -> None:
        super()._admit(batch, budget)
        self._n_passed_over = len(self._passed_over)
        self._waiting.extendleft(reversed(self._passed_over))
        self._passed_over.clear()

    def _admit_head(self, batch: Batch, request: Request, budget: int) -> int:
        active = self._active
        while request.adapter >= 0 and request.adapter not in active and len(active) >= self._lora.max_loras:
            self._passed_over.append(self._waiting.popleft())
            if not self._waiting:
                return 0
            request = self._waiting[0]
        return super()._admit_head(batch, request, budget)

    def _seat(self, batch: Batch, request: Request, hits: tuple[int, int, int, int], tokens: int) -> None:
        if request.adapter >= 0:
            brought, read = self._slots.use(request.adapter, self._active.keys())
            self._brought = (self._brought[0] + brought, self._brought[1] + read)
            self._active[request.adapter] = self._active.get(request.adapter, 0) + 1
        super()._seat(batch, request, hits, tokens)

    def _prefill(self, batch: Batch, request: Request, tokens: int) -> None:
        if request.adapter >= 0:
            self._prompts[0] += 1
            self._prompts[1] += tokens
        super()._prefill(batch, request, tokens)

    def _drop(self, adapter: int) -> None:
        """Stop counting a request of an adapter."""
        if adapter < 0:
            return
        self._slots.touch(adapter)
        self._active[adapter] -= 1
        if not self._active[adapter]:
            del self._active[adapter]

    def retire(self, request: Request) -> None:
        """Stop scheduling a request whose last token has just been scheduled."""
        self._drop(request.adapter)
        super().retire(request)

    def _preempt(self) -> None:
        request = next(reversed(self._running))
        if not request.retired:
            self._drop(request.adapter)
        super()._preempt()

    @property
    def blocked(self) -> bool:
        """Return whether no waiting request can be admitted before something is released."""
        if self._waiting and self._n_passed_over == len(self._waiting):
            return True
        return super().blocked
