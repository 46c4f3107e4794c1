"""One point of the search space: what the planner may still choose about a deployment."""

from __future__ import annotations

from dataclasses import astuple, dataclass

from catalogs.deployment import Deployment, Layout


@dataclass(frozen=True, slots=True, order=True)
class Candidate:
    """A complete deployment of one model on one engine; `hardware` may be a part of what the user named."""

    hardware: str
    replicas: int
    tensor_parallel: int
    pipeline_parallel: int
    data_parallel: int
    expert_parallel: bool
    weight_dtype: str
    kv_dtype: str
    max_num_seqs: int
    max_num_batched_tokens: int

    @property
    def accelerators(self) -> int:
        return self.replicas * self.layout.accelerators

    @property
    def layout(self) -> Layout:
        return Layout(self.tensor_parallel, self.pipeline_parallel, self.data_parallel, self.expert_parallel)

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

    def deployment(self, model: str, engine: str) -> Deployment:
        """The deployment.yaml of this candidate, every choice written out."""
        return Deployment(
            model=model,
            engine=engine,
            hardware=self.hardware,
            replicas=self.replicas,
            tensor_parallel=self.tensor_parallel,
            pipeline_parallel=self.pipeline_parallel,
            data_parallel=self.data_parallel,
            expert_parallel=self.expert_parallel,
            weight_dtype=self.weight_dtype,
            kv_dtype=self.kv_dtype,
            max_num_seqs=self.max_num_seqs,
            max_num_batched_tokens=self.max_num_batched_tokens,
        )
