"""Speculative decoding: the `speculative` block of deployment.yaml and its resolved form.

The keys are those of vLLM's --speculative-config; `topk` and `num_draft_tokens` are SGLang's. The benefit depends
mostly on how often drafts are accepted, which depends on the model, the drafter and the traffic. The user must
therefore give the acceptance; it is never assumed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Final

from pydantic import Field, PositiveFloat, PositiveInt

from catalogs.engines.profile import Method as Method
from catalogs.io.yaml_files import StrictYamlBlock
from catalogs.models.spec import ModelSpec

#: Drafters of one layer that read the target's hidden states and share its vocabulary.
HEADS: Final = frozenset({"eagle", "eagle3", "mtp"})

#: Layers whose hidden states an EAGLE-3 head reads (low, middle and high). Its query input is token and feature.
EAGLE3_FEATURES: Final = 3


class Speculative(StrictYamlBlock):
    """The `speculative` block of deployment.yaml; exactly one of `acceptance` and `acceptance_length` is given.

    `acceptance` as a number is the probability that a draft is accepted if all earlier drafts were, the same at every
    position (the i.i.d. model of Leviathan et al. 2023). As a list, it holds for each position the fraction of all
    rounds in which that draft was accepted, as vLLM reports it (`spec_decode_num_accepted_tokens_per_pos` over
    `spec_decode_num_drafts`). `acceptance_length` is the mean number of tokens per step, including the token that needs
    no draft, as most papers report it; it is converted by the same i.i.d. model.

    `draft_rate` is the share of a sequence's decode steps for which n-gram lookup finds drafts. The acceptance is then
    that of the steps with drafts, as vLLM counts it.
    """

    method: str
    num_speculative_tokens: int = Field(gt=0, le=1024)  # consecutive drafts
    model: str | None = None
    acceptance: float | list[float] | None = None
    acceptance_length: PositiveFloat | None = None
    draft_rate: Annotated[float, Field(gt=0.0, le=1.0)] | None = None  # share of steps for which ngram finds drafts
    topk: PositiveInt = 1  # branches of the drafted tree (speculative-eagle-topk)
    num_draft_tokens: PositiveInt | None = None  # verified tokens of the tree, including the root


@dataclass(frozen=True, slots=True)
class Speculation:
    """Resolved speculative decoding; rates[i] is the share of drafted rounds in which at least i + 1 are accepted."""

    method: Method
    num_speculative_tokens: int
    rates: tuple[float, ...]
    draft_rate: float = 1.0  # share of rounds with drafts
    draft: ModelSpec | None = None  # the model that drafts; for a head, its layers only
    draft_name: str | None = None  # as written in deployment.yaml
    draft_weight_dtype: str = "bf16"
    topk: int = 1
    queries: int = 1  # tokens of each decode in a step
    lookahead_tokens: int = 0  # further KV slots that the drafter needs
    budget_tokens: int = 0  # further tokens of the step's budget that each decode takes
    recomputes_block: bool = False  # the last block of a cached prefix is recomputed
    notices: tuple[str, ...] = ()

    @property
    def step_tokens(self) -> int:
        """Return the tokens of a step's budget that each decode takes."""
        return self.queries + self.budget_tokens

    @property
    def is_head(self) -> bool:
        """Return whether the drafter is a layer that reads the target's hidden states."""
        return self.method in HEADS

    @property
    def mean_advance(self) -> float:
        """Return the expected tokens per round, including the token that needs no draft."""
        return 1.0 + self.draft_rate * sum(self.rates)

    @property
    def as_written(self) -> dict[str, Any]:
        """Return the resolved values under the keys of deployment.yaml."""
        return {
            "method": self.method,
            "num_speculative_tokens": self.num_speculative_tokens,
            "model": self.draft_name,
            "acceptance": list(self.rates),
            "acceptance_length": None,
            "draft_rate": self.draft_rate if self.method == "ngram" else None,
            "topk": self.topk,
            "num_draft_tokens": self.queries,
        }
