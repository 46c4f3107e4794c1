"""The operators that one engine step runs on one rank, as a function of the contents of its batch.

There are four groups, by what they depend on: all tokens of the step (projections, norms, experts, collectives),
sequences that need logits (output projection, sampling), decodes with their contexts (attention), and prompt chunks
(attention). Counts may be numbers or numpy arrays and broadcast, so one call prices a whole table. The classes of a
layer's mixer (`simulator.layers.attention`) and feed-forward block (`simulator.layers.feed_forward`) decide what the
layer contributes.

There are no separate quantise kernels: an FP8 or FP4 `Gemm` takes a 16-bit input, and its measured rows include the
quantisation of that input (the public tables time vLLM's whole linear layer). torch.compile would fuse the quantisation
into the preceding norm or activation, so it is counted once, never twice. All-reduce and norm are separate because vLLM
fuses them only by an option.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from calibration.operators.cost import CostSource
from calibration.operators.operators import (
    GREEDY_BYTES_PER_LOGIT,
    SAMPLING_BYTES_PER_LOGIT,
    SORT_BYTES_PER_LOGIT,
    Collective,
    Elementwise,
    Gemm,
    Num,
)
from calibration.operators.roofline import ACTIVATION_BYTES as ACT
from catalogs.arrays import FloatArray
from catalogs.deployments.resolved import ResolvedDeployment
from simulator.core.batch import BatchShape
from simulator.layers.attention import JoinsDecodes, sharded_mixer
from simulator.layers.encoder import cross_decode_calls, cross_prefill_calls, cross_token_calls, encoder_calls
from simulator.layers.feed_forward import sharded_feed_forward
from simulator.layers.operator_call import OperatorCall, all_reduce_calls, gemm_call
from simulator.layers.shard import Shard

_AFTER_ALL_REDUCE = frozenset({"input_norm", "post_norm", "final_norm"})

_PROMPT_TOKENS = 1024  # arbitrary: the number of launches does not depend on it


@dataclass(frozen=True, slots=True)
class StepCalls:
    """The operators of the steps of a deployment, by what they depend on: tokens, sequences or contexts.

    All of them are those of one rank and one microbatch. Only this class decides which kinds of calls a step of this
    engine has. The tables behind a run's timing and the analyses of steps all read it. `joins_decodes` states, by head
    size and KV data type, whether decodes in a step with prompts run in the kernel of the prompts.
    """

    shard: Shard
    fuses_norms: bool
    joins_decodes: JoinsDecodes

    @classmethod
    def of(cls, resolved: ResolvedDeployment, source: CostSource) -> StepCalls:
        """Return the operators of a deployment, with the kernels that `source` knows for its engine."""
        return cls(Shard.of(resolved), resolved.engine.fuses_norms, source.joins_decodes)

    def rank(self, tokens: Num, graph: bool) -> list[OperatorCall]:
        """Return the operators that depend on the tokens of an attention rank, in a CUDA graph or outside."""
        return (fused_norm_calls if self.fuses_norms else token_calls)(self.shard, tokens, graph)

    def group(self, tokens: Num, graph: bool) -> list[OperatorCall]:
        """Return the operators that depend on the tokens of an expert group; empty in dense models."""
        return expert_calls(self.shard, tokens, graph)

    def logits(self, sequences: Num) -> list[OperatorCall]:
        """Return the operators that depend on the sequences that need a next token."""
        return logits_calls(self.shard, sequences)

    def decode(self, sequences: Num, mean_context: Num, max_context: Num) -> list[OperatorCall]:
        """Return the attention of decodes in a step without prompts."""
        return decode_calls(self.shard, sequences, mean_context, max_context)

    def mixed_decode(self, sequences: Num, mean_context: Num, max_context: Num) -> list[OperatorCall]:
        """Return the attention of decodes in a step with prompts."""
        return mixed_decode_calls(self.shard, sequences, mean_context, max_context, self.joins_decodes)

    def prefill(self, chunks: Num, chunk_tokens: Num, prior: Num) -> list[OperatorCall]:
        """Return the attention of prompt chunks, each after `prior` earlier tokens."""
        return prefill_calls(self.shard, chunks, chunk_tokens, prior)


def step_calls(shard: Shard, shape: BatchShape) -> list[OperatorCall]:
    """Return the operators of one step with this shape, without padding, on one rank that holds the whole batch."""
    n, c = shape.decodes, shape.prefill_chunks
    calls = token_calls(shard, shape.tokens) + expert_calls(shard, shape.tokens * shard.dp)
    if shape.logits:
        calls += logits_calls(shard, shape.logits + n * (shard.scored - 1))
    if n:
        calls += decode_calls(shard, n, shape.decode_context_sum / n, shape.decode_context_max)
    if c:
        calls += prefill_calls(shard, c, shape.chunk_tokens, shape.prior_tokens)
    return calls


def token_calls(shard: Shard, tokens: Num, graph: bool = True) -> list[OperatorCall]:
    """Return the operators of an attention rank that depend on the number of its tokens."""
    hidden = shard.model.hidden_size
    calls = [OperatorCall("embedding", "elementwise", 1, Elementwise("embedding", tokens, 2 * hidden * ACT))]
    calls += all_reduce_calls(shard, "embedding_all_reduce", 1, tokens, graph)
    for group in shard.model.groups:
        if mixer := sharded_mixer(shard, group):
            calls += mixer.token_calls(tokens, graph)
        if group.cross_attention:
            calls += cross_token_calls(shard, group, tokens, graph)
        if block := sharded_feed_forward(shard, group):
            calls += block.token_calls(tokens, graph)
    calls.append(OperatorCall("final_norm", "elementwise", 1, Elementwise("norm", tokens, 4 * hidden * ACT)))
    if shard.pp > 1:  # hidden states and residual go to the next stage
        send = Collective("send_recv", tokens * (2 * hidden * ACT), 2, graph)
        calls.append(OperatorCall("stage_send", "collective", shard.pp - 1, send, stride=shard.tp * shard.cp))
    return calls


def fused_norm_calls(shard: Shard, tokens: Num, graph: bool = True) -> list[OperatorCall]:
    """Return the `token_calls` of engines whose all-reduce kernel also adds the residual and normalises.

    The fusion applies to the sizes that run in CUDA graphs (TensorRT-LLM: AllReduceFusionOp.RESIDUAL_RMS_NORM). Larger
    messages go through NCCL, followed by a separate norm.
    """
    fused = _AFTER_ALL_REDUCE if graph and shard.tp > 1 else frozenset()
    return [call for call in token_calls(shard, tokens, graph) if call.name not in fused]


def expert_calls(shard: Shard, tokens: Num, graph: bool = True) -> list[OperatorCall]:
    """Return the routed experts over all tokens of the data-parallel group, with the exchange before and after."""
    blocks = (sharded_feed_forward(shard, group) for group in shard.model.groups)
    return [call for block in blocks if block for call in block.expert_calls(tokens, graph)]


def logits_calls(shard: Shard, sequences: Num) -> list[OperatorCall]:
    """Return the output projection and sampling of the sequences that get a token in this step."""
    m = shard.model
    calls = [gemm_call("lm_head", 1, Gemm(sequences, shard.vocab, m.hidden_size, shard.plain_dtype))]
    if shard.tp > 1:
        gather = Collective("all_gather", sequences * (m.vocab_size * ACT), shard.tp, graph=False)
        calls.append(OperatorCall("logits_all_gather", "collective", 1, gather))
    if shard.sorts_logits:
        order = Elementwise("sort", sequences, m.vocab_size * SORT_BYTES_PER_LOGIT)
        calls.append(OperatorCall("sort_logits", "elementwise", 1, order))
    kind, per_logit = (
        ("greedy", GREEDY_BYTES_PER_LOGIT) if shard.sampling == "greedy" else ("sampling", SAMPLING_BYTES_PER_LOGIT)
    )
    sampling = Elementwise(kind, sequences, m.vocab_size * per_logit)
    return [*calls, OperatorCall("sampling", "elementwise", 1, sampling)]


def decode_calls(shard: Shard, sequences: Num, mean_context: Num, max_context: Num) -> list[OperatorCall]:
    """Return the attention of decodes. Contexts are per sequence, before any window.

    If each decode brings several tokens (drafts), a kernel reads the sequence's cache once for all of them, as it does
    for the heads of a group. The cost model counts them as additional heads (FlashAttention and FlashInfer pack both
    alike).
    """
    n, mean, longest = _floats(sequences, mean_context, max_context)
    calls: list[OperatorCall] = []
    for group in shard.model.groups:
        if mixer := sharded_mixer(shard, group):
            calls += mixer.decode_calls(n, mean, longest)
        if group.cross_attention:
            calls += cross_decode_calls(shard, group, n)
    return calls


def mixed_decode_calls(
    shard: Shard, sequences: Num, mean_context: Num, max_context: Num, joins: JoinsDecodes
) -> list[OperatorCall]:
    """Return the attention of decodes in a step that also has prefill.

    If one kernel of the engine takes both at once (`joins`, by head size and KV data type), a decode is a prompt chunk
    of one token whose keys are not split over the device.
    """
    n, mean, longest = _floats(sequences, mean_context, max_context)
    calls: list[OperatorCall] = []
    for group in shard.model.groups:
        if mixer := sharded_mixer(shard, group):
            calls += mixer.mixed_decode_calls(n, mean, longest, joins)
        if group.cross_attention:
            calls += cross_decode_calls(shard, group, n)
    return calls


def prefill_calls(shard: Shard, chunks: Num, chunk_tokens: Num, mean_context: Num) -> list[OperatorCall]:
    """Return the attention of `chunks` prompt chunks of `chunk_tokens` new tokens after `mean_context` earlier ones."""
    c, q, x = _floats(chunks, chunk_tokens, mean_context)
    calls: list[OperatorCall] = []
    for group in shard.model.groups:
        if mixer := sharded_mixer(shard, group):
            calls += mixer.prefill_calls(c, q, x)
        if group.cross_attention:
            calls += cross_prefill_calls(shard, group, c, q)
    return [*calls, *encoder_calls(shard, c + 0.0 * q + 0.0 * x)] if shard.model.is_encoder_decoder else calls


def step_launches(shard: Shard) -> int:
    """Return the kernels of one eager step with prefill on one rank, which the host launches one by one from Python.

    Launching them may take the host longer than running them takes the device. A captured decode step is one launch. A
    step beyond the captured sizes, or one with prefill where an engine captures decodes only, is launched layer by
    layer and takes as long as the slower of host and device.

    The counts (`OperatorCall.kernels`) follow the sources of the engines. A quantised product has a kernel that
    quantises its input. Experts sort and align tokens, multiply twice with an activation between, and add up.
    Multi-head latent attention is five products, two norms, rotation, two copies, a cache write and the attention
    itself. A gated delta rule's scan has 18 kernels: the gates' small product, a flag, the convolution and the copy
    before it, three contiguous copies, gates, two norms, then cumulated decays, products of the keys, a triangular
    solve (a fill and two kernels), its application, states and outputs (SGLang, layers/attention/fla/chunk.py and
    hybrid_linear_attn_backend.py).
    """
    calls = token_calls(shard, _PROMPT_TOKENS, graph=False)
    calls += expert_calls(shard, _PROMPT_TOKENS * shard.dp, graph=False)
    calls += logits_calls(shard, 1) + prefill_calls(shard, 1, _PROMPT_TOKENS, 0)
    return sum(call.count * call.kernels for call in calls)


def _floats(*counts: Num) -> list[FloatArray]:
    return [np.asarray(c, dtype=np.float64) for c in counts]
