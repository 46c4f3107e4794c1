"""Invariants of a replica that hold after every schedule and at the end of a run, under every policy.

All checks raise InvariantViolation.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from simulator.cache.offload import HostCache
from simulator.core.batch import Batch
from simulator.core.invariants import require
from simulator.core.request import Request
from simulator.schedulers.base import Scheduler
from simulator.schedulers.data_parallel import Lockstep
from simulator.schedulers.rules import EngineRules

if TYPE_CHECKING:
    from simulator.engine.context import ReplicaHandle


#: Maximum length of a cache's queue that is counted at every schedule; longer queues are counted less often.
COUNTED_EACH_TIME: Final = 2000


def check_schedule(replica: ReplicaHandle, scheduler: Scheduler, batch: Batch) -> None:
    """Check the invariants that hold after a scheduler of `replica` has scheduled `batch`."""
    rules = replica.rules
    if isinstance(scheduler, Lockstep):
        check_ranks(scheduler, batch)
    else:
        check_blocks(replica.schedulers)
        check_batch(scheduler, rules, batch, batch.finishing)
    seats = max(1, rules.max_num_seqs // len(replica.schedulers))
    running, waiting, held = scheduler.running_requests(), scheduler.waiting_requests(), replica.held_requests()
    require(len(running) <= seats, f"{len(running)} running, more than max_num_seqs")
    require(len({id(r) for r in held}) == len(held), "a request is in two places")
    require(replica.outstanding == len(held), "a request was lost: outstanding != running + waiting")
    for request in waiting:
        name = f"waiting request {request.index}"
        require(not request.units and request.shared_blocks == 0, f"{name} holds cached blocks")
        require(scheduler.computed_tokens(request) == 0, f"{name} counts computed tokens")


def check_ranks(group: Lockstep, batch: Batch) -> None:
    """Check that every rank satisfies the invariants within its own limits and that no request is on two ranks."""
    shares = [part for part in batch.ranks if part is not None]
    own = group.rules.of_rank()
    require(len(batch.ranks) == len(group.ranks), f"{len(batch.ranks)} shares for {len(group.ranks)} ranks")
    require(bool(shares), "a step contains only dummy batches")
    for name in ("prefill_tokens", "prefill_chunks", "decodes", "decode_context_sum", "logits"):
        whole, parts = getattr(batch, name), sum(getattr(part, name) for part in shares)
        require(whole == parts, f"{name}: the step of the group has {whole}, its ranks together have {parts}")
    for rank, part in zip(group.ranks, batch.ranks, strict=True):
        check_blocks([rank])
        seated, blocks = rank.running_requests(), rank.kv.total
        require(blocks == own.kv_blocks, f"a rank has {blocks} blocks, its share is {own.kv_blocks}")
        require(len(seated) <= own.max_num_seqs, f"{len(seated)} running on a rank, more than max_num_seqs")
        require(all(group.rank_of(r) is rank for r in seated), "a request runs on a rank it is not assigned to")
        ending = tuple(r for r in batch.finishing if group.rank_of(r) is rank)
        if isinstance(part, Batch):
            check_batch(rank, own, part, ending)
        else:
            require(not ending, "a request ends on a rank that runs a dummy batch")
            live = any(_decodes(r, rank) for r in seated)
            require(not (live and rank.mixes_phases), "a rank that can decode runs a dummy batch")


def check_batch(scheduler: Scheduler, rules: EngineRules, batch: Batch, finishing: tuple[Request, ...]) -> None:
    """Check the contents of a batch in which the requests of `finishing` end.

    Its tokens are within the budget, no request is in it twice, and exactly the requests that can decode do so. If the
    policy does not mix phases, no request decodes in a batch with prefill tokens.
    """
    budget = rules.max_num_batched_tokens
    require(1 <= batch.tokens <= budget, f"{batch.tokens} tokens in a batch, outside 1..{budget}")
    most = rules.lora.max_loras if rules.lora else 0
    adapters = batch.moves.adapters if batch.moves else 0
    require(adapters <= most, f"{adapters} adapters in a batch of at most {most}")
    encoding = batch.moves.encoding if batch.moves else None
    if encoding is not None:
        cache = scheduler.encoders
        require(cache is not None, "items are encoded without an encoder cache")
        require(batch.prefill_tokens > 0, "items are encoded in a step without prompt tokens")
        if cache is not None:
            cache.check()
    require(1 <= batch.passes <= batch.tokens, f"{batch.passes} passes over {batch.tokens} tokens")
    require(len({id(r) for r in batch.prompted}) == len(batch.prompted), "a request is twice in a batch")
    require(len({id(r) for r in finishing}) == len(finishing), "a request ends twice")
    due = 0 if rules.encodes_only else batch.decodes + len(batch.prompted)
    require(batch.logits == due, "logits are not decodes + finished prompts")
    prompted = set(batch.prompted)
    decoding = scheduler.mixes_phases or not batch.prefill_tokens
    could = [r for r in scheduler.running_requests() if decoding and _decodes(r, scheduler) and r not in prompted]
    could += [r for r in finishing if r not in prompted and r not in could]
    live = bool(finishing) or not all(r.retired for r in could + list(prompted))
    require(live or not scheduler.pads, "decodes scheduled: padding only")
    require(batch.decodes == len(could), f"{batch.decodes} decodes scheduled, {len(could)} requests can decode")
    require(0 <= batch.undrafted <= batch.decodes, f"{batch.undrafted} decodes without drafts: {batch}")
    drafts = (batch.decodes - batch.undrafted) * (batch.queries - 1)
    require(0 <= batch.accepted <= drafts, f"{batch.accepted} accepted drafts: {batch}")
    contexts = [scheduler.context_before(r) for r in could]
    require(batch.decode_context_sum == sum(contexts), f"context sum {batch.decode_context_sum} != {sum(contexts)}")
    require(batch.decode_context_max == max(contexts, default=0), "context max is wrong")


def _decodes(request: Request, scheduler: Scheduler) -> bool:
    return request.computed_tokens < 0 and (scheduler.pads or not request.retired)


def check_blocks(schedulers: Sequence[Scheduler]) -> None:
    """Check that free + held + cached = total blocks of a cache.

    The held blocks are counted request by request, over all schedulers that share the cache.
    """
    kv = schedulers[0].kv
    units = {}
    held = 0
    for scheduler in schedulers:
        for request in (*scheduler.running_requests(), *scheduler.holding_requests()):
            held += max(0, scheduler.held_blocks(request) - request.shared_blocks)
            for unit in request.units:
                units[id(unit)] = unit.count
    held += sum(units.values())
    require(held == kv.held, f"requests hold {held} blocks, the cache counts {kv.held}")
    between = kv.queue_length // COUNTED_EACH_TIME
    if between > 1 and kv.available % between:
        return  # a long queue is counted occasionally, because a leak persists
    free, cached = kv.count_queue()
    require(free + cached == kv.available, f"{free} free + {cached} cached != {kv.available} available")
    require(cached == kv.cached, f"{cached} cached blocks in the queue, the cache counts {kv.cached}")
    require(free + held + cached == kv.total, f"{free} free + {held} held + {cached} cached != {kv.total}")
    swap = schedulers[0].swap_space
    if swap is not None:
        out = [r for r in schedulers[0].holding_requests() if not schedulers[0].held_blocks(r)]
        swapped, used = sum(-(-r.computed_tokens // kv.block_size) for r in out), swap.used
        require(swapped == used <= swap.total, f"{swapped} blocks swapped out, {used} of {swap.total} counted")
    if schedulers[0].host is not None:
        check_host(schedulers[0].host)


def check_host(host: HostCache) -> None:
    """Check that free + stored = total blocks in every tier, and that no block is stored twice."""
    for name, tier in (("host", host.host), ("disk", host.disk)):
        stored = sum(entry.count for entry in tier.entries)
        require(0 <= tier.free <= tier.total, f"{tier.free} free blocks in the {name} tier of {tier.total}")
        require(tier.free + stored == tier.total, f"{name} tier: {tier.free} free + {stored} stored != {tier.total}")
        keys = [entry.key for entry in tier.entries if entry.key is not None]
        require(len(set(keys)) == len(keys), f"a block is twice in the {name} tier")


def check_drained(replica: ReplicaHandle) -> None:
    """Check that a replica without running requests holds no requests and no blocks."""
    kv, scheduler = replica.scheduler.kv, replica.scheduler
    require(not replica.held_requests(), "requests are left in a drained engine")
    require(kv.held == 0, f"{kv.held} blocks are held when nothing runs")
    host = scheduler.host
    require(host is None or not any(e.readers for e in host.host.entries), "blocks are read when nothing runs")
    for sharing in [[rank] for rank in scheduler.ranks] if isinstance(scheduler, Lockstep) else [replica.schedulers]:
        check_blocks(sharing)
