"""What each rank of a network's job executes, and the memory that it needs, without the times of its kernels.

Under sequence parallelism a rank holds a share of the tokens. Products and memory-bound kernels shrink with it.
Ulysses exchanges queries, keys, values and the output of each attention, so that a rank attends with a share of the
heads (arXiv 2309.14509). In a ring, a rank keeps its queries and passes keys and values on, while it computes on what
it has (arXiv 2310.01889). Only stages that a job runs once in each step of its sampler are split; the others (text
encoders, the decoder of a latent image) run whole, as they do in xDiT and in the Wan repositories.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import ceil
from typing import Final

from catalogs.errors import InputError
from catalogs.networks.network import NeuralNetwork, SizedOperator, SizedStage
from catalogs.networks.shapes import AttentionShape, ConvolutionShape, ElementShape, GemmShape, Shape
from simulator.networks.execution import Execution, Parallelism
from simulator.networks.written_attention import scores_bytes

#: The size that counts the steps of a sampler: stages whose runs depend on it are those that a job repeats.
STEPS: Final = "steps"

#: The size that is 2 where a job runs its denoiser with and without its prompt.
GUIDANCE: Final = "guidance"

#: Memory of a process outside torch's allocator on an accelerator that is alone, and on one of several (communicators):
#: llm-d's capacity rule for cards of 80 GB, as the profile of vLLM has it (catalogs/data/engines/vllm.yaml).
CONTEXT_BYTES: Final = 0.15 * 2**30

CONTEXT_BYTES_PARALLEL: Final = 0.6 * 2**30


def repeated_stages(network: NeuralNetwork) -> frozenset[str]:
    """Return the names of the stages whose runs depend on the steps of the sampler, also by way of a derived size."""
    counting = {STEPS}
    for derived in network.derived:
        if counting & {*derived.first.names, *derived.second.names}:
            counting.add(derived.name)
    return frozenset(stage.name for stage in network.stages if counting & {*stage.runs.names})


def check_split(
    network: NeuralNetwork, split: Parallelism, repeats: bool, job: Mapping[str, int] | None = None
) -> None:
    """Check that a job can be split as required.

    Raises:
        InputError: The network runs in one pass, or its job has no second pass of guidance.
    """
    if split.ranks > 1 and not repeats:
        hint = "give each accelerator jobs of its own"
        raise InputError(f"{network.name} runs in one pass, which is not split over ranks", split.ranks, "1", hint=hint)
    if network.sizes_of(job).get(GUIDANCE, 1) % split.guidance:
        raise InputError("ranks share the passes of classifier-free guidance evenly", split.guidance, "1")


def stage_executions(network: NeuralNetwork, execution: Execution) -> list[Execution]:
    """Return how each stage of a network is executed: the stages that a job repeats as stated, the others whole."""
    repeated = repeated_stages(network)
    return [
        execution if stage.name in repeated else _of_single_stage(execution, stage.name, bool(repeated))
        for stage in network.stages
    ]


def _of_single_stage(execution: Execution, name: str, others_repeat: bool) -> Execution:
    """Return how a stage that a job does not repeat is executed: whole, and in 16 bits where others have 8.

    Where others repeat, quantisation is applied to those; text encoders and decoders keep their format.
    """
    precision = execution.precision
    if others_repeat and precision in ("fp8", "int8"):
        precision = "bf16"
    stated = (stated for start, stated in execution.stage_precision if name.startswith(start))
    whole = replace(execution, precision=next(stated, precision))
    return replace(whole, parallelism=Parallelism(), weight_precision=None, attended=1.0) if others_repeat else whole


def _attended(op: SizedOperator, share: float) -> SizedOperator:
    """Return an operator whose self-attention, if it is one, attends to a share of its keys."""
    shape = op.shape
    if share == 1.0 or not isinstance(shape, AttentionShape) or shape.queries != shape.keys:
        return op
    return replace(op, shape=replace(shape, keys=max(round(share * shape.keys), 1)))


def on_rank(stage: SizedStage, execution: Execution) -> SizedStage:
    """Return a stage with the operators that one rank executes.

    Raises:
        InputError: The heads cannot be divided among the ranks.
    """
    attended = (_attended(op, execution.attended) for op in stage.operators)
    return replace(stage, operators=tuple(sequence_shard(op, execution.parallelism) for op in attended))


def sequence_shard(op: SizedOperator, split: Parallelism) -> SizedOperator:
    """Return the share of an operator that one rank executes.

    Raises:
        InputError: The heads cannot be divided among the ranks.
    """
    ranks = split.sequence
    if ranks == 1:
        return op
    shape: Shape = op.shape
    times = op.times
    match shape:
        case GemmShape():
            shape = replace(shape, m=ceil(shape.m / ranks))
        case AttentionShape():
            if shape.heads % split.ulysses:
                raise InputError("Ulysses divides the heads among its ranks", split.ulysses, str(shape.heads))
            long = shape.queries >= ranks
            shape = replace(
                shape,
                heads=shape.heads // split.ulysses,
                kv_heads=max(shape.kv_heads // split.ulysses, 1),
                queries=ceil(shape.queries / split.ring) if long else shape.queries,
                keys=ceil(shape.keys / split.ring) if long and split.ring > 1 else shape.keys,
            )
            times *= split.ring if long else 1
        case ConvolutionShape():
            shape = replace(shape, output=(ceil(shape.output[0] / ranks), *shape.output[1:]))
        case ElementShape():
            shape = replace(shape, elements=ceil(shape.elements / ranks))
    return replace(
        op, shape=shape, times=times, read_bytes=op.read_bytes // ranks, written_bytes=op.written_bytes // ranks
    )


def activation_bytes(on_rank: SizedStage, split: Parallelism, execution: Execution) -> float:
    """Return the bytes of activations of one rank: the largest that live at once, or the scores of an attention."""
    scores = (scores_bytes(op, execution) for op in on_rank.operators)
    return max([on_rank.peak_activation_bytes / split.sequence, *scores])


def rank_memory_bytes(
    executions: Sequence[Execution], parameters: Sequence[int], activations_bytes: Sequence[float]
) -> float:
    """Return the peak memory of one rank: weights that stay, the largest activations, and what torch does not count.

    Args:
        executions: How each stage is executed.
        parameters: Parameters of each stage.
        activations_bytes: Bytes of activations of each stage on one rank.
    """
    split = max((execution.parallelism for execution in executions), key=lambda split: split.ranks)
    shards = split.ranks if split.shard_weights else 1
    weights = [n * e.weight_bytes / shards for n, e in zip(parameters, executions, strict=True)]
    needs = [w + a for w, a in zip(weights, activations_bytes, strict=True)]
    peak = max(needs) if executions[0].offload else sum(weights) + max(activations_bytes)
    return peak + (CONTEXT_BYTES_PARALLEL if split.ranks > 1 else CONTEXT_BYTES)


def job_memory_bytes(network: NeuralNetwork, execution: Execution, job: Mapping[str, int] | None = None) -> float:
    """Return the peak memory of one rank in a job, which `price_job` states too, from closed forms.

    Args:
        network: The network.
        execution: How the network is executed.
        job: Sizes of the job; those left out have their defaults.

    Raises:
        InputError: A size or a degree is invalid, or heads cannot be divided among the ranks.
    """
    check_split(network, execution.parallelism, bool(repeated_stages(network)), job)
    sizes, executions = network.sizes_of(job), stage_executions(network, execution)
    activations = []
    for stage, own in zip(network.stages, executions, strict=True):
        attention = stage.at(sizes, own.activation_bytes, "attention")
        activations.append(activation_bytes(on_rank(attention, own), own.parallelism, own))
    return rank_memory_bytes(executions, [stage.parameters for stage in network.stages], activations)
