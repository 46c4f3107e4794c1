"""The parts of a layer: the weights of each, its KV cache per token and its state per sequence.

A layer has a mixer (`Mixer`: attention or a recurrent state) and a feed-forward block (`FeedForward`). Each kind of
either is one class that answers every question which the model alone decides; a new kind is a new class here.

Every count is in numbers, not bytes. `linear_params` are the weights of matrix products, which quantisation may shrink;
`small_params` are biases, norms and convolution taps, which no checkpoint quantises. `hidden` is the hidden_size.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

from pydantic import ConfigDict, Field, NonNegativeFloat, NonNegativeInt, PositiveInt

from catalogs.models.mixers import PARTS, Attention, Mixer, Part


class FeedForward(ABC):
    """The feed-forward block of a layer."""

    __slots__ = ()
    __pydantic_config__ = ConfigDict(extra="forbid")

    #: Each token runs through some of the block's experts only.
    routed: ClassVar[bool] = False

    @property
    @abstractmethod
    def words(self) -> str:
        """The kind in the field's words, for example "mixture of 128 experts"."""

    @abstractmethod
    def part_params(self, hidden: int) -> dict[Part, int]:
        """Return the weights of the matrix products of one layer, by part."""

    def linear_params(self, hidden: int) -> int:
        """Return the weights of the matrix products of one layer."""
        return sum(self.part_params(hidden).values())

    @abstractmethod
    def small_params(self, hidden: int) -> int:
        """Return the weights of one layer that no checkpoint quantises."""

    def idle_params(self, hidden: int) -> int:  # noqa: ARG002 - signature of the kinds that route
        """Return the weights that one token does not use: the experts that it is not routed to."""
        return 0

    def with_routing_skew(self, skew: float) -> FeedForward:  # noqa: ARG002 - signature of the kinds that route
        """Return the block with this skew of its router; a block without a router unchanged."""
        return self

    @property
    @abstractmethod
    def active_intermediate_size(self) -> int:
        """Return the inner width of the block that one token passes through."""

    @abstractmethod
    def shared_widths(self, expert_parallel: bool) -> dict[Part, int]:
        """Return the widths that tensor ranks share, by part; expert_parallel keeps experts whole."""

    @property
    def routed_experts(self) -> int:
        """Return the number of experts among which a router chooses for each token."""
        return 0

    @abstractmethod
    def indivisible_sizes(self, tp: int, expert_parallel: bool) -> list[str]:
        """Return descriptions of the sizes that `tp` ranks cannot share evenly; expert_parallel keeps experts whole."""


@dataclass(frozen=True, slots=True)
class Mlp(FeedForward):
    """A feed-forward block whose weights all tokens use: two matrices, or three with a gate."""

    intermediate_size: PositiveInt
    gated: bool = True
    bias: bool = False

    @property
    def words(self) -> str:
        """Return what kind of block it is, in words."""
        return "dense feed-forward block"

    def part_params(self, hidden: int) -> dict[Part, int]:
        """Return the weights of the block's two or three (gated) matrices."""
        return {"mlp": (3 if self.gated else 2) * hidden * self.intermediate_size}

    def small_params(self, hidden: int) -> int:
        """Return the number of bias weights, which are zero without biases."""
        return ((2 if self.gated else 1) * self.intermediate_size + hidden) * self.bias

    @property
    def active_intermediate_size(self) -> int:
        """Return the width of the block."""
        return self.intermediate_size

    def shared_widths(self, expert_parallel: bool) -> dict[Part, int]:  # noqa: ARG002 - a block has no experts
        """Return the width of the block."""
        return {"mlp": self.intermediate_size}

    def indivisible_sizes(self, tp: int, expert_parallel: bool) -> list[str]:  # noqa: ARG002 - a block has no experts
        """Return the width where `tp` does not divide it."""
        return [f"the {self.intermediate_size} feed-forward width"] if self.intermediate_size % tp else []


