"""The API server in front of an engine, which reads requests and streams tokens.

Each API server process works serially. Its tokeniser thread spends `request_s_per_input_token` on each prompt token.
Its event loop spends `api_step_s` on the output of an engine step, `api_token_s` on each token of that output, and
`api_request_s` on each request in addition to its tokens. The remaining delays before a request reaches the engine
(`request_s`) and before a token reaches its client (`output_s`) occupy no thread.

The engine does not wait for its API server. Tokens beyond the server's streaming capacity queue in the server, so
clients see them with growing delay and closed-loop clients send fewer requests. Sources: vLLM's
v1/engine/async_llm.py (one output handler), renderers/base.py (one tokeniser thread), entrypoints/cli/serve.py (as many
processes as data-parallel ranks).
"""

from __future__ import annotations

from catalogs.engines.profile import HostTimes


class RequestIntake:
    """The inbound path of the API server.

    Requests are assigned to its processes in turn. Each process reads and tokenises them in order of arrival.
    """

    def __init__(self, host: HostTimes, processes: int) -> None:
        self._host = host
        self._loop_s = [0.0] * processes  # by process: when its event loop has read all requests received so far
        self._tokeniser_s = [0.0] * processes
        self._turn = -1

    def admit(self, now: float, input_tokens: int) -> float:
        """Admit a request sent at `now` and return when it reaches an engine, in seconds of the run's clock."""
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
    """The outbound path of one engine, over `processes` event loops that share its requests evenly.

    The work of a request in addition to its tokens is accounted for when the request ends. It thus takes its share of
    the loop without delaying the request itself.
    """

    __slots__ = ("_free_s", "_request_s", "_step_s", "_token_s", "left_s")

    def __init__(self, host: HostTimes, processes: int) -> None:
        self._step_s = host.api_step_s
        self._token_s = host.api_token_s / processes
        self._request_s = host.api_request_s / processes
        self.left_s = 0.0  # when the most recent tokens of the engine leave the server
        self._free_s = 0.0  # when the loops have finished all work so far, including that of ended requests

    def stream(self, first_end_s: float, last_end_s: float, steps: int, tokens: int) -> float:
        """Stream the output of several steps and return when the last of it has left, in seconds.

        The steps must not become shorter over time. The loop then has been behind since before the first step, since
        the first step, or not at all.

        Args:
            first_end_s: When the first of the steps ended.
            last_end_s: When the last of the steps ended.
            steps: Number of steps.
            tokens: Tokens that each step produced.
        """
        work_s = self._step_s + tokens * self._token_s  # seconds of work per step
        left_s = last_end_s + work_s
        behind_s = (self._free_s if self._free_s > first_end_s else first_end_s) + steps * work_s
        if behind_s > left_s:
            left_s = behind_s
        self.left_s = self._free_s = left_s
        return left_s

    def end(self, requests: int) -> None:
        """Account for `requests` requests that ended with the most recently streamed tokens."""
        self._free_s += requests * self._request_s
