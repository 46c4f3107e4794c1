"""The operators that one engine step runs on one rank, as a function of the contents of its batch.

There are four groups, by what they depend on: all tokens of the step (projections, norms, experts, collectives),
sequences that need logits (output projection, sampling), decodes with their contexts (attention), and prompt chunks
(attention). Counts may be numbers or numpy arrays and broadcast, so one call prices a whole table. The classes of a
layer's mixer (`simulator.layers.attention`) and feed-forward block (`simulator.layers.feed_forward`) decide what the
layer contributes.

There are no separate quantise kernels: an FP8 or FP4 `Gemm` takes a 16-bit input, and its measured rows include the
quantisation of that input (the public tables time the engine's whole linear layer). Engines that quantise with one
scale for the tensor within the preceding norm or activation (`fuses_quantisation`) do not run that kernel, so its time
is taken off the product. All-reduce and norm are separate where the engine fuses them only by an option.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from calibration.operators.cost import CostSource
from calibration.operators.flops_and_bytes import ACTIVATION_BYTES as ACT
from calibration.operators.operators import (
    GREEDY_BYTES_PER_LOGIT,
    SAMPLING_BYTES_PER_LOGIT,
    SORT_BYTES_PER_LOGIT,
    Collective,
    Gemm,
    Num,
)
from catalogs.arrays import FloatArray
from catalogs.deployments.resolved import ResolvedDeployment
from catalogs.models.layers import LayerGroup
from simulator.core.batch import BatchShape
from simulator.layers.attention import sharded_mixer
from simulator.layers.encoder import cross_decode_calls, cross_prefill_calls, cross_token_calls, encoder_calls
from simulator.layers.feed_forward import sharded_feed_forward
from simulator.layers.mixer import JoinsDecodes, ShardedMixer
from simulator.layers.operator_call import (
    Calls,
    OperatorCall,
    PromptClock,
    all_reduce_calls,
    calls_of,
    elementwise_call,
    gemm_call,
)
from simulator.layers.shard import Shard

_AFTER_ALL_REDUCE = frozenset({"input_norm", "post_norm", "final_norm"})

#: Per-tensor FP8 products after a norm or an activation, which can quantise their input.
_AFTER_NORM_OR_ACTIVATION = frozenset({"qkv_proj", "in_proj", "gate_up_proj", "up_proj", "down_proj"})

#: Fewest tokens of a rank that run as two overlapping halves (vLLM: --dbo-decode-token-threshold 32; its threshold for
#: steps with prompts, 512, is not distinguished).
LEAST_OVERLAPPED: Final = 32

_PROMPT_TOKENS = 1024  # arbitrary: the number of launches does not depend on it


def fused_rows(resolved: ResolvedDeployment) -> int:
    """Return the most tokens for which the all-reduce of a deployment's engine also normalises; 0: it never does.

    A group that no link joins uses NCCL (TensorRT-LLM, thop/allreduceOp.cpp, setGroupTopology), and where an engine
    states the sizes, those of its largest group are those of every larger one (getMaxRequiredWorkspaceSize).
    """
    engine, layout, unit = resolved.engine, resolved.layout, resolved.hardware.accelerator
    ranks = layout.tensor_parallel
    other_ranks = layout.data_parallel > 1 and not engine.fuses_norms_of_ranks
    other_stages = layout.pipeline_parallel > 1 and not engine.fuses_norms_of_stages
    if not engine.fuses_norms or other_ranks or other_stages or resolved.model.residual_streams > 1:
        return 0
    if not engine.fused_norm_bytes:
        return sys.maxsize
    own = engine.fused_norm_bytes.get(unit.architecture, {}) if unit.has_hbm else {}
    sizes = own or engine.fused_norm_bytes.get("all", {})
    if not sizes or ranks > resolved.hardware.link_domain:
        return 0
    known = sorted(sizes)
    most = sizes[next((group for group in known if ranks <= group), known[-1])]
    return int(most // (resolved.model.hidden_size * ACT))


def never_joins(head_dim: int, kv_dtype: str) -> bool:  # noqa: ARG001 (the same for all)
    """Return False: decodes do not run in the kernel of the prompts."""
    return False


@dataclass(frozen=True, slots=True)
class StepCalls:
    """The operators of the steps of a deployment, by what they depend on: tokens, sequences or contexts.

    All of them are those of one rank and one microbatch. Only this class decides which kinds of calls a step of this
    engine has. The tables behind a run's timing and the analyses of steps all read it.

    Attributes:
        shard: The part of the model that one rank holds.
        fused_rows: The most tokens for which the engine's all-reduce kernel also adds the residual and normalises
            (TensorRT-LLM: AllReduceFusionOp.RESIDUAL_RMS_NORM); 0: it never does.
        fuses_quantisation: The engine's norms and activations write per-tensor FP8 (vLLM: torch.compile, with fusion
            passes for both; TensorRT-LLM: AllReduceFusionOp.RESIDUAL_RMS_NORM_QUANT_FP8, and swiglu with the scale of
            its output).
        joins_decodes: Returns, by head size and KV data type, whether decodes in a step with prompts run in the kernel
            of the prompts.
        prompt_clock: The clock of steps with prompts outside CUDA graphs; None: the highest.
    """

    shard: Shard
    fused_rows: int = 0
    joins_decodes: JoinsDecodes = never_joins
    fuses_quantisation: bool = False
    prompt_clock: PromptClock | None = None

    @property
    def launches(self) -> int:
        """Return the kernels of one eager step with prefill on one rank."""
        return step_launches(self.shard) * (2 if self.shard.layout.two_batch_overlap else 1)

    @property
    def mixers(self) -> int:
        """Return the layers with attention, a scan or a convolution, at which piecewise CUDA graphs are cut."""
        return sum(group.count for group in self.shard.model.groups if group.mixer is not None)

    @property
    def triton_layers(self) -> int:
        """Return the layers whose experts Triton's kernels unpack from MXFP4 to 16 bit."""
        if self.shard.dtype("experts") != "mxfp4":
            return 0
        return sum(g.count for g in self.shard.model.groups if g.ffn is not None and g.ffn.routed)

    @property
    def decode_launches(self) -> int:
        """Return the kernels of one eager step without prefill on one rank."""
        return step_launches(self.shard, encodes=False) if self.shard.model.encoder_groups else self.launches

    @classmethod
    def of(cls, resolved: ResolvedDeployment, source: CostSource) -> StepCalls:
        """Return the operators of a deployment, with the kernels that `source` knows for its engine."""
        engine = resolved.engine
        if not resolved.runs_language_model:
            return NoCalls(Shard.of(resolved))
        native = engine.fuses_quantisation and "fp8" in resolved.hardware.accelerator.peak_flops
        return cls(Shard.of(resolved), fused_rows(resolved), source.joins_decodes, native)

    def _parts(self, tokens: Num) -> FloatArray | float:
        """Return in how many halves the tokens of a rank run: two if the halves overlap and are large enough."""
        if not self.shard.layout.two_batch_overlap:
            return 1.0
        return np.where(np.asarray(tokens) >= LEAST_OVERLAPPED, 2.0, 1.0)

    def rank(self, tokens: Num, graph: bool = True) -> list[OperatorCall]:
        """Return the operators that depend on the tokens of an attention rank, in a CUDA graph or outside.

        Norms are fused at the sizes that run in CUDA graphs, up to `fused_rows`. Larger messages go through NCCL,
        followed by a separate norm.
        """
        if not self.shard.layout.two_batch_overlap:
            return self._slowed(self._rank(tokens, graph), tokens, graph)
        parts = self._parts(tokens)
        return self._slowed([replace(call, parts=parts) for call in self._rank(tokens / parts, graph)], tokens, graph)

    def _slowed(self, calls: list[OperatorCall], tokens: Num, graph: bool) -> list[OperatorCall]:
        """Return the calls of a step at the clock of its prompts, which follows from the number of tokens on a rank."""
        if graph or self.prompt_clock is None:
            return calls
        return self.prompt_clock.slowed(calls, tokens)

    def _rank(self, tokens: Num, graph: bool) -> list[OperatorCall]:
        shard, hidden = self.shard, self.shard.model.hidden_size
        calls = [elementwise_call("embedding", 1, "embedding", tokens, 2 * hidden * ACT)]
        calls += all_reduce_calls(shard, "embedding_all_reduce", 1, tokens, graph)
        for group in shard.model.groups:
            if mixer := sharded_mixer(shard, group):
                calls += calls_of(group, mixer.token_calls(tokens, graph))
            if group.cross_attention:
                calls += calls_of(group, cross_token_calls(shard, group, tokens, graph))
            if block := sharded_feed_forward(shard, group):
                calls += calls_of(group, block.token_calls(tokens, graph))
        calls.append(elementwise_call("final_norm", 1, "norm", tokens, 4 * hidden * ACT))
        if shard.pp > 1:  # hidden states and residual go to the next stage
            send = Collective("send_recv", tokens * (2 * hidden * ACT), 2, graph)
            calls.append(OperatorCall("stage_send", "collective", shard.pp - 1, send, stride=shard.tp * shard.cp))
        calls = [self._with_quantised_input(call) for call in calls]
        if not (self.fused_rows and graph and shard.tp > 1):
            return calls
        if np.max(tokens) <= self.fused_rows:
            return [call for call in calls if call.name not in _AFTER_ALL_REDUCE]
        return [replace(c, fused_rows=self.fused_rows) if c.name in _AFTER_ALL_REDUCE else c for c in calls]

    def _with_quantised_input(self, call: OperatorCall) -> OperatorCall:
        found = self.fuses_quantisation and call.name in _AFTER_NORM_OR_ACTIVATION
        fused = found and isinstance(call.op, Gemm) and call.op.dtype == "fp8"
        return replace(call, quantised_before=True) if fused else call

    def group(self, tokens: Num, graph: bool = True) -> list[OperatorCall]:
        """Return the routed experts over all tokens of an expert group, with the exchange before and after.

        Dense models have none. If two halves of the step overlap, the exchange of one is hidden behind the experts and
        the dense kernels of the other. Attention itself, whose time depends on contexts, is not counted on.
        """
        found: list[OperatorCall] = []
        parts = self._parts(tokens / self.shard.exchange_ranks)
        for group in self.shard.model.groups:
            if not (block := sharded_feed_forward(self.shard, group)):
                continue
            calls = list(calls_of(group, block.expert_calls(tokens / parts, graph)))
            if calls and self.shard.layout.two_batch_overlap:
                own, mixer = tokens / parts / self.shard.exchange_ranks, sharded_mixer(self.shard, group)
                dense = [*(mixer.token_calls(own, graph) if mixer else ()), *block.token_calls(own, graph)]
                kernels = (*dense, *(call for call in calls if call.routing is None))
                calls = [replace(c, parts=parts, behind=kernels if c.routing is not None else ()) for c in calls]
            found += calls
        return self._slowed(found, tokens / self.shard.exchange_ranks, graph)

    def logits(self, sequences: Num) -> list[OperatorCall]:
        """Return the output projection and sampling of the sequences that get a token in this step."""
        shard, size = self.shard, self.shard.model.vocab_size
        head = shard.product(sequences, shard.vocab, shard.model.hidden_size, shard.plain_dtype)
        calls = [gemm_call("lm_head", 1, head)]
        if shard.tp > 1:
            gather = Collective("all_gather", sequences * (size * ACT), shard.tp, graph=False)
            calls.append(OperatorCall("logits_all_gather", "collective", 1, gather))
        if shard.sorts_logits:
            calls.append(elementwise_call("sort_logits", 1, "sort", sequences, size * SORT_BYTES_PER_LOGIT))
        greedy = shard.sampling == "greedy"
        read = size * (GREEDY_BYTES_PER_LOGIT if greedy else SAMPLING_BYTES_PER_LOGIT)
        return [*calls, elementwise_call("sampling", 1, "greedy" if greedy else "sampling", sequences, read)]

    def decode(self, sequences: Num, mean_context: Num, max_context: Num) -> list[OperatorCall]:
        """Return the attention of decodes in a step without prompts. Contexts are per sequence, before any window.

        If each decode brings several tokens (drafts), a kernel reads the sequence's cache once for all of them, as it
        does for the heads of a group. The cost model counts them as additional heads (FlashAttention and FlashInfer
        pack both alike).
        """
        return self._decode(sequences, mean_context, max_context, never_joins)

    def mixed_decode(self, sequences: Num, mean_context: Num, max_context: Num) -> list[OperatorCall]:
        """Return the attention of decodes in a step with prompts.

        If one kernel of the engine takes both at once (`joins_decodes`), a decode is a prompt chunk of one token whose
        keys are not split over the device.
        """
        return self._decode(sequences, mean_context, max_context, self.joins_decodes)

    @property
    def mixes_alike(self) -> bool:
        """Return whether decodes run the same kernels in steps with prompts as in steps without."""
        one = np.ones(1)
        return self.decode(one, one, one) == self.mixed_decode(one, one, one)

    def _decode(self, sequences: Num, mean_context: Num, max_context: Num, joins: JoinsDecodes) -> list[OperatorCall]:
        n, mean, longest = _floats(sequences, mean_context, max_context)
        own = (np.ones_like(mean), np.ones_like(longest)) if self.shard.model.encodes_prompt else (mean, longest)
        return self._attention(
            lambda mixer: mixer.decode_calls(n, *own, joins),
            lambda group: cross_decode_calls(self.shard, group, n, mean, longest),
        )

    def prefill(self, chunks: Num, chunk_tokens: Num, prior: Num) -> list[OperatorCall]:
        """Return the attention of `chunks` prompt chunks of `chunk_tokens` new tokens after `prior` earlier ones.

        An encoder that has the prompt as its input takes whole prompts, and the decoder begins with one token of each.
        """
        c, q, x = _floats(chunks, chunk_tokens, prior)
        model = self.shard.model
        own = (np.ones_like(q), np.zeros_like(x)) if model.encodes_prompt else (q, x)
        calls = self._attention(
            lambda mixer: mixer.prefill_calls(c, *own),
            lambda group: cross_prefill_calls(self.shard, group, c, q),
        )
        if model.is_encoder_decoder:
            calls += encoder_calls(self.shard, c + 0.0 * q + 0.0 * x, q)
        return self._slowed(calls, c * q + 0.0 * x, graph=False)

    def _attention(
        self, own: Callable[[ShardedMixer], Calls], crossed: Callable[[LayerGroup], Calls]
    ) -> list[OperatorCall]:
        """Return the calls of every mixer, each followed by those of its layers' cross attention, if they have one."""
        calls: list[OperatorCall] = []
        for group in self.shard.model.groups:
            if mixer := sharded_mixer(self.shard, group):
                calls += calls_of(group, own(mixer))
            if group.cross_attention:
                calls += calls_of(group, crossed(group))
        return calls


