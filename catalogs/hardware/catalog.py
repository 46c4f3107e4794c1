"""Hardware by name, and the grammar of `--hw`.

The canonical form is `[NODES*]NAME[:MIG][xCOUNT]` or `local`. Three other orders mean the same, where they are
unambiguous:

- the count first: `8xh100`, `8 x H100`, `8 H100` and `2*8xh100`;
- the count after a colon or an asterisk: `h100:8`, `h100*8`;
- the nodes without an asterisk, which some shells expand: `2xh100x8`, `2:h100x8`, `2x8xh100`.

A number before the name is the number of nodes if a count follows the name, or if `*` or `:` follows the number.
Otherwise it is the number of accelerators.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import cache
from typing import Final

from catalogs.errors import InputError, nearest_name
from catalogs.hardware import files
from catalogs.hardware.specs import Hardware

#: Most nodes of one choice of hardware. A plan on as many takes half a minute and 1 GB of memory.
MOST_NODES: Final = 1024


def parse_hardware(text: str) -> Hardware:
    """Return the hardware that `NAME`, `NAMExCOUNT`, `NODES*NAMExCOUNT`, `NAME:MIGxCOUNT` or `local` names.

    With MIG the node is one GPU cut into COUNT instances; `3*a100-80gb:2g.20gbx3` is three such GPUs.

    Raises:
        InputError: The name is unknown, or a count is not between 1 and its maximum.
    """
    plain = _compact(text)
    if not plain:
        raise InputError("hardware must be NAME, NAMExCOUNT or NODES*NAMExCOUNT", text, "h100x8")
    if "," in plain:
        first = next((name for name in plain.split(",") if name not in ("", "any", "all")), "h100x8")
        raise InputError("one kind of hardware is named here, not several", text, first)
    if "+" in plain:
        near = _valid_or_usual(plain.partition("+")[0])
        raise InputError("a deployment has one kind of hardware", text, near, "`plan --hw A,B` compares several kinds")
    if plain in ("any", "all"):
        raise InputError("one kind of hardware is named here", text, "h100x8", "`plan --hw any` compares all kinds")
    if plain == "local":
        from catalogs.hardware.local import local_hardware

        return local_hardware()
    parts = _split(plain)
    nodes, name = 1 if parts.nodes is None else parts.nodes, parts.name
    count = 1 if parts.count is None else parts.count
    rest = name if parts.count is None else f"{name}x{count}"
    _check_nodes(text, nodes, rest)
    if ":" in name:
        return _slices(plain, nodes, name, count)
    file = _file_of(name, text)
    most = file.node.max_accelerators
    if nodes == 1 and count > most > 1 and count % most == 0:  # the count fills several whole nodes
        _check_nodes(text, count // most, f"{file.name}x{most}")
        whole = _of(file.name, most, count // most)
        return replace(whole, notices=(f"a node of {file.name} holds {most}: {plain} is read as {whole.text}",))
    _check_count(text, file.name, count, most, f"a node of {file.name}")
    found = _of(file.name, count, nodes)
    if nodes > 1 and parts.count is None and nodes <= most > 1:  # easily confused with the other order
        notice = f"{plain} is {nodes} nodes of one {file.name} each; one node of {nodes} is {file.name}x{nodes}"
        return replace(found, notices=(notice,))
    return found


def _valid_or_usual(text: str) -> str:
    """Return a text that names hardware, or that of a usual node."""
    try:
        return parse_hardware(text).text
    except InputError:
        return "h100x8"


def _file_of(name: str, text: str) -> files.HardwareFile:
    """Return the file of a name.

    Raises:
        InputError: The name is unknown. If it is a known one with one number too many, or with a number that is too
            large to be read, the message names the usual form.
    """
    known = name.partition("x")[0]
    if files.find_hardware_file(name) is None and files.find_hardware_file(known) is not None:
        most = files.read_hardware_file(known).node.max_accelerators
        raise InputError("hardware must be NAME, NAMExCOUNT or NODES*NAMExCOUNT", text, f"{known}x{most}")
    return files.read_hardware_file(name)


def canonical_order(text: str) -> str:
    """Return the text of hardware in the canonical order: "8 x H100" -> "h100x8".

    Text that is in this order already, and text that names no hardware, is returned unchanged.
    """
    plain = _compact(text)
    if not any(c.isdigit() for c in plain) or _CANONICAL.match(plain) or plain == "local":
        return text
    parts = _split(plain)
    known = files.find_hardware_file(parts.name.partition(":")[0]) is not None
    if not known or (parts.nodes is None and parts.count is None):
        return text
    nodes = "" if parts.nodes is None else f"{parts.nodes}*"
    return f"{nodes}{parts.name}" + ("" if parts.count is None else f"x{parts.count}")


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
    _check_count(text, name, count, hardware.node.max_accelerators, f"a node of {name}")
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


@dataclass(frozen=True, slots=True)
class _Parts:
    """The parts of the text of hardware; None for a number that the text does not have."""

    nodes: int | None
    name: str  # with the MIG profile
    count: int | None


#: Text in the canonical order, whatever its name is.
_CANONICAL = re.compile(r"^(-?\d+\*)?[a-z][^*:]*(:\d*g\.[^:*]*)?$")

#: A number of nodes or accelerators; Python refuses to read one of thousands of digits.
_NUMBER = r"-?\d{1,18}"

_NODES = re.compile(rf"^(?P<nodes>{_NUMBER})[*:](?P<rest>.+)$")

_FIRST = re.compile(rf"^(?P<number>{_NUMBER})x(?P<rest>.+)$")

_COUNT = re.compile(rf"^(?P<name>.+?)(?:x|[*:](?={_NUMBER}$))(?P<count>{_NUMBER})$")


def _compact(text: str) -> str:
    """Return the text in lower case without white space; "8 h100" becomes "8xh100"."""
    spaced = re.sub(r"^(\d+)\s+(?!x\b)(?=[a-z])", r"\1x", text.strip().lower().replace("×", "x"))
    return "".join(spaced.split())


def _split(plain: str) -> _Parts:
    """Split compact text into its parts; a whole name takes precedence, since names may hold x and digits (mi300x)."""
    if files.find_hardware_file(plain) is not None:
        return _Parts(None, plain, None)
    found = _NODES.match(plain)
    if found:
        inner = _split(found["rest"])
        if inner.nodes is None:
            return replace(inner, nodes=int(found["nodes"]))
        return _Parts(None, plain, None)  # two numbers of nodes: no hardware has this name
    found = _FIRST.match(plain)
    if found:
        inner, number = _split(found["rest"]), int(found["number"])
        if inner.count is None and inner.nodes is None:
            return replace(inner, count=number)
        return replace(inner, nodes=number) if inner.nodes is None else _Parts(None, plain, None)
    found = _COUNT.match(plain)
    if found is None or found["name"] == "rt":  # an unknown rtxNNNN is a name, not a count
        return _Parts(None, plain, None)
    name, ends_in_x = found["name"], f"{found['name']}x"
    if files.find_hardware_file(name) is None and files.find_hardware_file(ends_in_x) is not None:
        name = ends_in_x  # mi300x8: eight MI300X
    return _Parts(None, name, int(found["count"]))


def _slices(plain: str, nodes: int, name: str, count: int) -> Hardware:
    gpu, _, profile = name.partition(":")
    known, _, number = gpu.partition("x")
    if files.find_hardware_file(gpu) is None and number.isdecimal() and files.find_hardware_file(known) is not None:
        most = _slices(plain, nodes, f"{known}:{profile}", 1).node.max_accelerators
        near = f"{known}:{profile}x{max(1, min(int(number[:4]), most))}"  # the first digits decide, however many
        raise InputError("the number of MIG slices comes last, as NAME:MIGxCOUNT", plain, near)
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
    if nodes > MOST_NODES:
        raise InputError(f"hardware has at most {MOST_NODES:,} nodes", text, f"{MOST_NODES}*{rest}")


def _check_count(text: str, name: str, count: int, most: int, holder: str) -> None:
    if 1 <= count <= most:
        return
    if count < 1:
        raise InputError("the number of accelerators must be at least 1", text, f"{name}x1")
    raise InputError(f"{holder} holds at most {most}", text, f"{name}x{most}")


def _text(nodes: int, name: str, count: int) -> str:
    return f"{nodes}*{name}x{count}" if nodes > 1 else f"{name}x{count}"
