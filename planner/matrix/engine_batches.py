"""What the batch of a cell means for each engine, as the keys of its deployment.

In the closed loop, as many clients as the batch send one request after the other. The batch is then

- for engines with continuous batching (vLLM, SGLang, TensorRT-LLM, `transformers serve`): the most sequences that run
  together (`max_num_seqs`); sequences join and leave between steps;
- for llama.cpp: the slots (`-np`), each with a cache of max_model_len tokens that is allocated at the start;
- for `transformers-static`, and for Triton in front of a model that computes whole batches: the prompts of one padded
  batch. It starts when all clients have sent theirs, or when the oldest has waited for MOST_WAIT_S;
- for engines with one request at a time (`pytorch`): only 1 is possible.
"""

from __future__ import annotations

from typing import Any, Final

from catalogs.engines.profile import EngineProfile
from catalogs.errors import InputError
from simulator.schedulers.registry import POLICIES
from simulator.schedulers.static_batching import OneAtATime

#: Longest wait of the oldest prompt for the others of its padded batch, seconds. It only ends the last batch of a run
#: and the batches of an open load; a full batch starts at once.
MOST_WAIT_S: Final = 1.0


def computes_whole_batches(engine: EngineProfile) -> bool:
    """Return whether the engine pads a batch and computes it to its longest output."""
    return POLICIES[engine.policy].pads and POLICIES[engine.policy] is not OneAtATime


def reserves_batch(engine: EngineProfile) -> bool:
    """Return whether the engine must hold the cache of a whole batch of longest sequences.

    llama.cpp allocates it at the start, and a padded batch cannot give back the cache of one of its sequences.
    """
    return engine.memory_rule == "slots" or computes_whole_batches(engine)


def batch_keys(engine: EngineProfile, batch: int, max_model_len: int) -> dict[str, Any]:
    """Return the keys of deployment.yaml that set the batch of an engine.

    Args:
        engine: The engine.
        batch: The batch of the cell.
        max_model_len: Longest sequence, to which requests are cut.

    Raises:
        InputError: The engine has no such batch.
    """
    queue: dict[str, Any] = {"too_long": "truncate"}
    if POLICIES[engine.policy] is OneAtATime:
        if batch > 1:
            raise InputError(f"{engine.name} computes one request at a time", f"batch {batch}", "batch 1")
        return {"max_num_seqs": 1, "max_model_len": max_model_len, "queue": queue}
    keys: dict[str, Any] = {"max_num_seqs": batch, "max_model_len": max_model_len}
    if computes_whole_batches(engine):
        keys["max_num_batched_tokens"] = batch * max_model_len  # the padded prompts of a batch run together
        if batch > 1:
            queue |= {"preferred_batch_sizes": [batch], "max_delay_s": MOST_WAIT_S}
    return keys | {"queue": queue}
