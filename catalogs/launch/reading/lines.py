"""Finds the commands of a text that start an engine, with their environment, image and files."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from catalogs.launch.reading.shell import Script, ShellCommand, read_script

#: The engine of each Python module that starts a server.
MODULES: Final[Mapping[str, str]] = {
    "vllm.entrypoints.openai.api_server": "vllm",
    "vllm.entrypoints.api_server": "vllm",
    "vllm.entrypoints.cli.main": "vllm",
    "dynamo.vllm": "vllm",
    "sglang.launch_server": "sglang",
    "dynamo.sglang": "sglang",
    "dynamo.trtllm": "trtllm",
    "tensorrt_llm.commands.serve": "trtllm",
    "llama_cpp.server": "",
}

#: Engines by a part of the name of an image whose entry point is the server.
_SERVER_IMAGES: Final = (("llama.cpp:server", "llama.cpp"), ("vllm/vllm-openai", "vllm"), ("vllm-openai", "vllm"))

_SHELLS: Final = ("sh", "bash", "zsh", "dash")

_RUNTIMES: Final = ("docker", "podman", "nerdctl")

#: Options of `docker run` that stand without a value.
_BARE_OPTIONS: Final = ("-d", "-i", "-t", "-it", "-ti", "-dit", "-itd", "--rm", "--detach", "--interactive", "--tty",
                        "--privileged", "--init", "--read-only", "-P", "--publish-all", "--no-healthcheck")  # fmt: skip


@dataclass(frozen=True, slots=True)
class LaunchLine:
    """One command that starts a server, with what is known around it.

    Attributes:
        engine: The family of engines: "vllm", "sglang", "trtllm" or "llama.cpp".
        program: The program as it is written.
        words: The words after the program.
        environment: Variables that the command is started with.
        image: The container image, or "".
        gpus: Accelerators that the container or the variables give to the server; None if neither limits them.
        files: Contents of files that the command may name, by the last part of their paths.
        conditional: Variables of the script that depend on conditions which are unknown.
        name: The name of the service or container in a manifest, or "".
        replicas: Servers that the manifest starts.
        nodes: Nodes of each server.
        role: The role that the manifest states, or "".
        accelerator: The kind of accelerator that the manifest selects, or "".
        model: The model that the user names in place of that of the command, or "".
        in_loop: Whether a loop of the script starts it.
    """

    engine: str
    program: str
    words: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    image: str = ""
    gpus: int | None = None
    files: Mapping[str, str] = field(default_factory=dict)
    conditional: frozenset[str] = frozenset()
    name: str = ""
    replicas: int = 1
    nodes: int = 1
    role: str = ""
    accelerator: str = ""
    model: str = ""
    in_loop: bool = False

    @property
    def version(self) -> str | None:
        """Return the version in the tag of the image; None if the tag has none, or is that of another product."""
        tag = self.image.rpartition("/")[2].partition(":")[2]
        found = re.match(r"v?(\d+\.\d+(?:\.\d+)?)", tag)
        return found[1] if found and "dynamo" not in self.image else None


def launch_lines(text: str, variables: Mapping[str, str] | None = None) -> list[LaunchLine]:
    """Return the commands of a shell text that start a server.

    Raises:
        InputError: The text is not valid shell.
    """
    script = read_script(text, variables)
    return list(lines_of(script))


def lines_of(script: Script) -> Iterator[LaunchLine]:
    """Yield the commands of a script that start a server."""
    for command in script.commands:
        for line in _lines(command):
            gpus = line.gpus if line.gpus is not None else _visible(line.environment)
            files = {**script.files, **line.files}
            in_loop = line.in_loop or command.in_loop
            yield replace(line, files=files, gpus=gpus, conditional=frozenset(script.conditional), in_loop=in_loop)


def started_by(words: Sequence[str], environment: Mapping[str, str], image: str) -> list[LaunchLine]:
    """Return the servers that a container starts with these words: one, or those of a shell line."""
    return list(_lines(ShellCommand(tuple(words), environment), image))


def _lines(command: ShellCommand, image: str = "") -> Iterator[LaunchLine]:
    words = command.words
    for i, word in enumerate(words):
        program = word.rpartition("/")[2]
        following = words[i + 1 : i + 2]
        if program in _RUNTIMES and "run" in words[i + 1 :]:
            yield from _container(words[words.index("run", i) + 1 :], command.environment)
            return
        if program in _SHELLS and (found := _shell_text(words[i + 1 :])) is not None:
            yield from (replace(line, image=line.image or image) for line in launch_lines(found, command.environment))
            return
        known = _program(program, following, words[i + 1 :])
        if known is not None:
            engine, n_words = known
            name = " ".join(words[i : i + 1 + n_words])
            rest = words[i + 1 + n_words :]
            yield LaunchLine(engine, name, rest, command.environment, image)
            return
    if image and words and words[0].startswith("-") and (engine := server_of(image)):
        yield LaunchLine(engine, image, words, command.environment, image)


def _program(program: str, following: Sequence[str], rest: Sequence[str]) -> tuple[str, int] | None:
    """Return the engine of a program, and how many words after its first one belong to it."""
    if program in ("vllm", "sglang") and following == ("serve",):
        return program, 1
    if program == "trtllm-serve":
        return "trtllm", int(following == ("serve",))
    if program in ("llama-server", "llama-server.exe"):
        return "llama.cpp", 0
    if re.fullmatch(r"python[\d.]*", program) and "-m" in rest:
        at = rest.index("-m")
        module = rest[at + 1] if at + 1 < len(rest) else ""
        if all(word.startswith("-") for word in rest[:at]) and MODULES.get(module):
            extra = rest[at + 2 : at + 3] == ("serve",)
            return MODULES[module], at + 2 + int(extra and module.endswith("main"))
    return None


def server_of(image: str) -> str:
    """Return the engine that an image starts without a command, or ""."""
    return next((engine for part, engine in _SERVER_IMAGES if part in image), "")


def _shell_text(words: Sequence[str]) -> str | None:
    """Return the text of `sh -c TEXT`; None for another command."""
    for i, word in enumerate(words):
        if word.startswith("-") and not word.startswith("--") and word.endswith("c") and i + 1 < len(words):
            return words[i + 1]
        if not word.startswith("-"):
            return None
    return None


def _container(words: Sequence[str], environment: Mapping[str, str]) -> Iterator[LaunchLine]:
    """Yield the servers of `docker run OPTIONS IMAGE WORDS`."""
    own, gpus, entry, i = dict(environment), None, "", 0
    while i < len(words) and words[i].startswith("-"):
        name, equals, value = words[i].partition("=")
        if not equals and name not in _BARE_OPTIONS:
            i += 1
            value = words[i] if i < len(words) else ""
        if name in ("-e", "--env") and "=" in value:
            name, _, text = value.partition("=")
            own[name] = text
        elif name == "--gpus":
            gpus = _devices(value)
        elif name == "--entrypoint":
            entry = value
        i += 1
    if i >= len(words):
        return
    image, rest = words[i], words[i + 1 :]
    started = ([entry] if entry else []) + list(rest)
    found = list(_lines(ShellCommand(tuple(started), own), image))
    engine = server_of(image)
    if not found and engine and not entry:
        found = [LaunchLine(engine, image, tuple(rest), own, image)]
    visible = _visible(own)
    for line in found:
        yield replace(line, image=image, gpus=gpus if visible is None else visible)


def _devices(value: str) -> int | None:
    """Return the number of accelerators in `--gpus 4` or `--gpus '"device=0,1"'`; None for `all`."""
    plain = value.strip("'\"")
    if plain.isdigit():
        return int(plain)
    listed = re.search(r"device=([\w,-]+)", plain)
    return len(listed[1].split(",")) if listed else None


def _visible(environment: Mapping[str, str]) -> int | None:
    """Return the number of accelerators that variables make visible; None if no variable limits them."""
    for name in ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES"):
        value = environment.get(name, "")
        if re.fullmatch(r"[\w-]+(,[\w-]+)*", value) and value not in ("all", "void", "none"):
            return len(value.split(","))
    return None
