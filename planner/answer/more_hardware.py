"""The least hardware that would meet a refused request: more of the same, or of another kind.

Two searches share the work. A quick one tries a few candidates with default limits, and finds a size that meets the
request within a few simulations. It may overlook smaller sizes, where only other limits meet the request. A full one
searches a size as `plan --hw` would. It confirms the size and then decides on the sizes below it, one after another,
until one does not meet the request.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from catalogs.hardware.catalog import MOST_NODES, parse_hardware, with_count, with_nodes
from catalogs.hardware.specs import Hardware
from planner.problem.candidate import Candidate

#: Other hardware to try if the requested hardware is not sufficient, in addition to more of the same.
NEIGHBOURS: Final = ("h100", "h200", "b200")

#: Multiples of the number of nodes that are tried if one node does not suffice. A judgement of cost: each takes a few
#: runs.
_MORE_NODES: Final = (2, 4, 8, 16)

#: After so many sizes that the quick search accepted and the full search refused, the refusal names no size. A
#: judgement of cost: each of them takes a whole search.
_MOST_REFUSED: Final = 3

SearchOn = Callable[[Hardware], Candidate | None]


@dataclass(frozen=True, slots=True)
class HardwareSizing:
    """Finds the least hardware that meets a request.

    Attributes:
        quick: Returns a candidate that meets the request on some hardware, from few tries; None if none of them does.
        full: Returns the same from the search that `plan --hw` makes; None if that search refuses the request.
    """

    quick: SearchOn
    full: SearchOn

    def least(self, steps: Iterable[Hardware], below: Hardware | None) -> tuple[Hardware, Candidate] | None:
        """Return the least hardware that meets the request, and the candidate on it; None if no step meets it.

        Args:
            steps: Ascending hardware of one kind, tried until one meets the request.
            below: Hardware that does not meet the request, below the first step; None if none is known.
        """
        sizes, refused = list[Hardware](), list[Hardware]()
        for step in steps:
            window = [*_between(below, step), step]
            if self.quick(step) is not None:
                least = len(sizes) + self._first_that_holds(window[:-1])
                sizes += window
                for size in [size for size in sizes[least:] if size not in refused]:
                    found = self.full(size)
                    if found is not None:
                        begin = sizes.index(refused[-1]) + 1 if refused else 0
                        return self._smallest(sizes[begin : sizes.index(size)], size, found)
                    refused.append(size)
                    if len(refused) == _MOST_REFUSED:
                        return None
            else:
                sizes += window
            below = step
        return None

    def least_of_others(self, own: Hardware) -> tuple[Hardware, Candidate] | None:
        """Return the least hardware of the first other kind that meets the request, and the candidate on it."""
        tries = (self.least([other], None) for other in other_kinds(own))
        return next((least for least in tries if least is not None), None)

    def _first_that_holds(self, sizes: list[Hardware]) -> int:
        """Return the number of ascending sizes below the first one that the quick search finds to hold."""
        return bisect_left(sizes, True, key=lambda size: self.quick(size) is not None)

    def _smallest(self, smaller: list[Hardware], hardware: Hardware, found: Candidate) -> tuple[Hardware, Candidate]:
        """Return the least size such that it and every size up to `hardware`, which meets the request, meet it.

        `smaller` are the ascending sizes below `hardware`.
        """
        for size in reversed(smaller):
            candidate = self.full(size)
            if candidate is None:
                break
            hardware, found = size, candidate
        return hardware, found


def more_of(hardware: Hardware) -> Iterator[Hardware]:
    """Yield more of the same hardware in ascending steps: of one node up to twice as much each, then of whole nodes."""
    if _is_fixed(hardware):
        return
    count, most, nodes = hardware.accelerators_per_node, hardware.node.max_accelerators, hardware.n_nodes
    while nodes == 1 and count < most:
        count = min(2 * count, most)
        yield with_count(hardware, count)
    larger = (n * nodes for n in _MORE_NODES if n * nodes <= MOST_NODES)
    yield from (with_nodes(with_count(hardware, most), n) for n in larger)


def other_kinds(hardware: Hardware) -> Iterator[Hardware]:
    """Yield the same number of other accelerators, and whole nodes of those."""
    if _is_fixed(hardware):
        return
    name, count, nodes = hardware.accelerator.name, hardware.accelerators_per_node, hardware.n_nodes
    others = [parse_hardware(n) for n in NEIGHBOURS if n != name]
    alike = [(o, count) for o in others if count <= o.node.max_accelerators]
    whole = [(o, o.node.max_accelerators) for o in others if nodes == 1 and count < o.node.max_accelerators]
    yield from (with_nodes(with_count(other, n), nodes) for other, n in (*alike, *whole))


def _is_fixed(hardware: Hardware) -> bool:
    """Return whether there is nothing larger: of MIG slices and of this machine."""
    return hardware.text == "local" or hardware.accelerator.is_slice


def _between(below: Hardware | None, step: Hardware) -> list[Hardware]:
    """Return the hardware of one kind between two steps, ascending.

    If `below` is None, it begins with one accelerator, or with one whole node if the step has several nodes.
    """
    if step.n_nodes > 1:
        least = 1 if below is None else below.n_nodes + 1
        return [with_nodes(step, n) for n in range(least, step.n_nodes)]
    least = 1 if below is None else below.accelerators_per_node + 1
    return [with_count(step, n) for n in range(least, step.accelerators_per_node)]
