"""What must hold after every schedule and at the end of a run, whatever the policy. Raises LawBroken."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from simulator.batch import Batch
from simulator.host_cache import HostCache
from simulator.request import Request
from simulator.rules import EngineRules
from simulator.schedulers.base import Scheduler
from simulator.schedulers.lockstep import Lockstep

if TYPE_CHECKING:
    from simulator.flows import Flow, Stream
    from simulator.lane import Lane
    from simulator.replica import Replica

#: Entries of a cache's queue that are counted at every schedule; longer queues as much less often.
COUNTED_EACH_TIME: Final = 2000
#: Parts of a link or of a transfer that rounding may make of nothing.
ROUNDING: Final = 1e-9


class LawBroken(AssertionError):
    """An invariant of the simulator does not hold: a bug in a policy, not bad input."""


def _law(holds: bool, text: str) -> None:
    if not holds:
        raise LawBroken(text)


def check_lane(replica: Replica, lane: Lane, batch: Batch) -> None:
    """After `batch` has been scheduled on a lane of `replica`."""
    scheduler, rules = lane.scheduler, replica.rules
    if isinstance(scheduler, Lockstep):
        check_ranks(scheduler, batch)
    else:
        check_blocks([each.scheduler for each in replica.lanes])
        check_batch(scheduler, rules, batch)
    seats = max(1, rules.max_num_seqs // len(replica.lanes))
    running, waiting, held = scheduler.running_requests(), scheduler.waiting_requests(), replica.held_requests()
    _law(len(running) <= seats, f"{len(running)} running, more than max_num_seqs")
    _law(len({id(r) for r in held}) == len(held), "a request is in two places")
    _law(replica.outstanding == len(held), "a request was lost: sent != running + waiting")
    for request in waiting:
        _law(not request.units and request.shared_blocks == 0, f"waiting request {request.index} holds cached blocks")
        _law(scheduler.computed_tokens(request) == 0, f"waiting request {request.index} counts computed tokens")


def check_ranks(group: Lockstep, batch: Batch) -> None:
    """Every rank keeps the laws with its own limits, and what runs is what they hold, nobody on two ranks."""
    shares = [part for part in batch.ranks if part is not None]
    own = group.rules.of_rank()
    _law(len(batch.ranks) == len(group.ranks), f"{len(batch.ranks)} shares of {len(group.ranks)} ranks")
    _law(bool(shares), "a step of dummy batches alone")
    for name in ("prefill_tokens", "prefill_chunks", "decodes", "decode_context_sum", "logits"):
        whole, parts = getattr(batch, name), sum(getattr(part, name) for part in shares)
        _law(whole == parts, f"{name}: the group steps with {whole}, its ranks with {parts}")
    for rank, part in zip(group.ranks, batch.ranks, strict=True):
        check_blocks([rank])
        seated, blocks = rank.running_requests(), rank.kv.total
        _law(blocks == own.kv_blocks, f"a rank has {blocks} blocks, its share is {own.kv_blocks}")
        _law(len(seated) <= own.max_num_seqs, f"{len(seated)} running on a rank, more than max_num_seqs")
        _law(all(group.rank_of(r) is rank for r in seated), "a request runs on a rank it was not given to")
        ending = tuple(r for r in batch.finishing if group.rank_of(r) is rank)
        if isinstance(part, Batch):
            check_batch(rank, own, replace(part, finishing=ending))
        else:
            _law(not ending, "a request ends on a rank that runs a dummy batch")
            live = any(_decodes(r, rank) for r in seated)
            _law(not (live and rank.mixes_phases), "a rank that can decode runs a dummy batch")


def check_batch(scheduler: Scheduler, rules: EngineRules, batch: Batch) -> None:
    """Tokens within the budget; nobody twice; every request that can decode does, and nobody else (nobody at all
    beside prefill, where the policy does not mix them)."""
    budget = rules.max_num_batched_tokens
    _law(1 <= batch.tokens <= budget, f"{batch.tokens} tokens in a batch of 1..{budget}")
    most = rules.lora.max_loras if rules.lora else 0
    adapters = batch.moves.adapters if batch.moves else 0
    _law(adapters <= most, f"{adapters} adapters in a batch of at most {most}")
    _law(1 <= batch.passes <= batch.tokens, f"{batch.passes} passes over {batch.tokens} tokens")
    _law(len({id(r) for r in batch.prompted}) == len(batch.prompted), "a request is twice in a batch")
    _law(len({id(r) for r in batch.finishing}) == len(batch.finishing), "a request ends twice")
    _law(batch.logits == batch.decodes + len(batch.prompted), "logits are not decodes + finished prompts")
    prompted = set(batch.prompted)
    decoding = scheduler.mixes_phases or not batch.prefill_tokens
    could = [r for r in scheduler.running_requests() if decoding and _decodes(r, scheduler) and r not in prompted]
    could += [r for r in batch.finishing if r not in prompted and r not in could]
    if scheduler.pads:
        _law(
            bool(batch.finishing) or not all(r.retired for r in could + list(prompted)),
            "decodes scheduled: padding only",
        )
    _law(batch.decodes == len(could), f"{batch.decodes} decodes scheduled, {len(could)} requests can decode")
    _law(0 <= batch.accepted <= batch.decodes * (batch.queries - 1), f"{batch.accepted} drafts accepted: {batch}")
    contexts = [scheduler.context_before(r) for r in could]
    _law(batch.decode_context_sum == sum(contexts), f"context sum {batch.decode_context_sum} != {sum(contexts)}")
    _law(batch.decode_context_max == max(contexts, default=0), "context max is wrong")


def _decodes(request: Request, scheduler: Scheduler) -> bool:
    return request.computed_tokens < 0 and (scheduler.pads or not request.retired)


def check_blocks(schedulers: Sequence[Scheduler]) -> None:
    """free + held + cached = total, held counted request by request, over all that share a cache."""
    kv = schedulers[0].kv
    units = {}
    held = 0
    for scheduler in schedulers:
        for request in (*scheduler.running_requests(), *scheduler.holding_requests()):
            held += max(0, scheduler.held_blocks(request) - request.shared_blocks)
            for unit in request.units:
                units[id(unit)] = unit.count
    held += sum(units.values())
    _law(held == kv.held, f"requests hold {held} blocks, the cache counts {kv.held}")
    between = kv.queue_length // COUNTED_EACH_TIME
    if between > 1 and kv.available % between:
        return  # a long queue is counted now and then: a leak stays one
    free, cached = kv.count_queue()
    _law(free + cached == kv.available, f"{free} free + {cached} cached != {kv.available} available")
    _law(cached == kv.cached, f"{cached} cached blocks in the queue, the cache counts {kv.cached}")
    _law(free + held + cached == kv.total, f"{free} free + {held} held + {cached} cached != {kv.total}")
    swap = schedulers[0].swap_space
    if swap is not None:
        out = [r for r in schedulers[0].holding_requests() if not schedulers[0].held_blocks(r)]
        swapped = sum(-(-r.computed_tokens // kv.block_size) for r in out)
        _law(swapped == swap.used <= swap.total, f"{swapped} blocks swapped out, {swap.used} of {swap.total} counted")
    if schedulers[0].host is not None:
        check_host(schedulers[0].host)


def check_host(host: HostCache) -> None:
    """free + stored = total in every tier, and nothing is stored twice."""
    for name, tier in (("host", host.host), ("disk", host.disk)):
        stored = sum(entry.count for entry in tier.entries)
        _law(0 <= tier.free <= tier.total, f"{tier.free} free blocks in the {name} tier of {tier.total}")
        _law(tier.free + stored == tier.total, f"{name} tier: {tier.free} free + {stored} stored != {tier.total}")
        keys = [entry.key for entry in tier.entries if entry.key is not None]
        _law(len(set(keys)) == len(keys), f"a block is twice in the {name} tier")


def check_drained(replica: Replica) -> None:
    """When nothing runs, nothing is held."""
    kv, scheduler = replica.scheduler.kv, replica.scheduler
    _law(not replica.held_requests(), "requests are left in a drained engine")
    _law(kv.held == 0, f"{kv.held} blocks are held when nothing runs")
    host = replica.scheduler.host
    _law(host is None or not any(e.readers for e in host.host.entries), "blocks are read when nothing runs")
    for rank in scheduler.ranks if isinstance(scheduler, Lockstep) else ():
        check_blocks([rank])
    if not isinstance(scheduler, Lockstep):
        check_blocks([lane.scheduler for lane in replica.lanes])


def check_shares(streams: Collection[Stream], slower: Mapping[Hashable, float]) -> None:
    """No link carries more than it can, and everybody goes as fast as a full link lets him: one on which nobody else
    is faster. These streams share their links with nobody else."""
    users: dict[Hashable, list[Stream]] = {}
    for stream in streams:
        for link in stream.costs:
            users.setdefault(link, []).append(stream)
    held: set[Stream] = set()
    for link, together in users.items():
        flows = [(stream.rate, flow) for stream in together for _, _, flow in stream.members]
        used = sum(rate * flow.loads[link] / flow.size for rate, flow in flows) * slower.get(link, 1.0)
        _law(used <= 1.0 + ROUNDING, f"link {link} carries {used} of what it can")
        if used >= 1.0 - ROUNDING:
            most = max(stream.rate for stream in together) * (1.0 - ROUNDING)
            held.update(stream for stream in together if stream.rate >= most)
    _law(len(held) == len(streams), "a transfer is slower than its links let it be")


def check_sent(flow: Flow, left: float, end_s: float) -> None:
    """All of it was sent, once: so much seems to be left at its end."""
    wide = ROUNDING + 1e-12 * (1.0 + end_s) / max(flow.loads.values())
    _law(abs(left) <= wide * flow.size, f"{left} of {flow.size} bytes are left when a transfer ends")
