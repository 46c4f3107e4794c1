"""Engines and clients as child processes: real processes, every way they fail, nothing left running."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from calibration.profile.machine.contention import ContentionSample, usage
from calibration.serve import engines
from calibration.serve.clients import Endpoint, VllmBench, trace_text
from calibration.serve.server import GRACE_S, EngineServer, Launch, free_port
from catalogs.errors import InputError
from catalogs.workloads.request_set import RequestSet
from simulator.verify.engines import SHORT_LIMITS
from tests.signalled import started

#: Serves files, as an engine with one child would serve a model.
WITH_CHILD = """
import http.server, subprocess, sys
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
http.server.test(http.server.SimpleHTTPRequestHandler, port=int(sys.argv[1]), bind="127.0.0.1")
"""


def _launch(script: str, port: int) -> Launch:
    return Launch("engine", (sys.executable, "-c", script, str(port)), port, health="/")


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_until(condition: Callable[[], bool], within_s: float = 60.0) -> None:
    ends = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < ends
        time.sleep(0.02)


def test_a_server_is_stopped_with_its_children(tmp_path: Path) -> None:
    with EngineServer(_launch(WITH_CHILD, free_port()), tmp_path / "log") as server:
        server.start(timeout_s=120.0)
        pids = server.pids
        assert len(pids) == 2
        server.check_alive()
    assert not any(_alive(pid) for pid in pids)


def test_an_engine_that_ignores_interrupts_is_not_waited_for(tmp_path: Path) -> None:
    """As engines do whose command was started in the background of a shell."""
    ignoring = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)" + WITH_CHILD
    with EngineServer(_launch(ignoring, free_port()), tmp_path / "log") as server:
        server.start(timeout_s=120.0)
        pids = server.pids
        asked = time.monotonic()
    assert time.monotonic() < asked + GRACE_S
    assert not any(_alive(pid) for pid in pids)


def test_stopped_after_an_interrupt_inside_too(tmp_path: Path) -> None:
    pids: frozenset[int] = frozenset()

    def serve_and_interrupt() -> None:
        nonlocal pids
        with EngineServer(_launch(WITH_CHILD, free_port()), tmp_path / "log") as server:
            server.start(timeout_s=120.0)
            pids = server.pids
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        serve_and_interrupt()
    assert pids
    assert not any(_alive(pid) for pid in pids)


TERMINATED = """
import sys, time
from pathlib import Path
from calibration.serve.server import Launch, EngineServer as Server
from catalogs.ui.entry_point import run_command

def command(args, **_):
    launch = Launch("engine", (sys.executable, "-c", args[0], args[1]), int(args[1]), health="/")
    with Server(launch, Path(args[2])) as server:
        server.start()
        print(*server.pids, flush=True)
        time.sleep(600)

