"""One point of the search space: what the planner may still choose about a deployment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, astuple, dataclass
from typing import Any

from catalogs.deployment import Deployment, Layout


@dataclass(frozen=True, slots=True, order=True)
class Candidate:
    """A complete deployment of one model on one engine; `hardware` may be a part of what the user named."""

    hardware: str
    replicas: int
    layout: Layout
    weight_dtype: str
    kv_dtype: str
    max_num_seqs: int
    max_num_batched_tokens: int

    @property
    def accelerators(self) -> int:
        return self.replicas * self.layout.accelerators

    @property
    def placement(self) -> tuple[object, ...]:
        """Everything but the batching limits."""
        return (self.hardware, self.replicas, *self.ranks)

    @property
    def ranks(self) -> tuple[object, ...]:
        """One replica without its batching limits: what decides memory for weights and the time of a given step."""
        return (*astuple(self.layout), self.weight_dtype, self.kv_dtype)

    @property
    def family(self) -> tuple[object, ...]:
        """What makes two plans different in kind (parallelism and weights), for choosing alternatives."""
        return (self.hardware, *astuple(self.layout), self.weight_dtype)

    @property
    def words(self) -> str:
        """ "2 replicas x TP4, fp8 weights, bf16 KV, 256 sequences, 8192 batched tokens"."""
        count = "1 replica" if self.replicas == 1 else f"{self.replicas} replicas"
        return (
            f"{count} x {self.layout.words}, {self.weight_dtype} weights, {self.kv_dtype} KV, "
            f"{self.max_num_seqs} sequences, {self.max_num_batched_tokens} batched tokens"
        )

    @classmethod
    def of(cls, stored: Mapping[str, Any]) -> Candidate:
        """The candidate that `dataclasses.asdict` was taken of."""
        return cls(**{**stored, "layout": Layout(**stored["layout"])})

    def deployment(self, model: str, engine: str) -> Deployment:
        """The deployment.yaml of this candidate, every choice written out."""
        return Deployment(
            model=model,
            engine=engine,
            hardware=self.hardware,
            replicas=self.replicas,
            **asdict(self.layout),
            weight_dtype=self.weight_dtype,
            kv_dtype=self.kv_dtype,
            max_num_seqs=self.max_num_seqs,
            max_num_batched_tokens=self.max_num_batched_tokens,
        )
