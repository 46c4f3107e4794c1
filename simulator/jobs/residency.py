"""What is in the memory of one replica where not all fits: the state of sessions, and the weights of several networks.

Both follow one rule. What a batch needs is brought before it starts, and what was used least recently makes room. Bytes
move between the host and the accelerator at the rate of the node, and the batch waits for them. State is written, so it
is also copied out when it leaves. Weights are kept in host memory, so they only have to be copied in.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterable, Sequence
from math import inf


class Residency:
    """The items in the memory of one replica, the one used least recently first."""

    def __init__(self, capacity_bytes: float, bytes_per_s: float, written: bool) -> None:
        """Create an empty memory.

        Args:
            capacity_bytes: Bytes for these items on one accelerator.
            bytes_per_s: Rate between host and accelerator, one direction.
            written: Whether items change, and are copied out when they leave.
        """
        self._capacity, self._rate, self._written = capacity_bytes, bytes_per_s, written
        self._held: OrderedDict[Hashable, float] = OrderedDict()
        self._used = 0.0
        self.n_brought = 0

    def __contains__(self, item: Hashable) -> bool:
        """Return whether an item is in the memory."""
        return item in self._held

    def bring(self, item: Hashable, size_bytes: float, new: bool, keep: Iterable[Hashable] = ()) -> float:
        """Bring an item into the memory and return the seconds of the copies.

        Args:
            item: The item, which becomes the one used most recently.
            size_bytes: Its bytes.
            new: Whether it begins to exist here, so that nothing is copied in.
            keep: Items that may not leave, such as the others of one batch.
        """
        if item in self._held:
            self._held.move_to_end(item)
            return 0.0
        kept, copied = {*keep, item}, 0.0 if new else size_bytes
        self.n_brought += not new
        for other in [held for held in self._held if held not in kept]:
            if self._used + size_bytes <= self._capacity:
                break
            left = self._held.pop(other)
            self._used -= left
            copied += left if self._written else 0.0
        self._held[item] = size_bytes
        self._used += size_bytes
        return copied / self._rate if self._rate < inf else 0.0

    def drop(self, item: Hashable) -> None:
        """Remove an item that has moved elsewhere, if it is here."""
        self._used -= self._held.pop(item, 0.0)


class Weights:
    """Which of several networks each replica has on its accelerators; at the start the first ones that fit."""

    def __init__(
        self, weights_bytes: Sequence[float], capacity_bytes: float, bytes_per_s: float, replicas: int
    ) -> None:
        """Load the first networks; all others are in host memory."""
        self._weights = weights_bytes
        self._memories = [Residency(capacity_bytes, bytes_per_s, written=False) for _ in range(replicas)]
        held = 0.0
        for model, size_bytes in enumerate(weights_bytes):
            held += size_bytes
            if held > capacity_bytes and model:
                break
            for memory in self._memories:
                memory.bring(model, size_bytes, new=True)

    @property
    def n_loaded(self) -> int:
        """Return how often a network was copied to an accelerator."""
        return sum(memory.n_brought for memory in self._memories)

    def load_s(self, replica: int, model: int) -> float:
        """Bring the weights of a network to a replica and return the seconds of the copy."""
        return self._memories[replica].bring(model, self._weights[model], new=False)


class SessionStates:
    """Where the state of each session is: in the memory of one replica, or in host memory."""

    def __init__(self, state_bytes: float, capacity_bytes: float, bytes_per_s: float, replicas: int) -> None:
        """Create the empty memories of the replicas."""
        self._state_bytes, self._rate = state_bytes, bytes_per_s
        self._memories = [Residency(capacity_bytes, bytes_per_s, written=True) for _ in range(replicas)]
        self._begun: set[int] = set()

    @property
    def n_moved(self) -> int:
        """Return how often a state was copied to an accelerator."""
        return sum(memory.n_brought for memory in self._memories)

    def move_s(self, replica: int, sessions: Iterable[int]) -> float:
        """Bring the states of the sessions of a batch to a replica and return the seconds of the copies.

        A state that another replica holds is copied out there and in here.
        """
        wanted, seconds = [session for session in sessions if session >= 0], 0.0
        for session in wanted:
            for other, memory in enumerate(self._memories):
                if other != replica and session in memory:
                    memory.drop(session)
                    seconds += self._state_bytes / self._rate
            new = session not in self._begun
            self._begun.add(session)
            seconds += self._memories[replica].bring(session, self._state_bytes, new, wanted)
        return seconds