class NoCalls(StepCalls):
    """The operators of the steps of an encoder pool besides those of its towers: none, no language model runs."""

    @property
    def launches(self) -> int:
        """Return 0: no kernel is launched besides those of the towers."""
        return 0

    @property
    def mixers(self) -> int:
        """Return 0: no layer of the language model runs."""
        return 0

    def rank(self, tokens: Num, graph: bool = True) -> list[OperatorCall]:  # noqa: ARG002
        """Return no operators: the language model takes no tokens here."""
        return []

    def group(self, tokens: Num, graph: bool = True) -> list[OperatorCall]:  # noqa: ARG002
        """Return no operators: no experts run."""
        return []

    def logits(self, sequences: Num) -> list[OperatorCall]:  # noqa: ARG002
        """Return no operators: no token is sampled."""
        return []

    def prefill(self, chunks: Num, chunk_tokens: Num, prior: Num) -> list[OperatorCall]:  # noqa: ARG002
        """Return no operators: no attention to a prompt runs."""
        return []

    def decode(self, sequences: Num, mean_context: Num, max_context: Num) -> list[OperatorCall]:  # noqa: ARG002
        """Return no operators: no sequence decodes."""
        return []

    def mixed_decode(self, sequences: Num, mean_context: Num, max_context: Num) -> list[OperatorCall]:  # noqa: ARG002
        """Return no operators: no sequence decodes beside a prompt."""
        return []


