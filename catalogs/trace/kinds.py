"""The kind and the dims of each operator of torch's dispatcher (`aten`): which kernel it is, and what it moves.

Pointwise operators are those that torch tags as such. What neither a table here nor a tag knows is of the kind `other`:
it keeps its bytes and is reported.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from math import prod
from typing import Any, Final

import torch

#: Operators by kind; each stands for its overloads and for the in-place form, whose name ends in an underscore.
_NAMES: Final[dict[str, str]] = {
    "gemm": "mm addmm bmm baddbmm mv addmv dot vdot addbmm",
    "convolution": "convolution _convolution",
    "pooling": """
        max_pool2d_with_indices max_pool3d_with_indices avg_pool2d avg_pool3d _adaptive_avg_pool2d _adaptive_avg_pool3d
        adaptive_max_pool2d adaptive_max_pool3d""",
    "normalisation": """
        native_layer_norm native_group_norm native_batch_norm _native_batch_norm_legit
        _native_batch_norm_legit_no_training _batch_norm_no_update _fused_rms_norm cudnn_batch_norm
        _weight_norm_interface""",
    "softmax": "_softmax _log_softmax _safe_softmax",
    "reduction": """
        sum mean amax amin max min prod any all argmax argmin var var_mean std std_mean norm linalg_vector_norm
        logsumexp nansum count_nonzero""",
    "gather": """
        embedding index index_select gather take index_put scatter scatter_add index_add index_copy index_fill
        grid_sampler_2d grid_sampler_3d masked_scatter scatter_reduce _unsafe_index _unsafe_index_put masked_select
        _unsafe_masked_index nonzero""",
    "copy": """
        clone copy cat stack _to_copy contiguous constant_pad_nd reflection_pad1d reflection_pad2d reflection_pad3d
        replication_pad1d replication_pad2d replication_pad3d roll flip repeat im2col col2im pixel_shuffle
        pixel_unshuffle channel_shuffle native_channel_shuffle select_scatter slice_scatter view_as_complex_copy
        split_with_sizes_copy unfold_copy tril triu repeat_interleave _reshape_copy resize""",
    "resize": """
        upsample_nearest1d upsample_nearest2d upsample_nearest3d _upsample_nearest_exact1d _upsample_nearest_exact2d
        _upsample_nearest_exact3d upsample_linear1d upsample_bilinear2d upsample_bicubic2d upsample_trilinear3d
        _upsample_bilinear2d_aa _upsample_bicubic2d_aa""",
    "sort": "sort topk kthvalue argsort unique _unique2 unique_consecutive unique_dim bucketize searchsorted median",
    "scan": "cumsum cumprod cummax cummin logcumsumexp",
    "pointwise": """
        arange zeros ones full zeros_like ones_like full_like new_zeros new_ones new_full fill zero scalar_tensor
        linspace logspace eye rand randn randn_like rand_like randint normal bernoulli uniform one_hot
        complex polar view_as_real where masked_fill lerp meshgrid isin _euclidean_dist _cdist_forward glu
        native_dropout relu relu6 silu gelu mish elu celu leaky_relu hardswish hardsigmoid hardtanh softplus sigmoid
        tanh prelu rrelu threshold""",
}
KINDS: Final = {name: kind for kind, names in _NAMES.items() for name in names.split()}

#: Operators that launch nothing: allocations and reinterpretations that are not views by their schema.
NO_KERNEL: Final = frozenset(
    [
        "empty",
        "empty_like",
        "new_empty",
        "empty_strided",
        "new_empty_strided",
        "_unsafe_view",
        "_reshape_alias",
        "lift_fresh",
        "lift",
        "detach",
        "set_",
        "resize_",
        "sym_size",
        "sym_numel",
        "sym_stride",
        "sym_storage_offset",
        "is_same_size",
        "_local_scalar_dense",
        "alias",
        "is_pinned",
        "as_strided_",
        "squeeze_",
        "unsqueeze_",
        "transpose_",
        "t_",
        "_assert_async",
        "_assert_tensor_metadata",
        "_assert_scalar",
        "_has_compatible_shallow_copy_type",
        "record_stream",
    ]
)

#: Operators that write without reading their first argument.
FILLS: Final = frozenset(
    [
        "fill",
        "zero",
        "zeros_like",
        "ones_like",
        "full_like",
        "new_zeros",
        "new_ones",
        "new_full",
        "randn_like",
        "rand_like",
        "copy",
    ]
)

#: Operators that read as much of their first argument as they write: a few rows of a table.
TABLE_READS: Final = frozenset(
    ["embedding", "index", "index_select", "gather", "take", "_unsafe_index", "masked_select", "_unsafe_masked_index"]
)

#: Operators that write as much into their first argument as they read of the source, where they work in place.
TABLE_WRITES: Final = frozenset(
    [
        "index_put_",
        "scatter_",
        "scatter_add_",
        "index_add_",
        "index_copy_",
        "index_fill_",
        "_unsafe_index_put_",
        "masked_scatter_",
    ]
)

#: Dimensions of the inputs of fused attention: batch, heads, tokens, channels.
FUSED_DIMENSIONS: Final = 4


@cache
def base_name(operator: torch._ops.OpOverload) -> str:
    """Return the name of an operator without namespace and overload."""
    return str(operator._schema.name).partition("::")[2]


def kernel_name(operator: torch._ops.OpOverload, kwargs: Mapping[str, Any]) -> str:
    """Return the name of the kernel of a call, with the namespace of other libraries than torch's.

    GELU by tanh is another kernel than GELU by erf: on a CPU it takes two to four times as long.
    """
    name = str(operator._schema.name).replace("::", ".").removeprefix("aten.")
    return f"{name}_tanh" if kwargs.get("approximate") == "tanh" else name


@cache
def kind_of(operator: torch._ops.OpOverload) -> str:
    """Return the kind of an operator; `other` where it is not known."""
    name = base_name(operator)
    plain = name if name in KINDS else name.removesuffix("_")
    if plain in KINDS:
        return KINDS[plain]
    tags = operator.tags
    if torch.Tag.pointwise in tags:
        return "pointwise"
    return "reduction" if torch.Tag.reduction in tags else "other"


@cache
def runs_no_kernel(operator: torch._ops.OpOverload) -> bool:
    """Return whether an operator only allocates or makes a view."""
    returns = operator._schema.returns
    views = bool(returns) and all(r.alias_info is not None and not r.alias_info.is_write for r in returns)
    return views or base_name(operator) in NO_KERNEL


Dims = dict[str, int | tuple[int, ...]]


def dims_of(kind: str, name: str, args: Sequence[Any], outputs: Sequence[torch.Tensor]) -> Dims:
    """Return the dims of an operator of a kind from its arguments and outputs."""
    if kind == "gemm":
        return _gemm_dims(name.removesuffix("_"), args)
    if kind == "convolution":
        return _convolution_dims(args, outputs[0])
    return {"elements": outputs[0].numel() if outputs else 0}


def _gemm_dims(name: str, args: Sequence[Any]) -> Dims:
    first, second = args[-2:] if name in ("mm", "bmm", "mv", "dot", "vdot") else args[1:3]
    if name in ("dot", "vdot"):
        return {"m": 1, "n": 1, "k": first.numel()}
    if name in ("mv", "addmv"):
        return {"m": first.shape[0], "n": 1, "k": first.shape[1]}
    *batch, m, k = first.shape
    dims: Dims = {"m": m, "n": second.shape[-1], "k": k}
    return dims | {"batch": prod(batch)} if batch else dims


def _convolution_dims(args: Sequence[Any], output: torch.Tensor) -> Dims:
    data, weight, _, stride, _, dilation, transposed, _, groups = args[:9]
    spatial = weight.dim() - 2

    def each(value: Sequence[int]) -> tuple[int, ...]:
        return tuple(value) * spatial if len(value) == 1 else tuple(value)

    dims: Dims = {
        "batch": data.shape[0] if data.dim() == spatial + 2 else 1,
        "in_channels": data.shape[-spatial - 1],
        "out_channels": output.shape[-spatial - 1],
        "kernel": tuple(weight.shape[2:]),
        "input": tuple(data.shape[-spatial:]),
        "output": tuple(output.shape[-spatial:]),
        "stride": each(stride),
        "dilation": each(dilation),
    }
    return dims | ({"groups": groups} if groups != 1 else {}) | ({"transposed": 1} if transposed else {})


def attention_dims(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, causal: bool, masked: bool) -> Dims:
    """Return the dims of scaled dot-product attention.

    All fused kernels of torch require four dimensions (`check_tensor_shapes` in
    ATen/native/transformers/sdp_utils_cpp.h). With others, torch computes two products and a softmax.
    """
    *lead, queries, head_dim = query.shape
    heads = lead.pop() if lead else 1
    dims: Dims = {
        "batch": prod(lead),
        "heads": heads,
        "kv_heads": key.shape[-3] if key.dim() > 2 else 1,
        "queries": queries,
        "keys": key.shape[-2],
        "head_dim": head_dim,
        "value_dim": value.shape[-1],
    }
    flags = {"causal": causal, "masked": masked, "unfused": query.dim() != FUSED_DIMENSIONS}
    return dims | {name: 1 for name, holds in flags.items() if holds}
