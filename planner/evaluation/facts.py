"""Facts about a candidate that need no simulation: its full deployment, memory, command and notices."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

from calibration.bundles.bundle import Bundle
from catalogs.deployments.resolved import ResolvedDeployment
from catalogs.launch.arguments import served_weights
from catalogs.launch.command import engine_family, serve_command
from catalogs.launch.images import ContainerDevice, image_of
from planner.evaluation.closed_forms.bounds import memory_discard, rejected_words
from planner.evaluation.deployments import CandidateDeployments
from planner.evaluation.workload_statistics import WorkloadStatistics
from planner.problem.candidate import Candidate
from simulator.memory.plan import MemoryPlan

#: How to use the two commands of a disaggregated deployment.
_NOTE = "put the engine's router before both, which pairs them: `plan deploy` writes all of it"

#: Whose error is stated for separate pools, and what is known of their own. The medians are those of the 93 public
#: points of `python SCORE.py --disaggregated 9999` (docs/accuracy.md).
_ERROR_OF_POOLS: Final = (
    "the stated error is that of servers that do both prefill and decode; in public runs of separate pools the median "
    "error is 9 % for the time per output token and 28 % for the time to first token, which is mostly simulated too "
    "short"
)

#: The servers of each role in words.
_SERVERS: Final = {
    "encode": "encoder servers",
    "prefill": "prefill servers",
    "decode": "decode servers",
    "both": "language-model servers",
}

#: Roles of the servers besides those of `command`; a note "ROLE: COMMAND" has the command of each.
OTHER_SERVERS: Final = ("encode", "prefill")

#: How to use the commands of a deployment with an encoder pool.
_ENCODERS_NOTE: Final = (
    "put a proxy before them that sends each image, video or audio to an encoder server first: vLLM's "
    "disagg_epd_proxy.py (examples/disaggregated/disaggregated_encoder); SGLang's language-model servers do it "
    "themselves, with --encoder-urls and the addresses of the encoder servers. `plan deploy` writes all of it"
)


@dataclass(frozen=True, slots=True)
class CandidateFacts:
    """Facts about a candidate that need no simulation.

    Attributes:
        deployment: The deployment with every default filled in.
        memory: The memory of one accelerator, bytes.
        command: The command that starts a replica.
        command_notes: Notes on the command, one sentence each.
        notices: Notes on the candidate, one sentence each.
        checkpoint: The published checkpoint that the command serves; None for the model's own weights.
        versions: The versions planned, calibrated and started, in one sentence.
    """

    deployment: dict[str, object]
    memory: dict[str, object]
    command: str
    command_notes: tuple[str, ...] = ()
    notices: tuple[str, ...] = ()
    checkpoint: dict[str, object] | None = None
    versions: str = ""


@dataclass(frozen=True, slots=True)
class FactSheets:
    """Describes candidates without simulating them.

    Attributes:
        deployments: Resolves and compiles candidates.
        statistics: Statistics of the workload.
        notices: Notices about the workload.
    """

    deployments: CandidateDeployments
    statistics: WorkloadStatistics
    notices: tuple[str, ...]

    def of(self, candidate: Candidate) -> CandidateFacts:
        """Return the facts of a candidate; if it is disaggregated, those of its decode replicas and both commands."""
        found = self._of_pool(candidate.pools[-1].candidate)
        if candidate.encoders[0]:
            return self._behind_encoders(candidate, found)
        if not candidate.split:
            return found
        first, own = (
            serve_command(replace(self.deployments.compiled(pool).resolved, role=role, replicas=1))
            for role, pool in candidate.pools
        )
        counts = (
            f"start {candidate.split.replicas} of the prefill servers and {candidate.replicas} of the decode servers"
        )
        disaggregation = self.deployments.written(candidate).disaggregation
        assert disaggregation is not None
        return replace(
            found,
            deployment=found.deployment | {"disaggregation": disaggregation.model_dump()},
            command=own.command,
            command_notes=(*own.notes, f"prefill: {first.command}", counts, _NOTE),
            notices=(*found.notices, _ERROR_OF_POOLS),
        )

    def _behind_encoders(self, candidate: Candidate, found: CandidateFacts) -> CandidateFacts:
        """Return the facts of a candidate with an encoder pool, with the commands of all its servers."""
        commands = {
            role: serve_command(replace(self.deployments.compiled(pool).resolved, role=role, replicas=1))
            for role, pool in candidate.pools
        }
        own = commands.pop(candidate.pools[-1].role)
        counts = ", ".join(f"{pool.replicas} of the {_SERVERS[role]}" for role, pool in candidate.pools)
        others = (f"{role}: {each.command}" for role, each in commands.items())
        block, written, notices = found.deployment, self.deployments.written(candidate), found.notices
        if written.disaggregation is not None:
            block = block | {"disaggregation": written.disaggregation.model_dump()}
            notices = (*notices, _ERROR_OF_POOLS)
        notes = (*own.notes, *others, f"start {counts}", _ENCODERS_NOTE)
        return replace(found, deployment=block, command=own.command, command_notes=notes, notices=notices)

    def _of_pool(self, candidate: Candidate) -> CandidateFacts:
        resolved, memory = self.deployments.resolved(candidate), self.deployments.memory(candidate)
        notices = resolved.notices
        if memory_discard(memory, self.statistics.longest, candidate.states_length) is None:
            compiled = self.deployments.compiled(candidate)
            resolved, memory, notices = compiled.resolved, compiled.memory, compiled.notices
        serve = serve_command(resolved)
        too_long = "" if resolved.queueing.too_long == "truncate" else self._rejected(resolved)
        sentences = dict.fromkeys(filter(None, (too_long, *self._quality(candidate), *self.notices, *notices)))
        block = resolved.filled_in(self.deployments.written(candidate))
        block |= {"model": resolved.model.hf_id or resolved.model.name, "kv_blocks": memory.kv_blocks}
        return CandidateFacts(
            block,
            memory_block(memory, resolved),
            serve.command,
            serve.notes,
            tuple(sentences),
            _checkpoint(resolved),
            versions_words(resolved, self.deployments.bundle),
        )

    def _rejected(self, resolved: ResolvedDeployment) -> str:
        return rejected_words(resolved.limits.max_model_len, self.statistics.sample, resolved.side_tokens)

    def _quality(self, candidate: Candidate) -> Iterator[str]:
        """Yield a notice for each precision that may change the model's answers."""
        native, found = self.deployments.names.model.weight_dtype, candidate.weight_dtype
        if found != native:
            own = self.deployments.memory(replace(candidate, weight_dtype=native))
            discard = memory_discard(own, self.statistics.longest, candidate.states_length)
            why = f" instead of the model's own {native}"
            if discard is not None:
                why = f", because the model does not fit in its own {native} ({discard.reason})"
            yield f"{found} weights{why}: check the answer quality"
        if candidate.kv_dtype == "fp8":
            yield "fp8 KV cache: check the answer quality on long contexts"