def step_calls(shard: Shard, shape: BatchShape) -> list[OperatorCall]:
    """Return the operators of one step with this shape, without padding, on one rank that holds the whole batch."""
    n, step = shape.decodes, StepCalls(shard)
    tokens = n + shape.prefill_chunks if shard.model.encodes_prompt else shape.tokens
    calls = step.rank(tokens) + step.group(tokens * shard.dp)
    if shape.logits:
        calls += step.logits(shape.logits + n * (shard.scored - 1))
    if n:
        calls += step.decode(n, shape.decode_context_sum / n, shape.decode_context_max)
    if shape.prefill_chunks:
        calls += step.prefill(shape.prefill_chunks, shape.chunk_tokens, shape.prior_tokens)
    return calls


def step_launches(shard: Shard, encodes: bool = True) -> int:
    """Return the kernels of one eager step with prefill on one rank, which the host launches one by one from Python.

    Args:
        shard: The part of the model on one rank.
        encodes: Whether the encoder runs too, where there is one; otherwise the step has decodes only.

    Launching them may take the host longer than running them takes the device. A captured decode step is one launch. A
    step beyond the captured sizes, or one with prefill where an engine captures decodes only, is launched layer by
    layer and takes as long as the slower of host and device.

    The counts (`OperatorCall.kernels`) follow the sources of the engines. A quantised product has a kernel that
    quantises its input. Experts sort and align tokens, multiply twice with an activation between, and add up; where one
    operator does all of this (`launches_experts_at_once`), it counts once, because no Python runs between its kernels.
    Multi-head latent attention is five products, two norms, rotation, two copies, a cache write and the attention
    itself. A gated delta rule's scan has 18 kernels: the gates' small product, a flag, the convolution and the copy
    before it, three contiguous copies, gates, two norms, then cumulated decays, products of the keys, a triangular
    solve (a fill and two kernels), its application, states and outputs (SGLang, layers/attention/fla/chunk.py and
    hybrid_linear_attn_backend.py).
    """
    step = StepCalls(shard)
    calls = step.rank(_PROMPT_TOKENS, graph=False) + step.group(_PROMPT_TOKENS * shard.dp, graph=False)
    one = np.ones(1)
    calls += step.logits(1) + (step.prefill(1, _PROMPT_TOKENS, 0) if encodes else step.decode(one, one, one))
    return sum(call.count * call.kernels for call in calls)


def _floats(*counts: Num) -> list[FloatArray]:
    return [np.asarray(c, dtype=np.float64) for c in counts]
