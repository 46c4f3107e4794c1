"""The written form of sessions: shared prefixes, turns, sub-agents and contexts that begin anew."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from pydantic import NonNegativeFloat, field_validator, model_validator

from catalogs.io.yaml_files import Share, YamlBlock
from catalogs.workloads.arrivals import Count
from catalogs.workloads.lengths import Lengths, parse_lengths
from catalogs.workloads.sessions.gaps import Gaps, parse_gaps

#: Most tokens of one conversation; the longest published context has as many.
MOST_CONTEXT_TOKENS: Final = 10_000_000

#: Most turns of the sessions of a workload, which are drawn whole.
MOST_TURNS: Final = 20_000_000

#: Seconds that an answer is assumed to take where requests are ordered before a run; see `AgentSessions.start_s`.
ANSWER_S: Final = 5.0


class SharedPrefix(YamlBlock):
    """A shared prefix: the first `tokens` of each prompt (or conversation) are one of `groups` texts, picked at random.

    They count as part of input_tokens; a prompt of at most `tokens` tokens is shared completely.
    """

    tokens: Count
    groups: Count = 1


class Restarts(YamlBlock):
    """Turns whose prompt begins anew, as after a compaction: the shared prefix and other text of `input_tokens` in all.

    A turn restarts with the probability `share`, and always where its prompt and output would exceed `above_tokens`. No
    prompt is longer, first ones included.
    """

    input_tokens: Lengths
    share: Share = 0.0
    above_tokens: Count | None = None

    @field_validator("input_tokens", mode="before")
    @classmethod
    def _parse(cls, data: Any) -> Lengths:
        return data if isinstance(data, Lengths) else parse_lengths(data, "turns.restarts.input_tokens")


class SubAgents(YamlBlock):
    """Sub-agents: after a share of the turns, `parallel` of them start, and the next turn waits until all have ended.

    A sub-agent has `turns` turns and its own context, which begins with `first_input_tokens`.
    """

    share: Share
    turns: Lengths
    first_input_tokens: Lengths
    parallel: Lengths

    @model_validator(mode="before")
    @classmethod
    def _one_by_default(cls, data: Any) -> Any:
        return {"parallel": 1, **data} if isinstance(data, dict) else data

    @field_validator("turns", "first_input_tokens", "parallel", mode="before")
    @classmethod
    def _parse(cls, data: Any) -> Lengths:
        return data if isinstance(data, Lengths) else parse_lengths(data, "turns.subagents")


class Turns(YamlBlock):
    """Conversations: a prompt holds every earlier prompt and answer of its session, then its own input_tokens.

    `per_session` is the distribution of the number of turns. Turns follow each other in one of two ways:

    - `think_time_s`: the mean of the exponential time from the arrival of one turn to that of the next, as of users
      whose messages come at their own pace. It does not shrink when the request rate rises (more users, not faster
      ones).
    - `gap_s`: the times from the *end* of one turn to the next, as of agents, which wait for answers. Only then may a
      session have `subagents`, `restarts` and `first_input_tokens`, the tokens of its first prompt.
    """

    per_session: Lengths
    think_time_s: NonNegativeFloat = 10.0
    gap_s: Gaps | None = None
    first_input_tokens: Lengths | None = None
    restarts: Restarts | None = None
    subagents: SubAgents | None = None

    @property
    def span_s(self) -> float:
        """Return the mean time from the first turn of a session to its last, seconds."""
        between_s = self.think_time_s if self.gap_s is None else self.gap_s.mean_s + ANSWER_S
        return between_s * (float(self.per_session.sample(np.random.default_rng(0), 4096).mean()) - 1.0)

    @field_validator("per_session", mode="before")
    @classmethod
    def _parse(cls, data: Any) -> Lengths:
        return data if isinstance(data, Lengths) else parse_lengths(data, "turns.per_session")

    @field_validator("first_input_tokens", mode="before")
    @classmethod
    def _parse_first(cls, data: Any) -> Lengths | None:
        return data if data is None or isinstance(data, Lengths) else parse_lengths(data, "turns.first_input_tokens")

    @field_validator("gap_s", mode="before")
    @classmethod
    def _parse_gaps(cls, data: Any) -> Gaps | None:
        return data if data is None or isinstance(data, Gaps) else parse_gaps(data)

    @model_validator(mode="after")
    def _one_pace(self) -> Turns:
        if self.gap_s is not None and "think_time_s" in self.model_fields_set:
            raise ValueError("give either think_time_s, from arrival to arrival, or gap_s, from end to arrival")
        if self.gap_s is None:
            for key in ("first_input_tokens", "restarts", "subagents"):
                if getattr(self, key) is not None:
                    raise ValueError(f"{key} needs gap_s, the times from the end of one turn to the next")
        return self
