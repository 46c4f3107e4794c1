"""`calibrate verify` before it measures: what cannot work is one line, and comes before the engine is started."""

from __future__ import annotations

import inspect
import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from calibration.serve.engines import find_llama_server
from catalogs.errors import InputError
from catalogs.ui.entry_point import run_command
from simulator.verify import session as sessions
from simulator.verify.command import app
from simulator.verify.command import verify as verify_command
from simulator.verify.engines import (
    SHORT_LIMITS,
    EngineChoice,
    endpoint,
    engine_subject,
    engine_version,
    llama_cpp,
)
from simulator.verify.recorded import _OF_THIS_MACHINE
from simulator.verify.screen import check_place
from simulator.verify.session import VerificationEffort
from simulator.verify.trials import MeanLengths, TrialSize
from tests.hostile_server import hostile, reply, sends


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "home"))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--engine", "lama.cpp"], "this engine cannot be started"),
        (["--rate", "0"], "above zero"),
        (["--rate", "-1"], "above zero"),
        (["--rate", "nan"], "above zero"),
        (["--rate", "2", "--rate", "2.0"], "given only once"),
        (["--requests", "0"], "at least 10 requests"),
        (["--output-tokens", "1"], "at least 4 input"),
        (["--threads", "0"], "threads must be"),
    ],
)
def test_options_that_cannot_be_measured(options: list[str], said: str, capsys, tmp_path: Path) -> None:
    assert run_command("calibrate", app, ["verify", *options]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert said in lines[0]
    assert not (tmp_path / "home").exists()  # nothing was made


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ([], "vLLM is not installed"),
        (["--python", "/no/python"], "no such Python interpreter"),
        (["--dtype", "int4"], "requires unquantised weights: got 'int4'; nearest valid choice: fp32, bf16 or fp16"),
        (["--engine", "transformers", "--dtype", "fp8"], "requires unquantised weights"),
        (["--engine", "llama.cpp"], "llama.cpp's server was not found"),
        (["--engine", "llama.cpp", "--dtype", "bf16"], "weights in fp32"),
        (["--model", "llama3.1-8b"], "folder with the config.json"),
        (["--endpoint", "http://127.0.0.1:9"], "needs a deployment file"),
    ],
)
def test_an_engine_that_cannot_be_started_is_found_before_anything_is_written(
    options: list[str], said: str, capsys, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("calibration.serve.engines.shutil.which", lambda _: None)
    monkeypatch.setattr("calibration.serve.engines.importlib.util.find_spec", lambda _: None)
    assert run_command("calibrate", app, ["verify", *options, "--out", str(tmp_path / "out")]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert said in lines[0]
    assert not list(tmp_path.iterdir())


def test_a_recorded_command_names_no_path_of_this_machine_except_its_inputs() -> None:
    """A replay would otherwise write to the outputs of the first run, which exist, and be refused."""
    options = inspect.signature(verify_command).parameters
    paths = {name for name, option in options.items() if "Path" in str(option.annotation)}
    assert set(_OF_THIS_MACHINE) <= set(options)
    assert paths - set(_OF_THIS_MACHINE) == {"model", "deployment"}


def test_a_page_without_a_place_is_refused_before_measuring(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    with pytest.raises(InputError, match="page does not exist"):
        check_place(page, "vllm")
    page.write_text("<!-- verify llama.cpp -->\n<!-- /verify -->\n")
    check_place(page, "llama.cpp")
    with pytest.raises(InputError, match="no place"):
        check_place(page, "vllm")


def _unreached(*_: object) -> object:
    raise AssertionError("the engine was started")


@pytest.mark.parametrize(
    ("limits", "lengths", "said"),
    [
        ({"max_model_len": 1024}, MeanLengths(800, 32), "must hold every request"),
        ({"max_num_seqs": 1}, MeanLengths(), "several requests at once"),
    ],
)
def test_requests_that_the_engine_cannot_take(
    limits, lengths: MeanLengths, said: str, tmp_path: Path, monkeypatch
) -> None:
    from dataclasses import replace

    subject = engine_subject("transformers", EngineChoice(Path("qwen2.5-0.5b"), replace(SHORT_LIMITS, **limits)), None)
    monkeypatch.setattr(sessions, "EngineUnderTest", _unreached)
    with pytest.raises(InputError, match=said):
        sessions.verify(subject, None, VerificationEffort(TrialSize(lengths)), tmp_path, _unreached)  # type: ignore[arg-type]


def test_llama_cpp_serves_fp32_and_is_looked_for_before_weights_are_converted(tmp_path: Path) -> None:
    from dataclasses import replace

    with pytest.raises(InputError, match="in fp32"):
        llama_cpp(EngineChoice(tmp_path, replace(SHORT_LIMITS, weight_dtype="bf16")))
    with pytest.raises(InputError, match="server was not found"):
        llama_cpp(EngineChoice(tmp_path, SHORT_LIMITS, server=tmp_path / "llama-server"))


def test_an_engine_that_is_not_there_has_no_empty_value(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(InputError, match="give its path; hint: give --server PATH"):
        find_llama_server(None)


@pytest.fixture
def gibberish() -> Iterator[str]:
    """The URL of a server that speaks no HTTP."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        listening.settimeout(20.0)

        def answer() -> None:
            while True:
                try:
                    met, _ = listening.accept()
                except OSError:
                    return
                met.recv(1000)
                met.sendall(b"SSH-2.0-OpenSSH_9.6\r\n")
                met.close()

        answering = threading.Thread(target=answer, daemon=True)
        answering.start()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"


def test_an_endpoint_that_speaks_no_http_is_one_line(gibberish: str, tmp_path: Path) -> None:
    deployment = tmp_path / "deployment.yaml"
    deployment.write_text("model: qwen2.5-0.5b\nhardware: rtx4090\n")
    for url, says in ((gibberish, "does not list its models"), ("http://127.0.0.1:port", "not a URL")):
        with pytest.raises(InputError, match=says):
            endpoint(url, deployment, None, None, None)
    with pytest.raises(InputError, match="--key-env") as caught:
        endpoint(gibberish.replace("//", "//user:SECRET@"), deployment, None, None, None)
    assert "SECRET" not in str(caught.value)
    from calibration.serve.clients import Endpoint

    assert engine_version(Endpoint(gibberish, "m", "t")) == ""


@pytest.mark.parametrize(
    "document",
    [
        [], {}, {"data": None}, {"data": [1]}, {"data": [{"id": None}]}, {"data": []}, {"data": [{"id": "--help"}]},
        {"data": [{"id": "a\u0000b"}]}, {"data": [{"id": "\u001b[2J"}]}, {"data": [{"id": "x" * 300}]}, "x",
    ],
)  # fmt: skip
def test_lists_of_models_that_no_command_can_take_are_one_line(document: object, tmp_path: Path) -> None:
    deployment = tmp_path / "deployment.yaml"
    deployment.write_text("model: qwen2.5-0.5b\nhardware: rtx4090\n")
    says, body = "the endpoint does not (list its models|serve any model)", json.dumps(document).encode()
    with hostile(sends(reply(body))) as server, pytest.raises(InputError, match=says) as caught:
        endpoint(server.url, deployment, None, None, None)
    assert str(caught.value).isprintable()


def test_a_version_is_one_short_line() -> None:
    from calibration.serve.clients import Endpoint

    body = json.dumps({"version": "1.0\n\u001b[31m" + "x" * 10_000}).encode()
    with hostile(sends(reply(body))) as server:
        version = engine_version(Endpoint(server.url, "m", "t"))
    assert version.startswith("1.0 ?[31mxx")
    assert len(version) == 80
