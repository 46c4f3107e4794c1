"""The requests of agents at work: sessions in a closed loop, with the contexts that agents have when a run begins."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np

from catalogs.arrays import BoolArray, FloatArray
from catalogs.errors import InputError
from catalogs.workloads.arrivals import ClosedLoopArrivals
from catalogs.workloads.request_set import RequestSet
from catalogs.workloads.sessions.texts import TextTree
from catalogs.workloads.synthetic import SyntheticWorkload
from catalogs.workloads.workload import Workload
from planner.evaluation.steady_state import finish_s
from simulator.cluster.run import Run


def takes_agents(workload: Workload) -> bool:
    """Return whether a workload consists of sessions whose turns wait for the ends of others."""
    content = workload.content
    if isinstance(content, SyntheticWorkload):
        return content.turns is not None and content.turns.gap_s is not None
    trace = getattr(content, "trace", None)
    return trace is not None and trace.recorded is not None


def sessions_of(workload: Workload) -> SyntheticWorkload | Any:
    """Return the content of a workload whose turns wait for each other.

    Raises:
        InputError: Its turns do not wait for the ends of others.
    """
    if not takes_agents(workload):
        rule = "agents need a workload of sessions whose turns wait for answers (turns.gap_s, or recorded sessions)"
        raise InputError(rule, workload.name, "agentic-coding")
    return workload.content


def requests_of(workload: Workload, agents: int, n: int, seed: int) -> RequestSet:
    """Return n requests of a number of agents at work, each in the middle of a session when the run begins."""
    content = sessions_of(workload)
    if isinstance(content, SyntheticWorkload):
        closed = ClosedLoopArrivals.model_validate({"concurrency": agents})
        content = replace(content, arrivals=closed, steady_sessions=True)
    else:
        content = replace(content, concurrency=agents, steady_sessions=True)
    return replace(content.draw(seed, n, 1.0), name=workload.name, source=workload.source)


def measured(run: Run, agents: int, n_first: int = 0) -> BoolArray:
    """Return which requests of a run are measured: those sent while every agent had a next request. Shape (requests,).

    The caches are empty when a run begins. The requests of a `WarmLoad`, `n_first` of them, fill them and are not
    measured. Without these, the first request of each agent is not measured, nor are those that were sent before all of
    these had their first tokens.
    """
    n = run.requests.n
    end_s = float(np.sort(finish_s(run))[max(0, n - agents - 1)])
    sessions = run.requests.sessions
    assert sessions is not None
    if n_first:
        found = run.arrived & (run.arrival_s <= end_s)
        found[:n_first] = False
        return np.asarray(found)
    _, first = np.unique(sessions, return_index=True)
    begun = np.sort(first)[:agents]
    warm_s = float(np.max(run.first_token_s[begun], initial=0.0, where=run.completed[begun]))
    found = (run.arrival_s >= warm_s) & (run.arrival_s <= end_s)
    if found.sum() < n // 4:  # the first requests take most of the run: the agents are too many
        found = run.arrived.copy()
        found[begun] = False
    return np.asarray(found & run.arrived)


def new_tokens(requests: RequestSet) -> FloatArray:
    """Return the tokens of each prompt that no earlier text of its session contains. Shape (n,)."""
    texts, inputs = requests.block_hashes, requests.input_tokens
    if not isinstance(texts, TextTree):
        return inputs.astype(np.float64)
    kept = np.where(texts.parent[texts.text] >= 0, texts.kept_tokens[texts.text], 0)
    return np.maximum(inputs - kept, 1).astype(np.float64)


@dataclass(frozen=True, slots=True)
class WarmLoad:
    """The requests of agents with others before them, which fill the caches with the contexts that agents have.

    An agent in the middle of a session has sent its context before. Without the requests of that time, most of a run
    would be spent on computing the contexts of all agents at once, which happens at no other time. The agents continue
    when all contexts have been computed, each at its own time in its session.

    Attributes:
        requests: The requests that compute contexts, one that waits for all of these, then those of the agents.
        n_first: How many come before those of the agents.
    """

    requests: RequestSet
    n_first: int

    @classmethod
    def of(cls, work: RequestSet, agents: int) -> Self:
        """Return the requests of agents at work with those that fill the caches."""
        texts, graph, sessions = work.block_hashes, work.graph, work.sessions
        if not isinstance(texts, TextTree) or graph is None or sessions is None:
            return cls(work, 0)
        _, first = np.unique(sessions, return_index=True)
        begun = sessions[np.sort(first)[:agents]]
        roots = np.flatnonzero((np.array(graph.awaited()) == 0) & np.isin(sessions, begun))
        n = len(roots)
        rows = np.concatenate([roots, roots[:1], np.arange(work.n)])
        found = work.taken(rows)
        tree = found.block_hashes
        assert isinstance(tree, TextTree)
        assert found.graph is not None
        parent = tree.parent[tree.text[:n]]
        known = np.where(parent >= 0, tree.kept_tokens[tree.text[:n]], 0)
        text, known_tokens = tree.text.copy(), tree.known_tokens.copy()
        text[:n] = np.where(parent >= 0, parent, text[:n])
        known_tokens[: n + 1] = np.append(known, 0)
        inputs, outputs = found.input_tokens.copy(), found.output_tokens.copy()
        inputs[: n + 1], outputs[: n + 1] = np.maximum(np.append(known, 0), 1), 1
        gap_s = found.graph.gap_s.copy()
        gap_s[: n + 1] = 0.0
        last = np.full(n, n)
        waits = np.concatenate(
            [np.column_stack([last, np.arange(n)]), np.column_stack([roots + n + 1, last]), found.graph.waits]
        )
        waits = waits[np.argsort(waits[:, 0], kind="stable")]
        return cls(
            replace(
                found,
                input_tokens=inputs,
                output_tokens=outputs,
                block_hashes=replace(tree, text=text, known_tokens=known_tokens),
                graph=replace(found.graph, waits=waits, gap_s=gap_s),
            ),
            n + 1,
        )