sys.exit(run_command("command", command, sys.argv[1:]))
"""


@pytest.mark.parametrize("sign", [signal.SIGTERM, signal.SIGHUP])
def test_a_command_that_is_asked_to_end_stops_its_engine(sign: signal.Signals, tmp_path: Path) -> None:
    arguments = [sys.executable, "-c", TERMINATED, WITH_CHILD, str(free_port()), str(tmp_path / "log")]
    with started(arguments) as command:
        pids = [int(pid) for pid in command.stdout.readline().split()]
        assert len(pids) == 2
        command.send_signal(sign)
        _, stderr = command.communicate(timeout=120.0)
    assert command.returncode == 130
    assert stderr == "command: interrupted\n"
    assert not any(_alive(pid) for pid in pids)


def test_a_command_under_nohup_goes_on_when_the_terminal_closes(tmp_path: Path) -> None:
    arguments = [sys.executable, "-c", TERMINATED, WITH_CHILD, str(free_port()), str(tmp_path / "log")]
    with started(arguments, ignored=signal.SIGHUP) as command:
        pids = [int(pid) for pid in command.stdout.readline().split()]
        command.send_signal(signal.SIGHUP)
        with pytest.raises(subprocess.TimeoutExpired):
            command.wait(timeout=0.5)
        assert all(_alive(pid) for pid in pids)
        command.send_signal(signal.SIGTERM)
        assert command.wait(timeout=120.0) == 130
    assert not any(_alive(pid) for pid in pids)


def test_an_engine_that_dies_shows_its_last_words(tmp_path: Path) -> None:
    launch = _launch("print('no weights here'); raise SystemExit(3)", free_port())
    with (
        pytest.raises(InputError, match=r"status 3(.|\n)*no weights here"),
        EngineServer(launch, tmp_path / "log") as server,
    ):
        server.start()


def test_an_engine_that_never_answers_is_stopped(tmp_path: Path) -> None:
    launch = Launch("engine", ("sh", "-c", "echo loading; exec sleep 600"), free_port(), health="/")
    with EngineServer(launch, tmp_path / "log") as server:
        with pytest.raises(InputError, match=r"not healthy after 1 s(.|\n)*loading"):
            server.start(timeout_s=1.0)
        assert not server.pids


def test_an_engine_that_dies_while_it_serves_is_noticed(tmp_path: Path) -> None:
    with EngineServer(_launch(WITH_CHILD, free_port()), tmp_path / "log") as server:
        server.start(timeout_s=120.0)
        for pid in server.pids:
            os.kill(pid, 9)
        wait_until(lambda: not any(_alive(pid) for pid in server.pids))
        with pytest.raises(InputError, match="while it served"):
            server.check_alive()


def test_a_port_in_use_is_refused_before_anything_starts(tmp_path: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        server = EngineServer(_launch(WITH_CHILD, other.getsockname()[1]), tmp_path / "log")
        with pytest.raises(InputError, match="port cannot be used"):
            server.start()
        assert not server.pids


@pytest.mark.parametrize("port", [70_000, -1])
def test_a_port_that_does_not_exist_is_refused(port: int, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such port"):
        EngineServer(_launch(WITH_CHILD, port), tmp_path / "log").start()


def test_a_folder_that_cannot_be_made_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot create this folder"):
        EngineServer(_launch(WITH_CHILD, free_port()), tmp_path / "file" / "log").start()


def test_a_program_that_is_not_there(tmp_path: Path) -> None:
    port = free_port()
    with pytest.raises(InputError, match="cannot be started"):
        EngineServer(Launch("engine", ("/no/such/engine",), port), tmp_path / "log").start()


@pytest.mark.parametrize(("cores", "threads", "has_worker"), [(2, 1, False), (4, 1, True), (4, 2, False), (8, 4, True)])
def test_vllm_has_a_worker_process_only_where_each_process_has_a_core(
    monkeypatch: pytest.MonkeyPatch, cores: int, threads: int, has_worker: bool
) -> None:
    """Worker and engine core wait actively for each other, and would starve the API server and the client."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(cores)))
    limits = replace(SHORT_LIMITS, threads=threads)
    launch = engines.vllm(Path("python"), Path("model"), 8000, limits, on_cpu=True)
    assert ("uni" in launch.command) != has_worker
    assert launch.env["OMP_NUM_THREADS"] == str(threads)
    assert launch.logs_steps == has_worker
    assert engines.vllm(Path("python"), Path("model"), 8000, limits, on_cpu=False).logs_steps


def test_a_key_goes_by_the_environment_only(monkeypatch: pytest.MonkeyPatch) -> None:
    target = Endpoint("http://127.0.0.1:1", "m", "t", "SOME_KEY")
    monkeypatch.delenv("SOME_KEY", raising=False)
    with pytest.raises(InputError, match="no key"):
        target.environment()
    monkeypatch.setenv("SOME_KEY", "secret")
    assert target.environment()["OPENAI_API_KEY"] == "secret"
    assert "secret" not in repr(target)


def test_a_key_for_somebody_else_is_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients take OPENAI_API_KEY for whatever server they are given."""
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    assert "secret" not in Endpoint("http://127.0.0.1:1", "m", "t").environment().values()
    target = Endpoint("http://127.0.0.1:1", "m", "t", "OPENAI_API_KEY")
    assert target.environment()["OPENAI_API_KEY"] == "secret"


def test_a_trace_shares_nothing_and_says_every_length() -> None:
    requests = RequestSet(np.array([0.0, 0.25]), np.array([17, 16]), np.array([3, 4]))
    first, second = (json.loads(line) for line in trace_text(requests).splitlines())
    assert (first["timestamp"], second["timestamp"]) == (0.0, 250.0)
    assert (len(first["hash_ids"]), len(second["hash_ids"])) == (2, 1)
    assert not set(first["hash_ids"]) & set(second["hash_ids"])


def test_requests_open_connections_of_their_own_if_the_server_closes_idle_ones() -> None:
    requests = RequestSet(np.zeros(1), np.array([16]), np.array([3]))
    target = Endpoint("http://127.0.0.1:1", "m", "t")
    kept, closed = (VllmBench(Path("python"), new_connections=new)._options(requests, target) for new in (False, True))
    assert closed == [*kept, "--header", "Connection=close"]


def test_bystanders_are_told_from_ourselves() -> None:
    """This process spins: nobody else did. Then a child that is not counted as ours does."""
    before = usage()
    ends = time.monotonic() + 0.5
    while time.monotonic() < ends:
        pass
    after = usage()
    own = before.others_cores(after)
    faked = ContentionSample(before.at_s, before.busy_s, before.own_s + 0.5)  # as if half a second of ours were others'
    gained = 0.5 / (after.at_s - before.at_s)
    assert own + 0.5 * gained < faked.others_cores(after) <= own + 1.01 * gained
