"""The `queue` block of deployment.yaml: the order, the number and the timeout of waiting requests.

The request attributes that the orders need (priority, deadline, timeout) are part of the workload.
"""

from __future__ import annotations

from typing import Final, Literal

from pydantic import NonNegativeFloat, PositiveFloat, PositiveInt

from catalogs.engines.profile import EngineProfile, Order
from catalogs.errors import InputError
from catalogs.io.yaml_files import YamlBlock, check_keys


class Queueing(YamlBlock):
    """The queue of one replica.

    `order` decides which request is served next: the first to arrive (`fcfs`), the lowest `priority` number, the
    earliest `deadline`, or the longest cached `prefix`. `max_delay_s` and `preferred_batch_sizes` belong to Triton's
    dynamic batcher, which waits for a batch to fill up.
    """

    order: Order = "fcfs"
    max_waiting: PositiveInt | None = None  # per replica; further requests are rejected; null: no limit
    timeout_s: PositiveFloat | None = None  # until clients cancel; null: never
    too_long: Literal["reject", "truncate"] = "reject"  # for requests longer than max_model_len
    max_delay_s: NonNegativeFloat = 0.0
    preferred_batch_sizes: tuple[PositiveInt, ...] = ()


FCFS: Final = Queueing()


def parse_queueing(data: object, engine: EngineProfile, max_num_seqs: int) -> Queueing:
    """Return the checked `queue` block for an engine; null means first come, first served, without limits.

    Raises:
        InputError: A key is unknown, a value is out of range, or the engine does not support the option.
    """
    if data is None:
        return FCFS
    found = check_keys(Queueing, data, "queue")
    if found.order not in engine.orders:
        orders = ", ".join(engine.orders)
        raise InputError(f"{engine.name} does not support this order of its queue", f"order: {found.order}", orders)
    if engine.batches_wait:
        beyond = [size for size in found.preferred_batch_sizes if size > max_num_seqs]
        if beyond:
            raise InputError("preferred_batch_sizes must be at most max_num_seqs", beyond[0], str(max_num_seqs))
    elif found.max_delay_s or found.preferred_batch_sizes:
        key = "max_delay_s" if found.max_delay_s else "preferred_batch_sizes"
        raise InputError(f"{engine.name} does not wait for batches to fill up", f"queue.{key}", "engine: triton")
    return found
