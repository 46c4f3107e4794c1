"""How requests wait for an engine, as deployment.yaml says it under `queue`: in which order, how many and how long.

Request attributes that this needs (priority, deadline, patience) come with the workload.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, PositiveInt

from catalogs.engines.profile import EngineProfile
from catalogs.errors import InputError
from catalogs.io.yaml_files import check_keys

Order = Literal["fcfs", "priority", "deadline", "prefix"]

ORDERS: Final[tuple[Order, ...]] = ("fcfs", "priority", "deadline", "prefix")


class Queueing(BaseModel):
    """order: who is served next (fcfs; lowest `priority` number; earliest `deadline`; longest cached `prefix`).
    max_delay_s and preferred_batch_sizes: of Triton's dynamic batcher, which waits for a batch to fill up."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    order: Order = "fcfs"
    max_waiting: PositiveInt | None = None  # waiting in one replica; who comes beyond is rejected; null: any number
    timeout_s: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None  # clients give up; null: they wait
    too_long: Literal["reject", "truncate"] = "reject"  # what happens to a request beyond max_model_len
    max_delay_s: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    preferred_batch_sizes: tuple[PositiveInt, ...] = ()


FCFS: Final = Queueing()


def parse_queueing(data: object, engine: EngineProfile, max_num_seqs: int) -> Queueing:
    """`{order: priority, …}` for that engine; null: first come, first served, without limits.

    Raises InputError for an unknown key, a value out of range, and what the engine cannot do.
    """
    if data is None:
        return FCFS
    found = check_keys(Queueing, data, "queue")
    if found.order not in engine.orders:
        orders = ", ".join(engine.orders)
        raise InputError(f"{engine.name} does not order its queue so", f"order: {found.order}", orders)
    if engine.batches_wait:
        beyond = [size for size in found.preferred_batch_sizes if size > max_num_seqs]
        if beyond:
            raise InputError("preferred_batch_sizes are at most max_num_seqs", beyond[0], str(max_num_seqs))
    elif found.max_delay_s or found.preferred_batch_sizes:
        key = "max_delay_s" if found.max_delay_s else "preferred_batch_sizes"
        raise InputError(f"{engine.name} does not wait for batches to fill up", f"queue.{key}", "engine: triton")
    return found
