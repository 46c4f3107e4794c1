"""The paths of requests through a cluster: encoders for those with items, then one stage, or prefill and decode."""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set

from catalogs.errors import InputError
from simulator.cluster.disaggregation import DisaggregationPolicy
from simulator.cluster.routing_stage import RoutingStage, RunningPool
from simulator.core.request import Request
from simulator.engine.replica import Replica


class RequestPaths:
    """The routing stages of the models of a run, and the path of each request through them.

    A model has one stage, or one of prefill and one of decode replicas, and one of encoders before them if it has an
    encoder pool.
    """

    def __init__(
        self,
        pools: Sequence[RunningPool],
        models: Sequence[int] | None,
        input_tokens: Sequence[int],
        hand_over: DisaggregationPolicy,
        new_stage: Callable[[], RoutingStage],
    ) -> None:
        """Create the stages, without replicas.

        Args:
            pools: The pools of the run.
            models: The model of each request; None: all want model 0.
            input_tokens: The length of each prompt.
            hand_over: Decides which prompts a decode replica computes itself.
            new_stage: Returns a routing stage with a router of its own.

        Raises:
            InputError: A model lacks a pool that another of its pools needs.
        """
        self._pools, self._models, self._input_tokens, self._hand_over = pools, models, input_tokens, hand_over
        numbers = range(1 + max(running.pool.model for running in pools))
        roles = [{running.pool.role for running in pools if running.pool.model == model} for model in numbers]
        self._paths = [[new_stage() for _ in range(_n_stages(of_model))] for of_model in roles]
        self._encoders = [new_stage() if "encode" in of_model else None for of_model in roles]
        is_single = models is None and len(self._paths[0]) == 1 and self._encoders[0] is None
        self._only = self._paths[0] if is_single else None  # of all requests

    @property
    def stages(self) -> list[RoutingStage]:
        """Return all routing stages: those of encoders first, then those of each model."""
        return [*(stage for stage in self._encoders if stage), *(stage for path in self._paths for stage in path)]

    def model(self, index: int) -> int:
        """Return the number of the model that a request wants."""
        return self._models[index] if self._models else 0

    def encoders(self, index: int) -> RoutingStage | None:
        """Return the stage of the encoder pool of a request's model; None if the model has none."""
        return self._encoders[self.model(index)]

    def after_encoders(self, index: int) -> list[RoutingStage]:
        """Return the stages of a request whose items, if it has any, are encoded.

        There is one stage, or a prefill and a decode stage unless the request stays with a decode replica.
        """
        path = self._paths[self.model(index)]
        if len(path) > 1 and self._hand_over.stays(self._input_tokens[index], path[0].replicas):
            return path[-1:]
        return path

    def whole(self, request: Request) -> list[RoutingStage]:
        """Return all stages of a request that arrives; one with items passes the encoder pool of its model first."""
        path = self._only or self.after_encoders(request.index)
        if request.media and (encoders := self.encoders(request.index)) is not None:
            return [encoders, *path]
        return path

    def stage_of(self, replica: Replica) -> RoutingStage:
        """Return the stage that sends requests to a replica."""
        pool = self._pools[replica.pool].pool
        if pool.role == "encode":
            stage = self._encoders[pool.model]
            assert stage is not None
            return stage
        return self._paths[pool.model][-1 if pool.role == "decode" else 0]


def _n_stages(roles: Set[str]) -> int:
    """Return the number of stages after the encoders of a model with pools of these roles.

    Raises:
        InputError: They lack a role that another one needs.
    """
    if roles == {"encode"}:
        raise InputError("an encoder pool needs replicas that run the language model", "encode", "both")
    if ("prefill" in roles) != ("decode" in roles):
        rule = "a model needs both prefill and decode pools, or neither"
        raise InputError(rule, ", ".join(sorted(roles)), "prefill, decode")
    return 2 if "decode" in roles else 1
