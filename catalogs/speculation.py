"""Speculative decoding as deployment.yaml asks for it: who drafts, how many tokens, and how many are accepted.

Keys are those of vLLM's --speculative-config; `topk` and `num_draft_tokens` are SGLang's. How often drafts are accepted
decides everything and depends on model, drafter and traffic: it is asked for, never assumed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, PositiveInt

from catalogs.drafter import drafter_of
from catalogs.errors import InputError, nearest_name
from catalogs.model_spec import ModelSpec

if TYPE_CHECKING:
    from catalogs.deployment import Deployment
    from catalogs.engines import EngineProfile

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


def speculation_of(deployment: Deployment, engine: EngineProfile, target: ModelSpec) -> Speculation | None:
    """What a deployment asks for. InputError for a method, a drafter or a number that cannot be."""
    asked = deployment.speculative
    if asked is None:
        return None
    method = _method(asked, engine)
    k, queries = asked.num_speculative_tokens, _queries(asked, engine)
    drafter = drafter_of(asked, method, target, deployment)
    return Speculation(
        method=method,
        num_speculative_tokens=k,
        rates=acceptance_rates(asked),
        draft=drafter.model,
        draft_name=asked.model,
        draft_weight_dtype=drafter.weight_dtype,
        topk=asked.topk,
        queries=queries,
        lookahead_tokens=_lookahead(engine, method, k),
        budget_tokens=int(engine.policy == "vllm-v1" and method == "draft_model"),
        recomputes_block=engine.policy == "vllm-v1" and method in HEADS,
        notices=drafter.notices,
    )


def _method(asked: Speculative, engine: EngineProfile) -> Method:
    known: tuple[Method, ...] = ("draft_model", "eagle", "eagle3", "mtp", "ngram")
    method = next((m for m in known if m == asked.method), None)
    if method is None:
        near = nearest_name(asked.method, known, 0.0)
        raise InputError("unknown speculative.method", asked.method, near)
    if not engine.speculates:
        raise InputError(f"{engine.name} is simulated without speculative decoding", "speculative", "engine: vllm")
    if method not in engine.speculates:
        can = ", ".join(engine.speculates)
        raise InputError(f"{engine.name} {engine.version} is not simulated with this speculative.method", method, can)
    return method


def _queries(asked: Speculative, engine: EngineProfile) -> int:
    """Tokens of each decode in a step: the last one and a chain of drafts, or as many nodes of a tree."""
    k, chain = asked.num_speculative_tokens, asked.num_speculative_tokens + 1
    drafted, tree = asked.num_draft_tokens or chain, asked.topk > 1
    if tree and engine.policy != "sglang":
        raise InputError(f"{engine.name} is simulated with a chain of drafts", f"topk: {asked.topk}", "topk: 1")
    if tree and asked.method not in ("eagle", "eagle3"):
        raise InputError("trees of drafts are EAGLE's", f"topk: {asked.topk}", "topk: 1")
    if not tree and drafted != chain:
        raise InputError("without a tree num_draft_tokens is num_speculative_tokens + 1", drafted, str(chain))
    most = 1 + asked.topk + (k - 1) * asked.topk**2  # SGLang scores topk * topk candidates a level
    if not chain <= drafted <= most:
        nearest = str(min(max(drafted, chain), most))
        raise InputError(f"a tree of depth {k} has {chain} to {most} tokens to verify", drafted, nearest)
    return drafted


def _lookahead(engine: EngineProfile, method: Method, k: int) -> int:
    """vLLM: num_lookahead_tokens; TensorRT-LLM: get_num_extra_kv_tokens; SGLang reserves what the step needs."""
    if method == "ngram" or engine.policy == "sglang":
        return 0
    return k if engine.policy == "vllm-v1" else k - 1


def acceptance_rates(asked: Speculative) -> tuple[float, ...]:
    """By position, of all rounds. InputError where nothing or too much is said, or what cannot be."""
    k, given = asked.num_speculative_tokens, asked.acceptance
    if (given is None) == (asked.acceptance_length is None):
        rule = "speculative decoding needs a measured acceptance: one of acceptance and acceptance_length"
        both = None if given is None else "both"
        raise InputError(rule, both, "docs/speculative.md says where published ones are")
    if given is None:
        return _of_length(float(asked.acceptance_length or 0.0), k)
    if isinstance(given, list):
        return _of_positions(given, k)
    if not 0.0 <= given <= 1.0:
        raise InputError("speculative.acceptance is a probability", given, str(min(max(given, 0.0), 1.0)))
    return tuple(given ** (i + 1) for i in range(k))


def _of_positions(given: list[float], k: int) -> tuple[float, ...]:
    if len(given) != k:
        raise InputError(f"speculative.acceptance needs one rate for each of {k} drafts", len(given), f"{k} rates")
    for i, rate in enumerate(given):
        if not 0.0 <= rate <= 1.0:
            raise InputError("speculative.acceptance holds rates between 0 and 1", rate)
        if i and rate > given[i - 1]:
            rule = "a later draft is accepted only with all before it: speculative.acceptance never rises"
            raise InputError(rule, rate, f"at most {given[i - 1]}")
    return tuple(given)


def _of_length(length: float, k: int) -> tuple[float, ...]:
    """The i.i.d. model of that mean, (1 - p^(k+1)) / (1 - p), by bisection."""
    if not 1.0 <= length <= k + 1:
        nearest = str(min(max(length, 1.0), k + 1.0))
        raise InputError(f"speculative.acceptance_length is between 1 and {k + 1} tokens", length, nearest)
    low, high = 0.0, 1.0
    for _ in range(60):
        p = 0.5 * (low + high)
        low, high = (p, high) if sum(p**i for i in range(k + 1)) < length else (low, p)
    return tuple(high ** (i + 1) for i in range(k))
