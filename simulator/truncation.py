"""Requests beyond max_model_len, where the engine cuts them to size instead of rejecting them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from catalogs.request_set import RequestSet
from simulator.rules import EngineRules


def truncated(requests: RequestSet, rules: Sequence[EngineRules]) -> RequestSet:
    """Prompts keep at most max_model_len - 1 tokens, their last ones, and answers end at max_model_len.

    As SGLang's --allow-auto-truncate does with prompts (validate_input_length) and every engine with answers whose
    client sets no limit. Where several pools serve, all of them cut, at the shortest length; else nothing is cut. Who
    loses tokens of its prompt shares no prefix any more.
    """
    if not requests.n or any(each.queueing.too_long != "truncate" for each in rules):
        return requests
    longest = min(each.max_model_len for each in rules)
    inputs = np.minimum(requests.input_tokens, max(1, longest - 1))
    cut = inputs < requests.input_tokens
    hashes = requests.block_hashes
    if hashes is not None and cut.any():
        hashes = tuple(() if gone else ids for ids, gone in zip(hashes, cut.tolist(), strict=True))
    outputs = np.maximum(np.minimum(requests.output_tokens, longest - inputs), 1)
    return replace(requests, input_tokens=inputs, output_tokens=outputs, block_hashes=hashes)


def n_shorter(asked: RequestSet, served: RequestSet) -> int:
    """Requests of which some of the prompt or of the answer was cut."""
    cut = (served.input_tokens < asked.input_tokens) | (served.output_tokens < asked.output_tokens)
    return int(cut.sum())
