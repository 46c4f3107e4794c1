"""Arguments of `llama-server` for one replica (llama.cpp, common/arg.cpp as in llama-cpp-python 0.3.36)."""

from __future__ import annotations

from typing import Final

from catalogs.deployments.resolved import ResolvedDeployment
from catalogs.engines.flags import flag_table
from catalogs.errors import InputError
from catalogs.launch.arguments import Arguments, own_stage_layers, weights_at

#: ggml's names of the dtypes that convert_hf_to_gguf.py can write.
_GGML_TYPES: Final = {"bf16": "bf16", "fp16": "f16", "fp32": "f32"}


def gguf_name(resolved: ResolvedDeployment) -> str:
    """Return the name of the GGUF file that the server reads, as passed to convert_hf_to_gguf.py."""
    stem = weights_at(resolved.model).rpartition("/")[2]
    return f"{stem}-{resolved.weight_dtype}.gguf"


def llama_cpp_arguments(resolved: ResolvedDeployment) -> Arguments:
    """Return the arguments that match the simulation: one slot with its own cache per sequence, and no prompt reuse.

    Raises:
        InputError: GGUF has no type for the dtype of the weights.
    """
    r, limits, table = resolved, resolved.limits, flag_table("llama.cpp")
    flags, kv = table.by_key, table.name_of("kv_dtype", r.kv_dtype)
    found: list[tuple[str, str | None]] = [
        ("-m", f"/models/{gguf_name(r)}"),
        ("--alias", weights_at(r.model)),
        (flags["max_num_seqs"], str(limits.max_num_seqs)),
        ("-c", str(limits.max_num_seqs * limits.max_model_len)),
        (flags["max_num_batched_tokens"], str(limits.max_num_batched_tokens)),
        ("-ub", str(min(r.engine.physical_batch_tokens, limits.max_num_batched_tokens))),
        ("--no-kv-unified", None),
        (flags["kv_dtype"], kv),
        ("--cache-type-v", kv),
        ("--no-cache-prompt", None),
        ("--cache-ram", "0"),
        ("--metrics", None),
    ]
    if r.hardware.accelerator.kind == "gpu":
        found.append(("-ngl", "all"))
        mode = "tensor" if r.layout.tensor_parallel > 1 else "layer"
        count = r.accelerators_per_replica
        if count > 1:  # by default the server spreads the model over every device that it sees
            layers = own_stage_layers(r)
            shares = [*layers[:-1], layers[-1] + 1] if layers else [1] * count  # with the output layer
            found += [("--split-mode", mode), ("--tensor-split", ",".join(map(str, shares)))]
        elif r.hardware.n_accelerators > 1:
            found.append(("--split-mode", "none"))
    return Arguments(("llama-server",), tuple(found), (_gguf_note(r),), model=weights_at(r.model))


def _gguf_note(r: ResolvedDeployment) -> str:
    made = _GGML_TYPES.get(r.weight_dtype)
    if r.weight_dtype == "fp8":  # ggml has no such type
        raise InputError("GGUF files cannot hold weights of this dtype", r.weight_dtype, "int8")
    if made is None:
        return f"needs {gguf_name(r)}, a {r.weight_dtype} GGUF file of {r.model.hf_id}, in the models folder"
    how = f"convert_hf_to_gguf.py --outtype {made} --outfile {gguf_name(r)}"
    return f"needs {gguf_name(r)} in the models folder: {how} makes it of {r.model.hf_id}"
