"""A server of transformers' `generate` on padded batches: the engine `transformers-static`, ready to start.

python3 -m calibration.serve.batch_server --model google-t5/t5-small --max-batch-size 8

One thread computes. When it is idle, it takes waiting requests in order of arrival: as many as `--max-batch-size` and
`--max-batch-tokens`, which limits the padded prompts, allow. With `--max-delay-ms` it first waits, at most so long,
until `--max-batch-size` requests are there. The batch is computed to its longest output and answered whole. The model
may be an encoder-decoder (T5, BART, NLLB) or a decoder; prompts are texts or lists of token ids.

`POST /v1/completions` takes {"prompt": ..., "max_tokens": n, "ignore_eos": false} and answers in the form of OpenAI's
completions, with the token ids of each choice. `GET /health` answers with status 200 once the model is loaded.
"""

from __future__ import annotations

import argparse
import json
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final, Protocol

#: Largest body of a request. A judgement: far above any prompt of a model that this server runs.
MOST_BODY_BYTES: Final = 1 << 22

DEFAULT_TOKENS: Final = 128  # output tokens of a request that names no limit


@dataclass(eq=False, slots=True)
class WaitingRequest:
    """A request on its way through the server; `done` gets the generated token ids."""

    tokens: list[int]
    max_tokens: int
    ignore_eos: bool = False
    done: Future[list[int]] = field(default_factory=Future)


class BatchGenerator(Protocol):
    """Generates the outputs of a batch."""

    def generate(self, batch: Sequence[WaitingRequest]) -> list[list[int]]:
        """Return the token ids of each request, at most its `max_tokens`."""


def batch_size(waiting: Sequence[WaitingRequest], most: int, most_tokens: int) -> int:
    """Return how many requests from the head of the queue form a batch; a single one may exceed the tokens."""
    longest = 0
    for n, request in enumerate(waiting[:most], 1):
        longest = max(longest, len(request.tokens))
        if n > 1 and n * longest > most_tokens:
            return n - 1
    return min(len(waiting), most)


@dataclass(slots=True)
class BatchQueue:
    """The queue and the thread that computes batches."""

    generator: BatchGenerator
    most: int
    most_tokens: int
    max_delay_s: float = 0.0  # longest wait for a full batch
    _waiting: list[WaitingRequest] = field(default_factory=list)
    _changed: threading.Condition = field(default_factory=threading.Condition)

    def submit(self, request: WaitingRequest) -> Future[list[int]]:
        """Add a request to the queue and return its future output."""
        with self._changed:
            self._waiting.append(request)
            self._changed.notify()
        return request.done

    def run_one(self) -> int:
        """Wait for requests, compute one batch, answer it, and return its number of requests."""
        with self._changed:
            self._changed.wait_for(lambda: bool(self._waiting))
            if self.max_delay_s:
                self._changed.wait_for(lambda: len(self._waiting) >= self.most, self.max_delay_s)
            n = batch_size(self._waiting, self.most, self.most_tokens)
            batch, self._waiting[:n] = self._waiting[:n], []
        try:
            outputs = self.generator.generate(batch)
        except Exception as error:
            for request in batch:
                request.done.set_exception(error)
            return n
        for request, tokens in zip(batch, outputs, strict=True):
            request.done.set_result(tokens)
        return n

    def run(self) -> None:
        """Compute batches until the process ends."""
        while True:
            self.run_one()


@dataclass(slots=True)
class TorchGenerator:
    """A model on its device."""

    torch: Any
    model: Any
    tokenizer: Any  # None: prompts are token ids
    pad: int

    @classmethod
    def load(cls, name: str, dtype: str, device: str | None) -> TorchGenerator:
        """Load the model `name`, a Hugging Face id or a folder."""
        import torch
        import transformers

        config = transformers.AutoConfig.from_pretrained(name)
        kind = transformers.AutoModelForSeq2SeqLM if config.is_encoder_decoder else transformers.AutoModelForCausalLM
        model = kind.from_pretrained(name, dtype=getattr(torch, dtype))
        try:
            tokenizer = transformers.AutoTokenizer.from_pretrained(name)
        except (OSError, ValueError, ImportError):
            tokenizer = None
        at = device or ("cuda" if torch.cuda.is_available() else "cpu")
        pad = model.generation_config.pad_token_id
        return cls(torch, model.to(at).eval(), tokenizer, 0 if pad is None else pad)

    def generate(self, batch: Sequence[WaitingRequest]) -> list[list[int]]:
        """Return the token ids of each request; prompts of a decoder are padded on the left."""
        torch, pair = self.torch, self.model.config.is_encoder_decoder
        longest = max(len(request.tokens) for request in batch)
        ids = torch.full((len(batch), longest), self.pad)
        mask = torch.zeros_like(ids)
        for i, request in enumerate(batch):
            here = slice(0, len(request.tokens)) if pair else slice(longest - len(request.tokens), longest)
            ids[i, here], mask[i, here] = torch.tensor(request.tokens), 1
        options: dict[str, Any] = {"do_sample": False, "num_beams": 1, "pad_token_id": self.pad}
        if any(request.ignore_eos for request in batch):
            options |= {"eos_token_id": None, "forced_eos_token_id": None}
        with torch.inference_mode():
            found = self.model.generate(
                ids.to(self.model.device),
                attention_mask=mask.to(self.model.device),
                max_new_tokens=max(request.max_tokens for request in batch),
                **options,
            )
        first = 1 if pair else longest  # the start token of the decoder, or the prompt
        rows = found[:, first:].tolist()
        return [row[: request.max_tokens] for row, request in zip(rows, batch, strict=True)]


