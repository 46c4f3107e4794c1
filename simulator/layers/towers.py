"""The operators of a tower: what it computes for the images, videos or audio whose embeddings a step needs.

The tower runs before the language model in the same step, kernel by kernel, in 16 bits. Its products, norms and windows
of attention depend on the number of patches; its full attention on the sequences (images, tiles, frames or chunks of
audio) and the patches of each. Two convolutions over the spectrogram precede the layers of an audio tower; they are
priced as the products of their unfolded inputs, with an activation behind each.

Tensor ranks divide the heads and the feed-forward blocks and add up the results, as in the language model, or with
`encoder_parallel: data` each of them computes whole items and then gathers the embeddings of all (vLLM's
`run_dp_sharded_mrope_vision_model`). The step then waits for the rank with the most items.

Left out: the processors on the host (decoding, resizing, normalising, the spectrogram), the pooling of neighbouring
positions, interpolated position tables, and rotary
embeddings, which are less than 1 % of the tower's bytes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from calibration.families.noncausal_attention import WITHOUT_MASK
from calibration.operators.cost import CostSource
from calibration.operators.flops_and_bytes import ACTIVATION_BYTES as ACT
from calibration.operators.operators import Collective, Gemm, NonCausalAttention, Num, PrefillAttention
from catalogs.deployments.resolved import ResolvedDeployment
from catalogs.models.layers import LayerGroup
from catalogs.models.media_items import MediaLayout
from catalogs.models.towers import Tower
from simulator.core.batch import Encoding
from simulator.layers.operator_call import Calls, OperatorCall, calls_of, elementwise_call, gemm_call


@dataclass(frozen=True, slots=True)
class TowerCalls:
    """The operators of a tower on one rank.

    Attributes:
        tower: The tower.
        ranks: Tensor ranks of the deployment.
        whole: Each of them holds the whole tower and computes whole images.
        width: Width of the language model.
        kernel: The measured kernel of attention without a mask; None where only causal attention was measured.
    """

    tower: Tower
    ranks: int
    whole: bool
    width: int
    kernel: str | None

    @classmethod
    def of(cls, tower: Tower, resolved: ResolvedDeployment, source: CostSource) -> TowerCalls:
        """Return the operators of one of a deployment's towers, with the kernel that `source` knows."""
        ranks, how = resolved.layout.tensor_parallel, resolved.multimodal
        assert how is not None
        whole = how.encoder_parallel == "data" and ranks > 1
        return cls(tower, ranks, whole, resolved.model.hidden_size, source.unmasked_kernel)

    @property
    def shards(self) -> int:
        """Return the ranks that divide each layer."""
        return 1 if self.whole else self.ranks

    def busiest_share(self, units: Num) -> Num:
        """Return the part of the tower's work that the busiest rank computes."""
        return np.ceil(np.asarray(units) / self.ranks) / np.maximum(units, 1) if self.whole else np.ones_like(units)

    def patches(self, patches: Num) -> list[OperatorCall]:
        """Return the operators that depend on the patches of a rank alone."""
        tower = self.tower
        calls = list(calls_of(tower.groups[0], self._front(patches)))
        for group in tower.groups:
            calls += calls_of(group, self._layer(group, patches))
        return calls + list(calls_of(tower.groups[-1], self._projections(patches)))

    def _front(self, patches: Num) -> Calls:
        """Yield the products before the layers: the patch embedding, or convolutions with an activation behind each."""
        products = self.tower.front
        for product in products:
            rows = patches * product.applied
            yield gemm_call("encoder_patch_embed", product.count, Gemm(rows, product.outputs, product.inputs, "bf16"))
            if len(products) > 1:
                width = 2 * product.outputs * ACT
                yield elementwise_call("encoder_front_activation", product.count, "activation", rows, width)

    def _projections(self, patches: Num) -> Calls:
        """Yield the products behind the layers, and the exchange that gives every rank the embeddings."""
        tower = self.tower
        embeddings = patches / tower.merged_patches
        for projection in tower.projections:
            product = Gemm(embeddings, -(-projection.outputs // self.shards), projection.inputs, "bf16")
            yield gemm_call("encoder_projection", projection.count, product)
        if self.ranks > 1:  # every rank needs the embeddings of all images
            size = embeddings * (self.width * ACT)
            gathered = Collective("all_gather", size * self.ranks, self.ranks, graph=False)
            message = gathered if self.whole else Collective("all_reduce", size, self.ranks, graph=False)
            yield OperatorCall("encoder_gather", "collective", 1, message)

    def attention(self, tiles: Num, patches_each: Num) -> list[OperatorCall]:
        """Return the attention of `tiles` images or tiles of `patches_each` patches, except attention in windows."""
        found: list[OperatorCall] = []
        for group in self.tower.groups:
            if _window(group) is None:
                found += calls_of(group, self._attention(group, tiles, patches_each))
        return found

    @property
    def launches(self) -> int:
        """Return the kernels of one pass."""
        calls = self.patches(1024.0) + self.attention(1.0, 1024.0)
        return sum(call.count * call.kernels for call in calls)

    def _layer(self, group: LayerGroup, patches: Num) -> Calls:
        hidden, n = self.tower.hidden_size, group.count
        attention, mlp = group.plain_attention, group.dense_block
        assert attention is not None  # Tower admits no other layers
        assert mlp is not None
        width = self._heads(group) * attention.head_dim
        inner, up = -(-mlp.intermediate_size // self.shards), 2 if mlp.gated else 1
        yield elementwise_call("encoder_norm", 2 * n, "norm", patches, 4 * hidden * ACT)
        yield gemm_call("encoder_qkv_proj", n, Gemm(patches, 3 * width, hidden, "bf16"))
        window = _window(group)
        if window is not None:
            yield from self._attention(group, patches / window, float(window))
        yield gemm_call("encoder_o_proj", n, Gemm(patches, hidden, width, "bf16"))
        yield gemm_call("encoder_up_proj", n, Gemm(patches, up * inner, hidden, "bf16"))
        yield elementwise_call("encoder_activation", n, "activation", patches, (up + 1) * inner * ACT)
        yield gemm_call("encoder_down_proj", n, Gemm(patches, hidden, inner, "bf16"))
        if self.shards > 1:
            message = Collective("all_reduce", patches * (hidden * ACT), self.shards, graph=False)
            yield OperatorCall("encoder_all_reduce", "collective", 2 * n, message)

    def _attention(self, group: LayerGroup, sequences: Num, each: Num) -> Calls:
        attention, heads = group.plain_attention, self._heads(group)
        assert attention is not None
        if self.kernel is not None:
            op = NonCausalAttention(sequences, each, each, heads, attention.head_dim, self.kernel)
            yield OperatorCall("encoder_attention", "attention_prefill", group.count, op)
            return
        tokens = np.asarray(sequences, dtype=np.float64) * each
        pairs = tokens * each / WITHOUT_MASK
        causal = PrefillAttention(sequences, tokens, pairs, heads, heads, attention.head_dim, "bf16")
        yield OperatorCall("encoder_attention", "attention_prefill", group.count, causal)

    def _heads(self, group: LayerGroup) -> int:
        attention = group.plain_attention
        assert attention is not None
        return -(-attention.n_heads // self.shards)


def encoding_of(layout: MediaLayout, items: int) -> Encoding:
    """Return the work of a step that encodes some equal items."""
    return Encoding().plus(layout, items)


def _window(group: LayerGroup) -> int | None:
    attention = group.plain_attention
    return None if attention is None else attention.window_tokens
