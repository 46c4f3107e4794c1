"""Speculative decoding as deployment.yaml asks for it: who drafts, how many tokens, and how many are accepted.

Keys are those of vLLM's --speculative-config; `topk` and `num_draft_tokens` are SGLang's. How often drafts are accepted
decides everything and depends on model, drafter and traffic: it is asked for, never assumed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, PositiveInt

from catalogs.models.spec import ModelSpec

Method = Literal["draft_model", "eagle", "eagle3", "mtp", "ngram"]

#: Drafters of one layer that read the target's hidden states and share its vocabulary.
HEADS: Final = frozenset({"eagle", "eagle3", "mtp"})

#: Layers' hidden states that an EAGLE-3 head reads (low, middle and high), and its query input: token and feature.
EAGLE3_FEATURES: Final = 3

#: SGLang's max_running_requests where speculation is on and none is given (ServerArgs._handle_speculative_decoding).
SGLANG_MAX_NUM_SEQS: Final = 48


class Speculative(BaseModel):
    """`speculative` of deployment.yaml. Exactly one of `acceptance` and `acceptance_length` is given.

    acceptance: a number, the probability that a draft is accepted if all before it were, the same at every position
    (the i.i.d. model of Leviathan et al. 2023); or a list by position, the share of all drafts of which that token was
    accepted, as vLLM reports it (`spec_decode_num_accepted_tokens_per_pos` over `spec_decode_num_drafts`).
    acceptance_length: mean tokens a step including the one that needs no draft, as most papers give it; i.i.d. again.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    method: str
    num_speculative_tokens: int = Field(gt=0, le=1024)  # drafts in a row
    model: str | None = None
    acceptance: float | list[float] | None = None
    acceptance_length: float | None = Field(default=None, gt=0)
    topk: PositiveInt = 1  # branches of the drafted tree (speculative-eagle-topk)
    num_draft_tokens: PositiveInt | None = None  # tokens of the tree that are verified, the root among them


@dataclass(frozen=True, slots=True)
class Speculation:
    """The same, looked up. rates[i]: of all rounds, those in which at least i + 1 drafts are accepted."""

    method: Method
    num_speculative_tokens: int
    rates: tuple[float, ...]
    draft: ModelSpec | None = None  # what runs to draft; of a head, its layers alone
    draft_name: str | None = None  # as it was written
    draft_weight_dtype: str = "bf16"
    topk: int = 1
    queries: int = 1  # tokens of each decode in a step
    lookahead_tokens: int = 0  # KV slots that the drafter needs beyond those of the step
    budget_tokens: int = 0  # of the step's token budget that each decode takes beyond its queries
    recomputes_block: bool = False  # of a cached prefix the last block is computed again
    notices: tuple[str, ...] = ()

    @property
    def step_tokens(self) -> int:
        """Of a step's token budget, what each decode takes."""
        return self.queries + self.budget_tokens

    @property
    def is_head(self) -> bool:
        return self.method in HEADS

    @property
    def mean_advance(self) -> float:
        """Expected tokens of a round, the one that needs no draft among them."""
        return 1.0 + sum(self.rates)

    @property
    def as_written(self) -> dict[str, Any]:
        """In the keys of deployment.yaml."""
        return {
            "method": self.method,
            "num_speculative_tokens": self.num_speculative_tokens,
            "model": self.draft_name,
            "acceptance": list(self.rates),
            "acceptance_length": None,
            "topk": self.topk,
            "num_draft_tokens": self.queries,
        }


class Drafter(NamedTuple):
    """model: None for look-ups; of a head, its layers alone."""

    model: ModelSpec | None
    weight_dtype: str
    notices: tuple[str, ...] = ()
