"""The grammar of `--hw`: [NODES*]NAME[:MIG][xCOUNT] or local."""

from __future__ import annotations

import re

from catalogs import hardware_files as files
from catalogs.errors import InputError, nearest_name
from catalogs.hardware import Hardware

_NODES = re.compile(r"^(?P<nodes>-?\d+)\s*\*\s*(?P<rest>.+)$")
_COUNT = re.compile(r"^(?P<name>.+?)x(?P<count>-?\d+)$")


def parse(text: str) -> Hardware:
    """See catalogs.hardware.parse_hardware."""
    plain = "".join(text.split()).lower()
    if not plain:
        raise InputError("hardware must be NAME, NAMExCOUNT or NODES*NAMExCOUNT", text, "h100x8")
    if plain == "local":
        from catalogs.local_machine import local_hardware

        return local_hardware()
    nodes, rest = _split_nodes(plain)
    name, count = _split_count(rest)
    if nodes < 1:
        raise InputError("the number of nodes must be at least 1", text, f"1*{rest}")
    if ":" in name:
        return _slices(plain, nodes, name, count)
    file = files.read(name)
    most = file.node.max_accelerators
    if nodes == 1 and count > most > 1 and count % most == 0:
        return _whole_nodes(plain, file, count)
    _check_count(text, file.name, count, most, f"a {file.name} node")
    return Hardware(_text(nodes, file.name, count), files.node(file, count), count, nodes)


def _whole_nodes(plain: str, file: files.HardwareFile, count: int) -> Hardware:
    """More accelerators than a node holds, as many nodes as they fill."""
    most = file.node.max_accelerators
    text = _text(count // most, file.name, most)
    notice = f"a {file.name} node holds {most}: {plain} is taken as {text}"
    return Hardware(text, files.node(file, most), most, count // most, (notice,))


def _split_nodes(plain: str) -> tuple[int, str]:
    found = _NODES.match(plain)
    return (int(found["nodes"]), found["rest"]) if found else (1, plain)


def _split_count(rest: str) -> tuple[str, int]:
    """`h100x8` -> h100, 8. A whole name wins, since some end in x and digits (rtx4090, mi300x)."""
    if files.find(rest) is not None:
        return rest, 1
    found = _COUNT.match(rest)
    if found is None or found["name"] == "rt":  # an unknown rtxNNNN is a name, not a count
        return rest, 1
    return found["name"], int(found["count"])


def _slices(plain: str, nodes: int, name: str, count: int) -> Hardware:
    gpu, _, profile = name.partition(":")
    file = files.read(gpu)
    if not file.mig:
        raise InputError(f"{file.name} cannot be cut into MIG slices", plain, file.name)
    if profile not in file.mig:
        near = nearest_name(profile, file.mig) or next(iter(file.mig))
        raise InputError(f"{file.name} has no such MIG profile", profile, f"{file.name}:{near}")
    label = f"{file.name}:{profile}"
    _check_count(plain, label, count, file.mig[profile].max_per_gpu, f"one {file.name} cut into {profile}")
    return Hardware(_text(nodes, label, count), files.mig_node(file, profile), count, nodes)


def _check_count(text: str, name: str, count: int, most: int, holder: str) -> None:
    if 1 <= count <= most:
        return
    if count < 1:
        raise InputError("the number of accelerators must be at least 1", text, f"{name}x1")
    raise InputError(f"{holder} holds at most {most}", text, f"{name}x{most}")


def _text(nodes: int, name: str, count: int) -> str:
    return f"{nodes}*{name}x{count}" if nodes > 1 else f"{name}x{count}"
