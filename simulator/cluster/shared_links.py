"""Links that the collectives of steps share with the transfers of KV blocks.

While a collective and transfers want the same link, each side gets half of it: the collective takes twice as long as
its bytes alone, and the transfers together send at half of the rate. When the collectives of a step fall is not
simulated. They use the mean share u of the link, the seconds for which their bytes occupy it over the seconds of the
step. Two rules follow from it:

- Transfers take 1 + u times as long on this link: in each second, 1 / (1 + u) of a second of transfers fits beside the
  steps.
- Of each second that transfers occupy the link, the share u delays a collective. The delay is added to the step that
  begins next.

A transfer that lasts for many steps of T seconds with C seconds on the link thus makes each of them T + C seconds long,
which is what halves of the link give. The link never carries more than its capacity, no bytes are lost, and steps that
share the link with no transfer take their usual time.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Protocol

from simulator.core.batch import Batch
from simulator.engine.replica import Replica
from simulator.interconnect.fair_share import FairShareNetwork


class StepLinkUse(Protocol):
    """The use of a replica's own link by the collectives of its steps (CollectiveLinkUse implements it)."""

    def occupied_s(self, batch: Batch) -> float:
        """Return the seconds for which the collectives of a step occupy the link, at its nominal rate."""


def own_links(replica: int) -> tuple[Hashable, Hashable]:
    """Return the names of both directions of a replica's own link."""
    return ("out", replica), ("in", replica)


class _SharedLink:
    """The link of a replica that transfers use, or have used since its last step began."""

    __slots__ = ("carried_s", "delay_due_s", "links", "share", "use")

    def __init__(self, use: StepLinkUse, links: Sequence[Hashable], carried_s: list[float]) -> None:
        self.use, self.links = use, links
        self.share = 0.0  # of the link, used by the collectives of the step on the device
        self.carried_s = carried_s  # seconds of transfers until the last settlement, on each of the links
        self.delay_due_s = 0.0  # seconds by which the next step is delayed


class StepsOnLinks:
    """The replicas of one run whose steps share links with transfers."""

    def __init__(
        self,
        flows: FairShareNetwork,
        uses: Mapping[int, StepLinkUse],
        directions: Mapping[int, Sequence[str]],
        slow: Callable[[int, float], None],
    ) -> None:
        """Create the record of a run.

        Args:
            flows: The transfers.
            uses: The use of the links by the steps of each pool that uses them.
            directions: The directions in which each of these pools sends or receives, "out" and "in".
            slow: Multiplies the time that transfers take on the own link of a replica, from now on.
        """
        self._flows, self._uses, self._directions, self._slow = flows, uses, directions, slow
        self._shared: dict[int, _SharedLink] = {}

    def slowdown(self, replica: int) -> float:
        """Return how many times as long transfers take on the link of a replica because of its steps."""
        return 1.0 + self._shared[replica].share if replica in self._shared else 1.0

    def begin_sharing(self, replica: Replica) -> None:
        """Note that a transfer begins to use the link of a replica; the step after the present one is delayed by it."""
        if replica.index in self._shared:
            return
        links = [(direction, replica.index) for direction in self._directions[replica.pool]]
        carried_s = [self._flows.use_of(link).carried_s for link in links]
        shared = self._shared[replica.index] = _SharedLink(self._uses[replica.pool], links, carried_s)
        for loop in replica.step_loops:
            if loop.current is not None:
                shared.share = min(1.0, shared.use.occupied_s(loop.current) / loop.current_step_s)
            loop.cut()
        self._slow(replica.index, self.slowdown(replica.index))

    def is_delayed_or_shared(self, replica: int) -> bool:
        """Return whether transfers use the link of a replica, or have delayed it since its last step began."""
        shared = self._shared.get(replica)
        if shared is None:
            return False
        if shared.share or shared.delay_due_s or self._settle(shared):
            return True
        del self._shared[replica]
        return False

    def delay_s(self, replica: int, batch: Batch, step_s: float) -> float:
        """Return the seconds by which transfers delay a replica when a step of step_s seconds begins.

        The replica is one that `is_delayed_or_shared`.
        """
        shared = self._shared[replica]
        is_used = self._settle(shared)
        delay_s, shared.delay_due_s = shared.delay_due_s, 0.0
        if is_used:
            self._set_share(replica, shared, shared.use.occupied_s(batch) / step_s)
        else:
            del self._shared[replica]  # the next transfer sets the rate of the link
        return delay_s

    def idle(self, replica: int) -> None:
        """Note that a replica runs no step from now on."""
        shared = self._shared.get(replica)
        if shared is not None:
            self._settle(shared)
            self._set_share(replica, shared, 0.0)

    def _settle(self, shared: _SharedLink) -> bool:
        """Add the delay by what transfers have sent since the last call; return whether any uses the link now.

        Both directions carry at the same time.
        """
        longest_s, is_used = 0.0, False
        for i, link in enumerate(shared.links):
            use = self._flows.use_of(link)
            longest_s = max(longest_s, use.carried_s - shared.carried_s[i])
            shared.carried_s[i] = use.carried_s
            is_used = is_used or use.is_used
        shared.delay_due_s += shared.share * longest_s
        return is_used

    def _set_share(self, replica: int, shared: _SharedLink, share: float) -> None:
        share = min(share, 1.0)
        if share != shared.share:
            shared.share = share
            self._slow(replica, self.slowdown(replica))
