"""The steps in which output tokens are generated: those of decodes alone, and those that also compute prompts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Final, Self

from catalogs.arrays import BoolArray
from catalogs.ui.words import digits, percent, seconds
from simulator.cluster.run import Run
from simulator.core.step_log import StepLog


@dataclass(frozen=True, slots=True)
class StepShares:
    """How output tokens were generated in a window of a run.

    Attributes:
        decode_s: Mean time of a token in a step of decodes alone, seconds; 0 if there was none.
        mixed_s: Mean time of a token in a step that also computes prompts, seconds; 0 if there was none.
        mixed_share: Share of the tokens that come from such steps.
        decodes: Mean requests that decode in a step, as a token sees it.
    """

    decode_s: float = 0.0
    mixed_s: float = 0.0
    mixed_share: float = 0.0
    decodes: float = 0.0

    @classmethod
    def of(cls, run: Run, between_s: tuple[float, float]) -> Self:
        """Return the shares of the steps that start in a window of a run."""
        log = StepLog.merged(run.logs)
        kept = (log.decodes > 0) & (log.start_s >= between_s[0]) & (log.start_s <= between_s[1])
        tokens = (log.decodes * log.steps)[kept]
        total = float(tokens.sum())
        if not total:
            return cls()
        step_s, mixed = (log.total_s / log.steps)[kept], (log.prefill_tokens > 0)[kept]

        def mean_s(where: BoolArray) -> float:
            n = float(tokens[where].sum())
            return float((step_s * tokens)[where].sum()) / n if n else 0.0

        share = float(tokens[mixed].sum()) / total
        return cls(mean_s(~mixed), mean_s(mixed), share, float((log.decodes[kept] * tokens).sum()) / total)

    @classmethod
    def mean(cls, shares: Sequence[StepShares]) -> Self:
        """Return the means of the shares of several runs."""
        return cls(*(sum(getattr(each, f.name) for each in shares) / max(1, len(shares)) for f in fields(cls)))

    @property
    def words(self) -> str:
        """Return in one sentence what a token waits for; empty if no token was generated."""
        parts = []
        if self.mixed_s:
            words = f"{percent(self.mixed_share)} of the output tokens come from steps that also compute prompts"
            parts.append(f"{words}, and such a step takes {seconds(self.mixed_s)} ({_per_s(self.mixed_s)})")
        if self.decode_s:
            parts.append(f"steps without prompts take {seconds(self.decode_s)} ({_per_s(self.decode_s)})")
        return "; ".join(parts)


def _per_s(step_s: float) -> str:
    return f"{digits(1 / step_s)} tokens/s"


#: The shares of a run without steps.
NO_STEPS: Final = StepShares()
