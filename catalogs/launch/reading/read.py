"""Start commands and manifests as deployments: each server is read, all are combined, and the result is checked."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from catalogs.deployments.key_texts import parse_settings, unknown_key, with_keys
from catalogs.deployments.layout import Layout
from catalogs.deployments.resolve import CatalogLookup, resolve_pools
from catalogs.deployments.schema import Deployment, deployment_of_keys
from catalogs.engines.flags import flag_table
from catalogs.engines.profile import EngineProfile
from catalogs.errors import InputError, nearest_name
from catalogs.hardware.catalog import parse_hardware
from catalogs.hardware.specs import Hardware
from catalogs.io.input_files import exists, read_text
from catalogs.io.yaml_files import parse_documents
from catalogs.io.yaml_loader import MOST_CHARACTERS
from catalogs.launch.reading.engine_reader import Reading
from catalogs.launch.reading.lines import LaunchLine, launch_lines
from catalogs.launch.reading.llama_cpp import read_llama_cpp
from catalogs.launch.reading.manifests import manifest_lines
from catalogs.launch.reading.names import engine_of_version
from catalogs.launch.reading.notes import WORTH_READING, Note
from catalogs.launch.reading.sglang import read_sglang
from catalogs.launch.reading.shell import unset_variables
from catalogs.launch.reading.trtllm import read_trtllm
from catalogs.launch.reading.vllm import read_vllm
from catalogs.models.catalog import load_model

#: Readers by the family of the engine.
READERS: Final[Mapping[str, Callable[[LaunchLine], Reading]]] = {
    "vllm": read_vllm,
    "sglang": read_sglang,
    "trtllm": read_trtllm,
    "llama.cpp": read_llama_cpp,
}

#: Keys that a pool of a disaggregated deployment does not set itself.
_SHARED: Final = ("model", "replicas")


@dataclass(frozen=True, slots=True)
class ReadLaunch:
    """What was read from a command or a manifest.

    Attributes:
        keys: The keys of deployment.yaml.
        notes: The notes on each flag, in the order of the text.
        programs: The programs that were read.
        kept: The words of flags without an effect on a step, for another command of the same server; () for several.
    """

    keys: dict[str, Any]
    notes: tuple[Note, ...]
    programs: tuple[str, ...]
    kept: tuple[str, ...] = ()

    @property
    def deployment(self) -> Deployment:
        """Return the deployment that the keys describe.

        Raises:
            InputError: A key is unknown or has a value that a deployment does not allow.
        """
        return deployment_of_keys(self.keys, "the deployment of the command")

    @property
    def important(self) -> list[Note]:
        """Return the notes that a user should read, the most important kinds first."""
        return sorted((n for n in self.notes if n.kind in WORTH_READING), key=lambda n: WORTH_READING.index(n.kind))

    def document(self) -> dict[str, Any]:
        """Return the reading as JSON data."""
        return {
            "schema_version": 1,
            "deployment": self.keys,
            "programs": list(self.programs),
            "notes": [note.document() for note in self.notes],
        }


def read_command(
    text: str,
    hardware: str | None = None,
    settings: Sequence[str] = (),
    variables: Mapping[str, str] | None = None,
    service: str | None = None,
) -> ReadLaunch:
    """Return the deployment of a shell text: one command, or a script with several.

    Args:
        text: The command.
        hardware: What it runs on, such as h100x8; None where the text states it.
        settings: `KEY=VALUE` of deployment.yaml, which take precedence over the text.
        variables: Values of variables that the text uses.
        service: The server that counts, by the name in a manifest, or by its number in the text (1 is the first).

    Raises:
        InputError: The text starts no known server, or the deployment is invalid.
    """
    lines = launch_lines(text, variables)
    if not lines:
        known = "vllm serve, python -m sglang.launch_server, trtllm-serve, llama-server"
        raise InputError("a start command must start an engine that is known", text.strip()[:80], known)
    return _combined(lines, hardware, settings, service)


def read_launch_file(
    path: Path,
    hardware: str | None = None,
    settings: Sequence[str] = (),
    variables: Mapping[str, str] | None = None,
    service: str | None = None,
) -> ReadLaunch:
    """Return the deployment of a shell script or of a YAML manifest; see `read_command`.

    Raises:
        InputError: The file cannot be read, starts no known server, or the deployment is invalid.
    """
    if " " in str(path) and not exists(path):  # a path can be too long for `Path.exists`
        hint = "simulate, plan improve and plan whatif take a command as text, with --from-command"
        raise InputError("there is no such file", str(path), hint=hint)
    text = read_text(path, f"cannot read {path.name}", MOST_CHARACTERS)
    if path.suffix.lower() not in (".yaml", ".yml", ".json"):
        return read_command(text, hardware, settings, variables, service)
    for name, value in (variables or {}).items():
        pattern = re.compile(rf"\$(?:\{{{name}(?::?-[^}}]*)?\}}|{name}\b)")
        text = pattern.sub(value.replace("\\", r"\\"), text)
    text = re.sub(r"\$\{\w+:?-([^}]*)\}", r"\1", text)
    return _combined(manifest_lines(parse_documents(text, path.name)), hardware, settings, service)


@dataclass(frozen=True, slots=True)
class _Server:
    """One server of a text: the keys that it states, without hardware and replicas."""

    line: LaunchLine
    keys: dict[str, Any]
    role: str
    replicas: int
    accelerators: int  # of each replica
    kept: tuple[str, ...]


def _combined(
    lines: Sequence[LaunchLine], hardware: str | None, settings: Sequence[str], service: str | None
) -> ReadLaunch:
    notes: list[Note] = []
    changed = parse_settings(settings, _check_key)
    named = str(changed.get("model", ""))
    seen = parse_hardware(hardware).n_accelerators if hardware is not None and len(lines) == 1 else None
    lines = [replace(line, model=named, gpus=seen if line.gpus is None else line.gpus) for line in lines]
    chosen = [line for line in _chosen(lines, service) if not _is_further_node(line, notes)]
    servers = [_server(line, notes, len(lines) > 1) for line in chosen or lines[:1]]
    keys = _joined(servers, notes)
    if hardware is None and "hardware" not in changed:
        hardware = _stated_hardware(servers)
    keys = with_keys({"hardware": hardware, **keys}, changed)
    keys = {"model": keys.pop("model"), "engine": keys.pop("engine"), **keys}
    if isinstance(keys["hardware"], str):
        _check_hardware(str(keys["hardware"]), servers, keys)
    kept = servers[0].kept if len(servers) == 1 else ()
    read = ReadLaunch(keys, (), tuple(dict.fromkeys(s.line.program for s in servers)), kept)
    keys = _completed(read.deployment, dict(keys), servers, notes)
    notes += _idle(replace(read, keys=keys).deployment)
    return replace(read, keys=keys, notes=tuple(dict.fromkeys(notes)))


def _idle(written: Deployment) -> list[Note]:
    """Return a note about accelerators that no replica uses.

    Raises:
        InputError: The deployment is invalid.
    """
    pools = resolve_pools(written)
    total = parse_hardware(written.hardware).n_accelerators
    used = sum(pool.replicas * pool.layout.accelerators for pool in pools)
    if used >= total or any(pool.hardware.text != pools[0].hardware.text for pool in pools):
        return []
    text = f"{used} of {total} accelerators are used: prices are of what these need, and energy includes the others"
    return [Note("assumed", "", text)]


def _chosen(lines: Sequence[LaunchLine], service: str | None) -> list[LaunchLine]:
    if service is None:
        return list(lines)
    if service.isdigit() and 1 <= int(service) <= len(lines):
        return [lines[int(service) - 1]]
    found = [line for line in lines if line.name == service]
    if not found:
        names = [line.name or str(i + 1) for i, line in enumerate(lines)]
        raise InputError("no server of the text has this name", service, nearest_name(service, names) or names[0])
    return found


def _is_further_node(line: LaunchLine, notes: list[Note]) -> bool:
    """Return whether a command belongs to a further node of a server that another command starts."""
    words = [part for word in line.words for part in word.replace("_", "-").split("=", 1)]
    rank = next((value for flag, value in pairwise(words) if flag in ("--node-rank", "-r")), "0")
    further = "--headless" in words or rank != "0"
    if further:
        notes.append(Note("no effect", line.program, "a further node of the same server; its command is not counted"))
    return further


def _server(line: LaunchLine, notes: list[Note], several: bool) -> _Server:
    """Return one server, and add the notes of its reading."""
    line = _without_unset(line, notes)
    reading = READERS[line.engine](line)
    where = f"{line.name}: " if several and line.name else ""
    notes += [replace(note, flag=f"{where}{note.flag}") if where else note for note in reading.notes]
    if "engine" not in reading.keys:
        version = reading.version or line.version
        engine, more = engine_of_version(line.engine, version, line.image)
        reading.keys["engine"] = engine
        notes += more
    keys = reading.keys
    if keys.get("expert_parallel") and not load_model(keys["model"]).is_moe:
        del keys["expert_parallel"]
        notes.append(Note("no effect", "--enable-expert-parallel", "the model has no experts"))
    replicas = line.replicas * int(keys.pop("replicas", 1))
    layout = Layout(**{f.name: keys[f.name] for f in fields(Layout) if f.name in keys})
    return _Server(line, keys, reading.role, replicas, layout.accelerators, tuple(reading.kept))


def _without_unset(line: LaunchLine, notes: list[Note]) -> LaunchLine:
    """Return the line without words that are only a variable which is not set.

    Raises:
        InputError: A variable that is not set is a part of a word.
    """
    kept: list[str] = []
    for i, word in enumerate(line.words):
        unset = unset_variables(word)
        if not unset:
            kept.append(word)
            continue
        is_value = i > 0 and line.words[i - 1].startswith("-")
        flag = word.partition("=")[0] if word.startswith("-") else line.words[i - 1] if is_value else ""
        if flag_table(line.engine).is_ignored(flag):
            kept.append(word)
            continue
        if word == "${" + unset[0] + "}" and not is_value:
            notes.append(Note("assumed", word, "the variable is not set; the word is left out"))
            continue
        raise InputError("the command uses a variable that nothing sets", word, hint=f"--env {unset[0]}=VALUE")
    if line.in_loop:
        text = (
            "a loop starts the server and is not followed: the server counts once; --set replicas=N states the number"
        )
        notes.append(Note("assumed", line.program, text))
    used = sorted(line.conditional)
    if used:
        text = "set under a condition that is not evaluated: the last assignment counts"
        notes.append(Note("assumed", ", ".join(used[:6]), text))
    return replace(line, words=tuple(kept))


def _joined(servers: Sequence[_Server], notes: list[Note]) -> dict[str, Any]:
    """Return the keys of all servers together: equal ones are replicas, and those of two roles are disaggregated.

    Raises:
        InputError: The servers differ in another way.
    """
    groups: list[list[_Server]] = []
    for server in servers:
        same = next((g for g in groups if g[0].keys == server.keys and g[0].role == server.role), None)
        if same is None:
            groups.append([server])
        else:
            same.append(server)
    counts = [sum(server.replicas for server in group) for group in groups]
    if len(groups) == 2 and {group[0].role for group in groups} == {"prefill", "both"}:
        groups = [[replace(s, role="decode") if s.role == "both" else s for s in group] for group in groups]
        notes.append(Note("assumed", "", "the server beside the prefill server decodes"))
    if len(groups) == 1:
        return groups[0][0].keys | {"replicas": counts[0]}
    by_role = {group[0].role: (group[0], count) for group, count in zip(groups, counts, strict=True)}
    if len(groups) == 2 and set(by_role) == {"prefill", "decode"}:
        (prefill, n_prefill), (decode, n_decode) = by_role["prefill"], by_role["decode"]
        own = {key: prefill.keys.get(key) for key in {**prefill.keys, **decode.keys} if key not in _SHARED}
        own = {key: value for key, value in own.items() if value != decode.keys.get(key)}
        own = {key: _neutral(key) if value is None else value for key, value in own.items()}
        split = {"prefill_replicas": n_prefill, "decode_replicas": n_decode, "prefill": own}
        return decode.keys | {"disaggregation": split}
    names = [server.line.name or str(i + 1) for i, server in enumerate(servers)]
    raise InputError(
        "the text starts several servers that differ; choose one", ", ".join(names), f"--service {names[0]}"
    )


def _neutral(key: str) -> Any:
    """Return the value of a key that a pool does not state although the other one does."""
    return Deployment.model_fields[key].default


def _stated_hardware(servers: Sequence[_Server]) -> str:
    """Return the hardware that a manifest states by its resources and node selectors.

    Raises:
        InputError: The text does not name the accelerator.
    """
    kinds = list(dict.fromkeys(server.line.accelerator for server in servers))
    if len(kinds) != 1 or not kinds[0]:
        count = _needed(servers)
        rule = "the text does not name one kind of accelerator"
        raise InputError(rule, ", ".join(filter(None, kinds)) or None, hint=f"give it: --hw h100x{count}")
    return _text(kinds[0], servers)


def _needed(servers: Sequence[_Server]) -> int:
    """Return the accelerators of all servers: those that they use, or those of their pods where these are more."""
    return sum(s.replicas * max(s.accelerators, (s.line.gpus or 0) * s.line.nodes) for s in servers)


def _text(kind: str, servers: Sequence[_Server]) -> str:
    """Return hardware of one kind that holds all pods, such as h200x8 or 2*h200x8."""
    most = parse_hardware(kind).node.max_accelerators
    total = _needed(servers)
    if total <= most:
        return f"{kind}x{total}" if total > 1 else kind
    each = max(max(s.line.gpus or s.accelerators, 1) for s in servers)
    per_node = most // each * each if each <= most else most
    return f"{-(-total // per_node)}*{kind}x{per_node}"


def _check_hardware(text: str, servers: Sequence[_Server], keys: Mapping[str, Any]) -> None:
    hardware = parse_hardware(text)
    used = sum(server.replicas * server.accelerators for server in servers)
    set_again = {"tensor_parallel", "pipeline_parallel", "data_parallel", "replicas"} & set(keys)
    if used > hardware.n_accelerators and all(keys.get(k) == servers[0].keys.get(k, keys.get(k)) for k in set_again):
        name = hardware.accelerator.name
        rule = f"the command uses {used} accelerators, and {text} has {hardware.n_accelerators}"
        raise InputError(rule, text, _text(name, servers))


def _completed(
    written: Deployment, keys: dict[str, Any], servers: Sequence[_Server], notes: list[Note]
) -> dict[str, Any]:
    """Return the keys with what depends on the hardware and on the sizes of the model."""
    hardware = parse_hardware(written.hardware)
    receives = _profile(written, hardware).receiving is not None
    if keys["engine"] == "sglang" and not _has_receive_interval(servers) and receives:
        keys["engine"] = "sglang-bare"
        text = "engine: sglang-bare, which receives requests before every step; the published recipes set an interval"
        notes.append(Note("assumed", "--scheduler-recv-interval", text))
    if "gemm_backend" not in keys and _profile(written, hardware).flashinfer_products:
        keys["gemm_backend"] = "deepgemm"
        text = "gemm_backend: deepgemm, SGLang's choice; the published recipes set another"
        notes.append(Note("assumed", "--fp8-gemm-backend", text))
    longest = load_model(written.model).longest_sequence_tokens
    if (written.max_model_len or 0) > longest:
        allowed = any(
            "--hf-overrides" in s.line.words
            or "--rope-scaling" in s.line.words
            or s.line.environment.get("VLLM_ALLOW_LONG_MAX_MODEL_LEN") == "1"
            for s in servers
        )
        if allowed:
            keys["max_model_len"] = longest
            notes.append(Note("not simulated", "--max-model-len", f"contexts beyond the model's {longest} tokens"))
    return keys


def _has_receive_interval(servers: Sequence[_Server]) -> bool:
    words = [part for server in servers for word in server.line.words for part in word.split("=", 1)]
    return any(w == "--scheduler-recv-interval" and b != "1" for w, b in pairwise(words))


def _profile(written: Deployment, hardware: Hardware) -> EngineProfile:
    """Return the profile of the engine with its defaults for the model on the hardware."""
    return CatalogLookup.on(hardware, written.model, written.engine).engine


def parse_variables(texts: Sequence[str]) -> dict[str, str]:
    """Return the variables that `NAME=VALUE` texts set.

    Raises:
        InputError: A text is not NAME=VALUE.
    """
    found = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name.isidentifier():
            raise InputError("a variable is NAME=VALUE", text, "TP=8")
        found[name] = value
    return found


def _check_key(key: str) -> None:
    first = key.partition(".")[0]
    if first not in Deployment.model_fields:
        raise unknown_key("deployment.yaml has no such key", first, Deployment.model_fields)
