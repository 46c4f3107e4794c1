"""A step as a graph: its operators with their inputs, equal layers folded, and the time, work and bound of each.

A node is one operator of one kind of layer. Its figures are those of one execution, and `count` is the number of its
executions in the step. The times of all nodes, that of the host included, add up to the time of the step: what the
simulator reads from a table of step costs is divided over the operators that the table was priced from, in proportion
to their own times.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, fields, replace
from typing import Any, Final

import numpy as np

from calibration.operators.operators import Operator
from catalogs.models.layers import LayerGroup
from planner.studies.analyzed_steps import AnalyzedSteps
from planner.studies.step_analysis import PricedReplica, StepQuery
from planner.web.documents.catalogs import group_words
from planner.web.documents.memory import encoder_layers, layer_ids, layer_memory
from planner.web.documents.shapes import Edge, Graph, GraphGroup, GraphNode
from simulator.analysis.operators import BOUND_WORDS, EVIDENCE_S, OperatorRow, operator_rows, origin_shares, together
from simulator.costs.partition import BatchRows
from simulator.costs.pricing import N_CLASSES
from simulator.costs.tables import StepTables
from simulator.layers.operator_flow import BEFORE, ENCODER, flow, last_operators
from simulator.layers.shard import Shard

INPUT: Final = "input"

OUTPUT: Final = "output"

HOST: Final = "host"

#: The groups of operators outside the layers, and what they are.
_OUTSIDE: Final = {INPUT: "before the layers", OUTPUT: "after the layers", HOST: "the engine's host"}

#: Operators outside the layers that run before them.
_FIRST: Final = frozenset({"embedding", "embedding_all_reduce"})


#: The key of a node: the layers that run the operator, and its name.
_Key = tuple[LayerGroup | None, str]


def graph_document(query: StepQuery) -> Graph:
    """Return the graph of a step.

    Raises:
        InputError: A name is unknown, or the context exceeds the positions of the model.
    """
    return graph_of(PricedReplica.of(query), query)


def graph_of(replica: PricedReplica, query: StepQuery) -> Graph:
    """Return the graph of a step of a replica."""
    steps, shard = replica.steps(query), Shard.of(replica.resolved)
    rows, shapes = _priced_operators(replica.cost.tables, steps)
    step_s = steps.seconds(replica.cost.step_s)
    device_s = sum(row.seconds for found in rows.values() for row in found)
    ids = layer_ids(shard.model.groups, encoder_layers(shard, query))
    nodes = [_node(key, found, shapes[key], ids, step_s) for key, found in rows.items()]
    host_s = max(step_s - device_s, 0.0)  # a rounding error may be below zero
    nodes.append(_host_node(steps.n, host_s, step_s))
    edges = _edges(list(rows), ids, merges=bool(query.images))
    edges += [{"from": node["id"], "to": HOST} for node in nodes if node["id"] == f"{OUTPUT}.sampling"]
    notices = list(replica.notices(query, steps))
    if len(shard.model.groups) > 1:
        notices.append("equal layers are folded into one; the order of the kinds of layers in the model is not shown")
    return {
        "question": asdict(query) | _resolved(replica),
        "nodes": nodes,
        "edges": edges,
        "groups": _groups(nodes, shard, query, max(shape.tokens for shape in steps.shapes), step_s),
        "step_s": step_s,
        "device_s": device_s,
        "host_s": host_s,
        "n_steps": steps.n,
        "bounds": BOUND_WORDS | {HOST: "the engine's host"},
        "calibration": replica.bundle.name,
        "notices": list(dict.fromkeys(notices)),
    }


def _resolved(replica: PricedReplica) -> dict[str, Any]:
    found = replica.resolved
    return {
        "model": found.model.name,
        "hardware": found.hardware.text,
        "weight_dtype": found.weight_dtype,
        "kv_dtype": found.kv_dtype,
        "tensor_parallel": found.layout.tensor_parallel,
    }


def _priced_operators(
    tables: StepTables, steps: AnalyzedSteps
) -> tuple[dict[_Key, list[OperatorRow]], dict[_Key, Operator]]:
    """Return the rows of each operator, which add up to the time on the device, and its shape in the longest row."""
    batches, counts = BatchRows.of_shapes(steps.shapes), np.array(steps.counts, dtype=np.float64)
    rows: dict[_Key, list[OperatorRow]] = {}
    shapes: dict[_Key, tuple[float, Operator]] = {}
    for term in tables.terms(batches):
        read_s = float(tables.read(term)[:, :N_CLASSES].sum(axis=-1) @ counts[term.rows])
        own = [
            (call, operator_rows([call], tables.pricer, counts[group.rows] * group.times))
            for group in tables.operators(term)
            for call in group.lines
        ]
        own_s = sum(row.seconds for _, found in own for row in found)
        for call, found in own:
            key = call.layers, call.name
            for row in found:
                rows.setdefault(key, []).append(_of_total(row, read_s / own_s))
                if row.seconds > shapes.get(key, (0.0, None))[0]:
                    shapes[key] = row.seconds, call.op
    return rows, {key: op for key, (_, op) in shapes.items()}


def _of_total(row: OperatorRow, factor: float) -> OperatorRow:
    """Return the row with its times multiplied by a factor; its work remains."""
    times = {name: factor * getattr(row, name) for name in ("seconds", *EVIDENCE_S)}
    return replace(row, **times)


def _parent(layers: LayerGroup | None, name: str, ids: dict[LayerGroup, str]) -> str:
    return (INPUT if name in _FIRST else OUTPUT) if layers is None else ids[layers]


def _node(key: _Key, rows: Sequence[OperatorRow], op: Operator, ids: dict[LayerGroup, str], step_s: float) -> GraphNode:
    (layers, name), row = key, together(rows)[0]
    parent = _parent(layers, name, ids)
    shares = origin_shares([row])
    return {
        "id": f"{parent}.{name}",
        "label": name.replace("_", " "),
        "op": type(op).__name__,
        "operator_class": row.kind,
        "layer_kind": _OUTSIDE[parent] if layers is None else group_words(layers, parent.startswith("encoder")),
        "parent": parent,
        "count": row.count,
        "shape": _shape(op),
        "flops": row.flops / row.count,
        "bytes": row.bytes / row.count,
        "intensity": row.intensity,
        "seconds": row.seconds / row.count,
        "roofline_s": row.roofline_s / row.count,
        "total_s": row.seconds,
        "share": row.seconds / step_s,
        "bound": row.bound,
        "origin": max(shares, key=shares.__getitem__).removesuffix("_fraction"),
        "origin_shares": shares,
    }


def _host_node(n_steps: int, seconds: float, step_s: float) -> GraphNode:
    """Return the node of the time in which the device waits for the host."""
    return {
        "id": HOST,
        "label": "host",
        "op": "Host",
        "operator_class": HOST,
        "layer_kind": _OUTSIDE[HOST],
        "parent": HOST,
        "count": float(n_steps),
        "shape": {},
        "flops": 0.0,
        "bytes": 0.0,
        "intensity": 0.0,
        "seconds": seconds / n_steps,
        "roofline_s": 0.0,
        "total_s": seconds,
        "share": seconds / step_s,
        "bound": HOST,
        "origin": "engine profile",
        "origin_shares": {},
    }


def _shape(op: Operator) -> dict[str, Any]:
    """Return the sizes of an operator; of several steps, the largest."""
    found: dict[str, Any] = {}
    for field in fields(op):
        value = getattr(op, field.name)
        if value is None or isinstance(value, str | bool):
            found[field.name] = value
        else:
            largest = float(np.max(value))
            found[field.name] = int(largest) if largest.is_integer() else largest
    return {name: value for name, value in found.items() if value is not None}


def _edges(keys: Sequence[_Key], ids: dict[LayerGroup, str], merges: bool) -> list[Edge]:
    """Return the edges of the graph: inside each group, and from the end of one group to the start of the next.

    With `merges`, the outputs of the encoder take the places of tokens in the input of the layers.
    """
    names: dict[str, list[str]] = {}
    for layers, name in keys:
        names.setdefault(_parent(layers, name, ids), []).append(name)
    encoder = [i for i in ids.values() if i.startswith("encoder") and i in names]
    decoder = [i for i in ids.values() if i.startswith("layers") and i in names]
    inside = {i: flow(own) for i, own in names.items()}
    ends = {i: [f"{i}.{name}" for name in last_operators(inputs)] for i, inputs in inside.items()}
    encoded = ends[encoder[-1]] if encoder else []
    edges = list(_chain(encoder, inside, ends, []))
    edges += [{"from": end, "to": f"{INPUT}.embedding"} for end in encoded if merges]
    edges += _chain([i for i in (INPUT, *decoder, OUTPUT) if i in names], inside, ends, encoded)
    return edges


def _chain(
    groups: Sequence[str],
    inside: dict[str, dict[str, frozenset[str]]],
    ends: dict[str, list[str]],
    encoded: Sequence[str],
) -> Iterator[Edge]:
    before: Sequence[str] = ()
    for group in groups:
        for name, inputs in inside[group].items():
            for source in sorted(inputs):
                outer = {BEFORE: before, ENCODER: encoded}
                for start in outer.get(source, [f"{group}.{source}"]):
                    yield {"from": start, "to": f"{group}.{name}"}
        before = ends[group]


def _groups(nodes: Sequence[GraphNode], shard: Shard, query: StepQuery, tokens: int, step_s: float) -> list[GraphGroup]:
    memory = {kind["id"]: kind for kind in layer_memory(shard, query, tokens)}
    parents = dict.fromkeys(node["parent"] for node in nodes)
    order = [i for i in (*(i for i in memory if i.startswith("encoder")), INPUT, *memory, OUTPUT, HOST) if i in parents]
    found: list[GraphGroup] = []
    for name in dict.fromkeys(order):
        total_s = sum(node["total_s"] for node in nodes if node["parent"] == name)
        kind = memory.get(name)
        found.append(
            {
                "id": name,
                "label": _OUTSIDE[name] if kind is None else kind["kind"],
                "layers": 1 if kind is None else kind["layers"],
                "total_s": total_s,
                "share": total_s / step_s,
                "weights_bytes": 0.0 if kind is None else kind["weights_bytes"],
                "kv_bytes": 0.0 if kind is None else kind["kv_bytes"],
            }
        )
    return found
