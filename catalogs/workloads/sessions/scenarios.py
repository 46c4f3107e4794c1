"""Rules of published benchmarks that play recorded sessions, which a workload file names and cannot change."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from catalogs.arrays import IntArray
from catalogs.errors import InputError, nearest_name
from catalogs.workloads.sessions.recorded import RecordedSessions


@dataclass(frozen=True, slots=True)
class Scenario:
    """The rules of a benchmark.

    Attributes:
        name: Its name in workload files.
        most_context_tokens: Sessions with a longer context are left out.
        begun_shares: The first session of each agent begins after a share of its requests between these two.
        longest_idle_s: Idle times of the whole system are cut to this, seconds.
    """

    name: str
    most_context_tokens: int
    begun_shares: tuple[float, float]
    longest_idle_s: float

    def sessions(self, recorded: RecordedSessions) -> IntArray:
        """Return the numbers of the sessions that are played. Shape (sessions,).

        Raises:
            InputError: All sessions are too long.
        """
        found = recorded.sessions
        longest = np.zeros(found.n_sessions, dtype=np.int64)
        np.maximum.at(longest, found.session, found.inputs + found.outputs)
        kept = np.flatnonzero(longest <= self.most_context_tokens)
        if not len(kept):
            rule = f"{self.name} plays sessions of at most {self.most_context_tokens:,} tokens, and all are longer"
            raise InputError(rule, int(longest.min()))
        return kept


#: AgentX of InferenceX (SemiAnalysisAI/InferenceX and ai-dynamo/aiperf, scenario `inferencex-agentx-mvp`, July 2026):
#: the corpus of at most 256k tokens for models without longer contexts, trajectories that begin at 25 to 75 %, recorded
#: times between the end of a request and the next, an idle cap of 10 s for the whole system, and text of its own for
#: each play. Its warm-up of 10 requests an agent is not left out of the statistics of `simulate`.
SCENARIOS: Final = {
    scenario.name: scenario
    for scenario in (Scenario("agentx", most_context_tokens=262_144, begun_shares=(0.25, 0.75), longest_idle_s=10.0),)
}


def load_scenario(name: str) -> Scenario:
    """Return the scenario of a name.

    Raises:
        InputError: There is none.
    """
    if name not in SCENARIOS:
        raise InputError("unknown scenario", name, nearest_name(name, SCENARIOS) or ", ".join(SCENARIOS))
    return SCENARIOS[name]
