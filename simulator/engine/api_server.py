"""The API server in front of an engine, which reads requests and streams tokens.

Each API server process works serially. Its tokeniser thread spends `request_s_per_input_token` on each prompt token, or
`request_s_per_random_token` if prompts are random tokens: a tokeniser does not find their words in its cache.
Its event loop spends `api_token_s` on each streamed token, and `api_request_s` on each request in addition to its
tokens. The output of an engine step reaches the loop `api_step_s` after the end of the step. The remaining delays
before a request reaches the engine (`request_s`) and before a token reaches its client (`output_s`) occupy no thread.

`api_step_s` is the time in which a loop without other work wakes up and reads one output. A loop that is behind reads
all waiting outputs when it next polls its sockets (v1/engine/core_client.py: the task of the output socket empties the
socket before it yields), so the time delays outputs and does not add to the work of a busy loop. No output then leaves
later if steps end earlier. How much of the measured time remains for each output of a busy loop is not known: it was
measured with pauses between the steps (benchmarks/api_server_speed.py).

The engine does not wait for its API server. Tokens beyond the server's streaming capacity queue in the server, so
clients see them with growing delay and closed-loop clients send fewer requests.

An engine may have several processes, `--api-server-count` (vLLM 0.9.1 and newer, pull request 17546). They share the
requests evenly, and the engine sends each of them the tokens of its own requests. Each runs on a core of its own
(catalogs/deployments/resolution/optional_blocks.py checks that the node has enough), so they do not slow each other.
Sources: vLLM's v1/engine/async_llm.py (one output handler), renderers/base.py (one tokeniser thread),
entrypoints/cli/serve.py (by default as many processes as data-parallel ranks).
"""

from __future__ import annotations

from catalogs.engines.profile import HostTimes


class RequestIntake:
    """The inbound path of the API server.

    Requests are assigned to its processes in turn. Each process reads and tokenises them in order of arrival.
    """

    def __init__(self, host: HostTimes, processes: int, random_prompts: bool = False) -> None:
        """Create the processes. The times of a measured host are those of its own prompts and stay as measured."""
        self._host = host
        slower = random_prompts and not host.measured and host.request_s_per_random_token > 0.0
        self._token_s = host.request_s_per_random_token if slower else host.request_s_per_input_token
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
        tokenisers[turn] = ready_s = ready_s + self._token_s * input_tokens
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

    @property
    def times_s(self) -> tuple[float, float, float]:
        """Return the seconds of the loops for each step, each token, and each request in addition to its tokens."""
        return self._step_s, self._token_s, self._request_s

    def restore(self, left_s: float, free_s: float) -> None:
        """Take over the times at which the last tokens have left and the loops are free (engine/fast_path.py)."""
        self.left_s, self._free_s = left_s, free_s

    def stream(self, first_end_s: float, last_end_s: float, steps: int, tokens: int) -> float:
        """Stream the output of several steps and return when the last of it has left, in seconds.

        The steps must not become shorter over time. The loop then has been behind since before the first step, since
        the first step, or not at all: the time at which the tokens leave is the latest of these three.

        Args:
            first_end_s: When the first of the steps ended.
            last_end_s: When the last of the steps ended.
            steps: Number of steps.
            tokens: Tokens that each step produced.
        """
        work_s, first_read_s = tokens * self._token_s, first_end_s + self._step_s
        left_s = last_end_s + self._step_s + work_s
        behind_s = (self._free_s if self._free_s > first_read_s else first_read_s) + steps * work_s
        if behind_s > left_s:
            left_s = behind_s
        self.left_s = self._free_s = left_s
        return left_s

    def end(self, requests: int) -> None:
        """Account for `requests` requests that ended with the most recently streamed tokens."""
        self._free_s += requests * self._request_s
