"""The server of padded batches: which requests form a batch, what it answers, and a real model behind it."""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from http.client import HTTPConnection
from http.server import ThreadingHTTPServer
from pathlib import Path

import pytest

from calibration.serve.batch_server import (
    BatchQueue,
    TorchGenerator,
    WaitingRequest,
    batch_size,
    handler_of,
    request_of,
)


def waiting(*lengths: int, most: int = 3) -> list[WaitingRequest]:
    return [WaitingRequest([7] * n, most) for n in lengths]


@dataclass
class Echo:
    """Answers the last token of a prompt as often as its request allows, and remembers the batches."""

    batches: list[list[int]] = field(default_factory=list)

    def generate(self, batch: Sequence[WaitingRequest]) -> list[list[int]]:
        self.batches.append([len(request.tokens) for request in batch])
        if any(request.tokens[0] < 0 for request in batch):
            raise IndexError("no such token")
        return [[request.tokens[-1]] * request.max_tokens for request in batch]


@pytest.mark.parametrize(
    ("lengths", "most", "tokens", "taken"),
    [
        ((5, 5, 5), 8, 100, 3),
        ((5, 5, 5), 2, 100, 2),
        ((5, 5, 9), 8, 20, 2),  # three would be padded to 27 tokens
        ((50,), 8, 20, 1),  # alone it is computed all the same
        ((50, 1), 8, 20, 1),
        ((), 8, 20, 0),
    ],
)
def test_a_batch_is_the_head_of_the_queue(lengths: tuple[int, ...], most: int, tokens: int, taken: int) -> None:
    assert batch_size(waiting(*lengths), most, tokens) == taken


def test_batches_are_computed_in_order_and_each_request_gets_its_own_output() -> None:
    generator = Echo()
    batcher = BatchQueue(generator, 2, 100)
    found = [batcher.submit(WaitingRequest([i], i)) for i in (1, 2, 3)]
    assert [batcher.run_one(), batcher.run_one()] == [2, 1]
    assert generator.batches == [[1, 1], [1]]
    assert [f.result(0) for f in found] == [[1], [2, 2], [3, 3, 3]]


def test_a_full_batch_does_not_wait_and_a_part_waits_for_the_rest() -> None:
    """Two of three requests are there; the third arrives long before the delay ends, and the batch is computed then."""
    generator = Echo()
    batcher = BatchQueue(generator, 3, 100, max_delay_s=60.0)
    for i in (1, 2):
        batcher.submit(WaitingRequest([i], i))
    threading.Thread(target=lambda: batcher.submit(WaitingRequest([3], 3)), daemon=True).start()
    assert batcher.run_one() == 3
    alone = BatchQueue(generator, 3, 100, max_delay_s=1e-3)
    alone.submit(WaitingRequest([1], 1))
    assert alone.run_one() == 1


def test_a_batch_that_fails_fails_alone() -> None:
    batcher = BatchQueue(Echo(), 1, 100)
    bad, good = batcher.submit(WaitingRequest([-1], 1)), batcher.submit(WaitingRequest([4], 1))
    batcher.run_one()
    batcher.run_one()
    assert isinstance(bad.exception(0), IndexError)
    assert good.result(0) == [4]


@pytest.mark.parametrize(
    "body", [None, [], {}, {"prompt": []}, {"prompt": "text"}, {"prompt": [1.5]}, {"prompt": [1], "max_tokens": 0}]
)
def test_a_body_that_is_no_request_is_refused(body: object) -> None:
    with pytest.raises(ValueError, match=r"prompt must be|max_tokens must be"):
        request_of(body, None)


def test_it_answers_over_http() -> None:
    batcher = BatchQueue(Echo(), 4, 100)
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler_of(batcher, None, "toy"))
    for run in (server.serve_forever, batcher.run):
        threading.Thread(target=run, daemon=True).start()
    client = HTTPConnection("127.0.0.1", server.server_address[1], timeout=30)

    def ask(method: str, path: str, body: object = None) -> tuple[int, dict[str, object]]:
        client.request(method, path, None if body is None else json.dumps(body))
        reply = client.getresponse()
        return reply.status, json.loads(reply.read())

    assert ask("GET", "/health") == (200, {})
    status, found = ask("POST", "/v1/completions", {"prompt": [5, 9], "max_tokens": 2})
    assert (status, found["usage"]) == (200, {"prompt_tokens": 2, "completion_tokens": 2})
    assert found["choices"] == [{"index": 0, "text": "", "token_ids": [9, 9], "finish_reason": "stop"}]
    assert ask("POST", "/v1/completions", {"prompt": 3})[0] == 400
    assert ask("POST", "/v1/completions", {"prompt": [-1]})[0] == 500
    assert ask("GET", "/other")[0] == 404
    server.shutdown()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["t5", "llama"])
def test_a_real_model_gives_each_request_what_it_gets_alone(kind: str, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    sizes = {"d_model": 32, "d_kv": 8, "d_ff": 64, "num_heads": 4, "num_layers": 2, "decoder_start_token_id": 0}
    if kind == "llama":
        sizes = {"hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 4, "num_hidden_layers": 2}
    config = transformers.AutoConfig.for_model(kind, vocab_size=99, pad_token_id=0, eos_token_id=1, **sizes)
    maker = transformers.AutoModelForSeq2SeqLM if kind == "t5" else transformers.AutoModelForCausalLM
    maker.from_config(config).save_pretrained(tmp_path)
    generator = TorchGenerator.load(str(tmp_path), "float32", "cpu")
    asked = [WaitingRequest(list(range(5, 5 + n)), m, ignore_eos=True) for n, m in ((3, 6), (9, 2), (5, 4))]
    together = generator.generate(asked)
    assert [len(tokens) for tokens in together] == [6, 2, 4]
    assert together == [generator.generate([request])[0] for request in asked]
