"""Hardware by name; the grammar of `--hw` is [NODES*]NAME[:MIG][xCOUNT] or local."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache

from catalogs.errors import InputError, nearest_name
from catalogs.hardware import files
from catalogs.hardware.specs import Hardware


def parse_hardware(text: str) -> Hardware:
    """Return the hardware that `NAME`, `NAMExCOUNT`, `NODES*NAMExCOUNT`, `NAME:MIGxCOUNT` or `local` names.

    With MIG the node is one GPU cut into COUNT instances; `3*a100-80gb:2g.20gbx3` is three such GPUs.

    Raises:
        InputError: The name is unknown, or the count is not between 1 and the node's maximum.
    """
    plain = "".join(text.split()).lower()
    if not plain:
        raise InputError("hardware must be NAME, NAMExCOUNT or NODES*NAMExCOUNT", text, "h100x8")
    if plain == "local":
        from catalogs.hardware.local import local_hardware

        return local_hardware()
    found = _NODES.match(plain)
    nodes, rest = (int(found["nodes"]), found["rest"]) if found else (1, plain)
    name, count = _split_count(rest)
    _check_nodes(text, nodes, rest)
    if ":" in name:
        return _slices(plain, nodes, name, count)
    file = files.read_hardware_file(name)
    most = file.node.max_accelerators
    if nodes == 1 and count > most > 1 and count % most == 0:  # the count fills several whole nodes
        whole = _of(file.name, most, count // most)
        return replace(whole, notices=(f"a {file.name} node holds {most}: {plain} is read as {whole.text}",))
    _check_count(text, file.name, count, most, f"a {file.name} node")
    return _of(file.name, count, nodes)


def with_count(hardware: Hardware, count: int) -> Hardware:
    """Return as many nodes of the same kind with `count` accelerators each, without notices.

    Raises:
        InputError: The count is not between 1 and the node's maximum, or the hardware is this machine.
    """
    return _resized(hardware, count, hardware.n_nodes)


def with_nodes(hardware: Hardware, n_nodes: int) -> Hardware:
    """Return `n_nodes` of the same nodes, without notices.

    Raises:
        InputError: There is no node, or the hardware is this machine.
    """
    return _resized(hardware, hardware.accelerators_per_node, n_nodes)


def _resized(hardware: Hardware, count: int, n_nodes: int) -> Hardware:
    if (count, n_nodes) == (hardware.accelerators_per_node, hardware.n_nodes):
        return hardware.without_notices()
    if hardware.text == "local":
        raise InputError("the number of accelerators of this machine cannot be chosen", count, "local")
    name, text = hardware.accelerator.name, _text(n_nodes, hardware.accelerator.name, count)
    _check_nodes(text, n_nodes, name)
    _check_count(text, name, count, hardware.node.max_accelerators, f"a {name} node")
    return _of(name, count, n_nodes)


@cache
def _of(name: str, count: int, nodes: int) -> Hardware:
    """Return hardware by the name of its file, or `NAME:MIG` for slices; equal hardware is one object."""
    gpu, _, profile = name.partition(":")
    file = files.read_hardware_file(gpu)
    node = files.build_mig_node(file, profile) if profile else files.build_node(file, count)
    return Hardware(_text(nodes, name, count), node, count, nodes)


def list_hardware() -> list[str]:
    """Return the names that `parse_hardware` accepts without a count, sorted, without MIG profiles."""
    return list(files.hardware_file_names())


def list_mig_profiles(name: str) -> list[str]:
    """Return the MIG profiles of a GPU (`1g.10gb`, ...), smallest first; [] where it has none.

    Raises:
        InputError: The name is unknown.
    """
    return list(files.read_hardware_file(name).mig)


_NODES = re.compile(r"^(?P<nodes>-?\d+)\s*\*\s*(?P<rest>.+)$")

_COUNT = re.compile(r"^(?P<name>.+?)x(?P<count>-?\d+)$")


def _split_count(rest: str) -> tuple[str, int]:
    """Split `h100x8` into h100 and 8.

    A whole name takes precedence, since some names end in x and digits (rtx4090, mi300x).
    """
    if files.find_hardware_file(rest) is not None:
        return rest, 1
    found = _COUNT.match(rest)
    if found is None or found["name"] == "rt":  # an unknown rtxNNNN is a name, not a count
        return rest, 1
    return found["name"], int(found["count"])


def _slices(plain: str, nodes: int, name: str, count: int) -> Hardware:
    gpu, _, profile = name.partition(":")
    file = files.read_hardware_file(gpu)
    if not file.mig:
        raise InputError(f"{file.name} cannot be cut into MIG slices", plain, file.name)
    if profile not in file.mig:
        near = nearest_name(profile, file.mig) or next(iter(file.mig))
        raise InputError(f"{file.name} has no such MIG profile", profile, f"{file.name}:{near}")
    label = f"{file.name}:{profile}"
    _check_count(plain, label, count, file.mig[profile].max_per_gpu, f"one {file.name} cut into {profile}")
    return _of(label, count, nodes)


def _check_nodes(text: str, nodes: int, rest: str) -> None:
    if nodes < 1:
        raise InputError("the number of nodes must be at least 1", text, f"1*{rest}")


def _check_count(text: str, name: str, count: int, most: int, holder: str) -> None:
    if 1 <= count <= most:
        return
    if count < 1:
        raise InputError("the number of accelerators must be at least 1", text, f"{name}x1")
    raise InputError(f"{holder} holds at most {most}", text, f"{name}x{most}")


def _text(nodes: int, name: str, count: int) -> str:
    return f"{nodes}*{name}x{count}" if nodes > 1 else f"{name}x{count}"