def handler_of(batcher: BatchQueue, tokenizer: Any, name: str) -> type[BaseHTTPRequestHandler]:
    """Return the class that answers HTTP requests."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def do_GET(self) -> None:
            if self.path == "/v1/models":
                self._answer(200, {"object": "list", "data": [{"id": name, "object": "model"}]})
            else:
                self._answer(200 if self.path == "/health" else 404, {})

        def do_POST(self) -> None:
            size = int(self.headers.get("Content-Length") or 0)
            if self.path != "/v1/completions" or size > MOST_BODY_BYTES:
                self.close_connection = True
                self._answer(413 if size > MOST_BODY_BYTES else 404, {})
                return
            try:
                request = request_of(json.loads(self.rfile.read(size)), tokenizer)
                tokens = batcher.submit(request).result()
            except (ValueError, TypeError, KeyError) as error:
                self._answer(400, {"error": {"message": str(error)}})
            except Exception as error:
                self._answer(500, {"error": {"message": f"{type(error).__name__}: {error}"[:300]}})
            else:
                text = "" if tokenizer is None else tokenizer.decode(tokens, skip_special_tokens=True)
                used = {"prompt_tokens": len(request.tokens), "completion_tokens": len(tokens)}
                choice = {"index": 0, "text": text, "token_ids": tokens, "finish_reason": "stop"}
                self._answer(200, {"object": "text_completion", "model": name, "choices": [choice], "usage": used})

        def _answer(self, status: int, document: dict[str, Any]) -> None:
            body = json.dumps(document).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None: ...

    return Handler


def request_of(body: Any, tokenizer: Any) -> WaitingRequest:
    """Return the request in the JSON body of a POST.

    Raises:
        ValueError: The prompt is missing, empty or of another type, or max_tokens is not a positive whole number.
    """
    prompt = body.get("prompt") if isinstance(body, dict) else None
    if isinstance(prompt, str) and tokenizer is not None:
        prompt = tokenizer(prompt)["input_ids"]
    if not isinstance(prompt, list) or not prompt or not all(type(token) is int for token in prompt):
        raise ValueError("prompt must be a text (where the model has a tokenizer) or a list of token ids")
    most = body.get("max_tokens", DEFAULT_TOKENS)
    if type(most) is not int or most < 1:
        raise ValueError("max_tokens must be a whole number of at least 1")
    return WaitingRequest(prompt, most, body.get("ignore_eos") is True)


def main() -> None:
    """Load the model and serve it."""
    parser = argparse.ArgumentParser(prog="python3 -m calibration.serve.batch_server")
    parser.add_argument("--model", required=True, help="Hugging Face id or folder")
    parser.add_argument("--max-batch-size", type=int, default=8)
    parser.add_argument("--max-batch-tokens", type=int, default=16384)
    parser.add_argument("--max-delay-ms", type=float, default=0.0, help="longest wait for a full batch")
    parser.add_argument("--dtype", default="bfloat16", choices=("bfloat16", "float16", "float32"))
    parser.add_argument("--device", help="default: cuda where there is one")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    given = parser.parse_args()
    generator = TorchGenerator.load(given.model, given.dtype, given.device)
    batcher = BatchQueue(generator, given.max_batch_size, given.max_batch_tokens, given.max_delay_ms * 1e-3)
    threading.Thread(target=batcher.run, daemon=True).start()
    handler = handler_of(batcher, generator.tokenizer, given.model)
    ThreadingHTTPServer((given.host, given.port), handler).serve_forever()


if __name__ == "__main__":
    main()
