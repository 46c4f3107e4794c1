"""A question put to the planner: on this machine, or with the hands of a cluster, with progress on stderr."""

from __future__ import annotations

import sys
from contextlib import ExitStack

from planner.answer import Answer
from planner.plan import make_plan
from planner.progress import said_meanwhile, search_progress
from planner.request import PlanRequest
from planner.second_core import shared, with_second_core
from planner.storage import need_storage, without_password
from planner.worlds import open_world


def ask(request: PlanRequest, distributed: str | None = None) -> Answer:
    """distributed: a Ray cluster's address. Raises InputError for bad names, and for storages and clusters that do not
    answer; KeyboardInterrupt where nothing was found yet."""
    if request.storage is not None:
        need_storage(request.storage)
    world = open_world(request)
    if distributed is None:
        with search_progress() as progress:
            return make_plan(request, world, world.elsewhere, progress, with_second_core, shared)
    from planner.ray_cluster import join_cluster

    with ExitStack() as stack:
        with said_meanwhile(f"joining {distributed}"):
            cluster = stack.enter_context(join_cluster(distributed))
        with search_progress(lambda: cluster.words) as progress:
            answer = make_plan(request, world, world.elsewhere, progress, cluster.crew)
    if cluster.said:
        print(cluster.said, file=sys.stderr)
    return answer


def kept_words(request: PlanRequest) -> str:
    """Where an interrupted search is kept."""
    where = request.study or (request.storage and without_password(request.storage))
    return f"; the search so far is kept in {where}" if where else "; --study FILE would keep it"