@dataclass(frozen=True, slots=True)
class Moe(FeedForward):
    """A mixture of experts; the shared expert (if any) runs for every token."""

    routed: ClassVar[bool] = True

    n_experts: Annotated[PositiveInt, Field(alias="experts")]
    experts_per_token: PositiveInt
    expert_intermediate_size: Annotated[PositiveInt, Field(alias="intermediate_size")]
    shared_intermediate_size: NonNegativeInt = 0  # summed over shared experts
    gated: bool = True
    bias: bool = False
    #: The input width of routed experts (latent MoE of Nemotron-3); None: hidden_size.
    expert_hidden_size: PositiveInt | None = None
    #: The skew of the router (calibration/operators/expert_loads.py): 0 is balanced. None: not known.
    routing_skew: NonNegativeFloat | None = None
    #: A product with one column and a sigmoid scale the output of the shared expert (Qwen2-MoE, Qwen3-Next, Qwen3.5).
    shared_gate: bool = False
    #: The router's weights are stored in fp32, and engines multiply them with hidden states in fp32 (MiniMax-M2).
    fp32_router: bool = False

    @property
    def words(self) -> str:
        """The block in words, with the number of its experts."""
        return f"mixture of {self.n_experts} experts"

    def with_routing_skew(self, skew: float) -> Moe:
        """Return the block with this skew of its router."""
        return replace(self, routing_skew=skew)

    @property
    def routed_experts(self) -> int:
        """Return the number of experts among which the router chooses."""
        return self.n_experts

    @property
    def matrices(self) -> int:
        """Return the number of matrices per expert."""
        return 3 if self.gated else 2

    def expert_params(self, hidden: int) -> int:
        """Return the weights of one routed expert."""
        return self.matrices * (self.expert_hidden_size or hidden) * self.expert_intermediate_size

    def routed_params(self, hidden: int) -> int:
        """Return the weights of all routed experts."""
        return self.n_experts * self.expert_params(hidden)

    def shared_params(self, hidden: int) -> int:
        """Return the weights of the shared experts and of the projections into and out of a latent width."""
        latent = 2 * hidden * self.expert_hidden_size if self.expert_hidden_size else 0
        return self.matrices * hidden * self.shared_intermediate_size + latent

    def part_params(self, hidden: int) -> dict[Part, int]:
        """Return the weights of the routed and of the shared experts."""
        return {"experts": self.routed_params(hidden), "shared_experts": self.shared_params(hidden)}

    def expert_biases(self, hidden: int) -> int:
        """Return the biases of one routed expert."""
        return ((self.matrices - 1) * self.expert_intermediate_size + hidden) * self.bias

    def small_params(self, hidden: int) -> int:
        """Return the weights of the router and the biases."""
        return hidden * self.n_experts + self.n_experts * (self.bias + self.expert_biases(hidden))

    def idle_params(self, hidden: int) -> int:
        """Return the weights of the routed experts that one token does not use."""
        return (self.n_experts - self.experts_per_token) * (self.expert_params(hidden) + self.expert_biases(hidden))

    @property
    def active_intermediate_size(self) -> int:
        """Return the total width of the experts that one token passes through."""
        return self.experts_per_token * self.expert_intermediate_size + self.shared_intermediate_size

    def shared_widths(self, expert_parallel: bool) -> dict[Part, int]:
        """Return the width of the shared experts, and that of an expert where experts are cut."""
        cut: dict[Part, int] = {} if expert_parallel else {"experts": self.expert_intermediate_size}
        return cut | {"shared_experts": self.shared_intermediate_size}

    def indivisible_sizes(self, tp: int, expert_parallel: bool) -> list[str]:
        """Return the width of an expert where experts are cut and `tp` does not divide it."""
        if expert_parallel or not self.expert_intermediate_size % tp:
            return []
        return [f"the {self.expert_intermediate_size} expert width"]


@dataclass(frozen=True, slots=True)
class LayerGroup:
    """`count` identical layers; hybrid models have layers without a mixer or without a feed-forward block (None)."""

    count: int
    mixer: Mixer | None
    ffn: FeedForward | None
    cross_attention: bool = False  # a second `mixer` attends to the encoder's output

    @property
    def n_mixers(self) -> int:
        """Return the number of mixers per layer."""
        return (self.mixer is not None) * (2 if self.cross_attention else 1)

    @property
    def words(self) -> str:
        """What a layer consists of, for example "GQA, mixture of 128 experts"."""
        mixer = "no attention" if self.mixer is None else self.mixer.words
        block = "no feed-forward block" if self.ffn is None else self.ffn.words
        return ", ".join((mixer, *(["cross-attention"] if self.cross_attention else []), block))

    @property
    def plain_attention(self) -> Attention | None:
        """Return the mixer where every token has its own keys and values (MHA, GQA, MQA); None for any other mixer.

        It serves features that are defined for this kind only: LoRA, encoders, EAGLE heads, vLLM's cache groups.
        """
        return self.mixer if isinstance(self.mixer, Attention) else None

    @property
    def dense_block(self) -> Mlp | None:
        """Return the feed-forward block where every token uses all of it; None for any other block."""
        return self.ffn if isinstance(self.ffn, Mlp) else None

    def part_params(self, hidden: int) -> dict[Part, int]:
        """Return the linear weights of one layer by part; parts that the layer lacks are 0."""
        sizes: dict[Part, int] = dict.fromkeys(PARTS, 0)
        if self.mixer is not None:
            sizes[self.mixer.part] = self.n_mixers * self.mixer.linear_params(hidden)
        if self.ffn is not None:
            sizes.update(self.ffn.part_params(hidden))
        return sizes

    def small_params(self, hidden: int, norm_size: int) -> int:
        """Return the weights of one layer that are never quantised: biases, router, and one norm per block."""
        mixer = self.n_mixers * (self.mixer.small_params(hidden) + norm_size) if self.mixer is not None else 0
        return mixer + (self.ffn.small_params(hidden) + norm_size if self.ffn is not None else 0)

    def params(self, hidden: int, norm_size: int) -> int:
        """Return all weights of one layer."""
        return sum(self.part_params(hidden).values()) + self.small_params(hidden, norm_size)

    def idle_params(self, hidden: int) -> int:
        """Return the weights of one layer that one token does not use."""
        return self.ffn.idle_params(hidden) if self.ffn is not None else 0

    def indivisible_sizes(self, tp: int, expert_parallel: bool = False) -> list[str]:
        """Return descriptions of the sizes that `tp` ranks cannot share evenly."""
        mixer = self.mixer.indivisible_sizes(tp) if self.mixer is not None else []
        return mixer + (self.ffn.indivisible_sizes(tp, expert_parallel) if self.ffn is not None else [])
