"""The API server in front of an engine: requests are read in, tokens are streamed out.

A process of it does one thing at a time: its tokeniser thread spends `request_s_per_input_token` on each token of a
prompt, its event loop `api_step_s` on what an engine step put out, `api_token_s` on each token of that and
`api_request_s` on a request apart from its tokens. What else passes before a request is at the engine (`request_s`) or
a token at its client (`output_s`) keeps nobody busy.

The engine does not wait for its API server: beyond what that can stream, tokens queue here. Clients see them later and
later, and closed-loop clients send less. Sources: vLLM's v1/engine/async_llm.py (one output handler), renderers/base.py
(one tokeniser thread), entrypoints/cli/serve.py (as many processes as data-parallel ranks).
"""

from __future__ import annotations

from catalogs.engines.profile import HostTimes


class RequestIntake:
    """The way in. Processes take turns; each reads and tokenises in the order of arrival."""

    __slots__ = ("_host", "_loop_s", "_tokeniser_s", "_turn")

    def __init__(self, host: HostTimes, processes: int) -> None:
        self._host = host
        self._loop_s = [0.0] * processes  # by process: when it has read all that has come
        self._tokeniser_s = [0.0] * processes
        self._turn = -1

    def admit(self, now: float, input_tokens: int) -> float:
        """A request is sent; when it will be at an engine. Seconds of the run's clock."""
        host, loops, tokenisers = self._host, self._loop_s, self._tokeniser_s
        self._turn = turn = (self._turn + 1) % len(loops)
        start_s = loops[turn] if loops[turn] > now else now
        loops[turn] = start_s + host.api_request_s
        ready_s = start_s + host.request_s
        if tokenisers[turn] > ready_s:
            ready_s = tokenisers[turn]
        tokenisers[turn] = ready_s = ready_s + host.request_s_per_input_token * input_tokens
        return ready_s


class TokenStream:
    """The way out of one engine, over `processes` event loops that share its requests evenly.

    A request's work apart from its tokens is booked when it ends: so it takes its share of the loop, and no request
    waits for its own.
    """

    __slots__ = ("_free_s", "_request_s", "_step_s", "_token_s", "left_s")

    def __init__(self, host: HostTimes, processes: int) -> None:
        self._step_s = host.api_step_s
        self._token_s = host.api_token_s / processes
        self._request_s = host.api_request_s / processes
        self.left_s = 0.0  # when the last tokens the engine put out have left, or will have
        self._free_s = 0.0  # when the loops are done with all that came, requests that ended included

    def stream(self, first_end_s: float, last_end_s: float, steps: int, tokens: int) -> float:
        """Steps of `tokens` each ended from first_end_s to last_end_s; when the last of them has left.

        The steps must not become shorter: then the loop is behind since before them, since the first, or not at all.
        """
        work_s = self._step_s + tokens * self._token_s  # of each step
        left_s = last_end_s + work_s
        behind_s = (self._free_s if self._free_s > first_end_s else first_end_s) + steps * work_s
        if behind_s > left_s:
            left_s = behind_s
        self.left_s = self._free_s = left_s
        return left_s

    def end(self, requests: int) -> None:
        """So many requests ended with the tokens that left last."""
        self._free_s += requests * self._request_s
