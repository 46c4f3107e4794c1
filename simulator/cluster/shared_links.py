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
meet no transfer take their usual time.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from typing import Protocol

from simulator.core.batch import Batch
from simulator.engine.replica import Replica
from simulator.network.fair_share import FairShareNetwork


class StepLinkUse(Protocol):
    """The use of a replica's own link by the collectives of its steps (CollectiveLinkUse implements it)."""

    def occupied_s(self, batch: Batch) -> float:
        """Return the seconds for which the collectives of a step occupy the link, at its nominal rate."""


def own_links(replica: int) -> tuple[Hashable, Hashable]:
    """Return the names of both directions of a replica's own link."""
    return ("out", replica), ("in", replica)


class _Meeting:
    """A replica whose link is, or was since its last step began, used by transfers."""

    __slots__ = ("carried_s", "debt_s", "share", "use")

    def __init__(self, use: StepLinkUse, carried_s: tuple[float, float]) -> None:
        self.use = use
        self.share = 0.0  # of the link, used by the collectives of the step on the device
        self.carried_s = carried_s  # seconds of transfers until the last settlement, outbound and inbound
        self.debt_s = 0.0  # by which the next step is delayed


class StepsOnLinks:
    """The replicas of one run whose steps share links with transfers."""

    def __init__(
        self, flows: FairShareNetwork, uses: Mapping[int, StepLinkUse], slow: Callable[[int, float], None]
    ) -> None:
        """Create the record of a run.

        Args:
            flows: The transfers.
            uses: The use of the links by the steps of each pool that uses them.
            slow: Multiplies the time that transfers take on the own link of a replica, from now on.
        """
        self._flows, self._uses, self._slow = flows, uses, slow
        self._meetings: dict[int, _Meeting] = {}

    def slowdown(self, replica: int) -> float:
        """Return how many times as long transfers take on the link of a replica because of its steps."""
        return 1.0 + self._meetings[replica].share if replica in self._meetings else 1.0

    def meet(self, replica: Replica) -> None:
        """Note that a transfer begins to use the link of a replica; the step after the present one is delayed by it."""
        if replica.index in self._meetings:
            return
        use = self._uses[replica.pool]
        meeting = self._meetings[replica.index] = _Meeting(use, self._carried_s(replica.index))
        for loop in replica.step_loops:
            if loop.current is not None:
                self._set_share(replica.index, meeting, use.occupied_s(loop.current) / loop.current_step_s)
            loop.cut()

    def meets(self, replica: int) -> bool:
        """Return whether transfers use the link of a replica, or have delayed it since its last step began."""
        meeting = self._meetings.get(replica)
        if meeting is None:
            return False
        if meeting.share or meeting.debt_s or self._is_used(replica):
            return True
        del self._meetings[replica]
        return False

    def delay_s(self, replica: int, batch: Batch, step_s: float) -> float:
        """Return the seconds by which transfers delay a replica that `meets`, when a step of step_s seconds begins."""
        meeting = self._meetings[replica]
        self._settle(replica, meeting)
        delay_s, meeting.debt_s = meeting.debt_s, 0.0
        if self._is_used(replica):
            self._set_share(replica, meeting, meeting.use.occupied_s(batch) / step_s)
        else:
            self._set_share(replica, meeting, 0.0)
            del self._meetings[replica]
        return delay_s

    def idle(self, replica: int) -> None:
        """Note that a replica runs no step from now on."""
        meeting = self._meetings.get(replica)
        if meeting is not None:
            self._settle(replica, meeting)
            self._set_share(replica, meeting, 0.0)

    def _settle(self, replica: int, meeting: _Meeting) -> None:
        """Add the delay by what transfers have sent since the last call; both directions carry at the same time."""
        carried_s = self._carried_s(replica)
        longest_s = max(now - before for now, before in zip(carried_s, meeting.carried_s, strict=True))
        meeting.debt_s += meeting.share * longest_s
        meeting.carried_s = carried_s

    def _is_used(self, replica: int) -> bool:
        return any(map(self._flows.is_used, own_links(replica)))

    def _carried_s(self, replica: int) -> tuple[float, float]:
        outbound, inbound = own_links(replica)
        return self._flows.carried_s(outbound), self._flows.carried_s(inbound)

    def _set_share(self, replica: int, meeting: _Meeting, share: float) -> None:
        share = min(share, 1.0)
        if share != meeting.share:
            meeting.share = share
            self._slow(replica, 1.0 + share)