def _checkpoint(resolved: ResolvedDeployment) -> dict[str, object] | None:
    """Return the published checkpoint that the engine serves as JSON types; None for the model's own weights."""
    if engine_family(resolved.engine.name) == "llama.cpp":  # it reads GGUF files
        return None
    _, found = served_weights(resolved)
    if found is None:
        return None
    return {
        "repository": found.repository,
        "of": found.of,
        "dtype": found.format.dtype,
        "source": found.source,
        "as_of": found.as_of.isoformat(),
        "requested": resolved.model.hf_id,
        "kind": "the requested model" if found.holds(resolved.model.hf_id) else found.kind,
    }


def versions_words(resolved: ResolvedDeployment, bundle: Bundle) -> str:
    """Return which engine version is planned, which was calibrated, and which would be started, in one sentence."""
    engine, maker = resolved.engine, ContainerDevice.of(resolved.hardware.accelerator).maker
    name, version = (str(bundle.provenance.get(key, "")) for key in ("engine", "engine_version"))
    calibrated = f"operators calibrated on {name} {version}".rstrip() if bundle.models and name else "not calibrated"
    image = image_of(engine_family(engine.name), engine.version, maker)
    return f"planned for {engine_family(engine.name)} {engine.version}, {calibrated}, to be started as {image}"


def memory_block(memory: MemoryPlan, resolved: ResolvedDeployment) -> dict[str, object]:
    """Return the memory block of an answer: the memory of one accelerator, bytes."""
    return {
        "device_bytes": resolved.hardware.accelerator.memory_bytes,
        "usable_bytes": memory.budget_bytes,
        "weights_bytes": memory.weights_bytes,
        "activation_bytes": memory.activation_bytes,
        "non_torch_bytes": memory.non_torch_bytes,
        "kv_bytes": memory.kv_bytes,
        "kv_blocks": memory.kv_blocks,
        "kv_tokens_per_replica": memory.max_concurrency_tokens,
        "equation": memory.equation,
        "fits": memory.fits,
        "why": memory.why or None,
    }
