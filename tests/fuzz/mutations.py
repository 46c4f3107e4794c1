"""Hostile variants of valid files: changes of the structure, of single values, and of bytes."""

from __future__ import annotations

import copy
import gzip
import json
from typing import Any

import yaml
from hypothesis import strategies as st

#: Texts that have broken readers of YAML, JSON, CSV, numbers, dates and names.
HOSTILE_TEXTS = (
    *(
        "",
        " ",
        "\0",
        "\ufeff",
        "é\u2028\u202e",
        "a" * 300,
        "../" * 100,
        "~nobody_here",
        "/",
        ".",
        "-",
        "--",
        "~",
        "null",
    ),
    *(
        "NaN",
        "nan",
        ".nan",
        "Infinity",
        "inf",
        "-inf",
        "1e999",
        "-0",
        "0",
        "-1",
        "1e-320",
        "1e308",
        "1e-05",
        "0x10",
        "1_0",
    ),
    *(
        "9" * 25,
        "9" * 5000,
        "-" + "9" * 400,
        "1:30:00",
        "0b1",
        "0o7",
        "٣",
        "½",
        "true",
        "yes",
        "None",
        "[]",
        "{}",
        "[[]]",
    ),
    *("2020-13-45", "2020-01-01", "2020-02-30T25:61:61", "NaT", "now", "today", "0001-01-01 00:00:00", "2023-11-16"),
    *(
        "p0=1s",
        "p100=1s",
        "p99=1e400s",
        "ttft.p99=-1s",
        "h100x0",
        "h100x99999999999999999999",
        "0*h100",
        "h100x8x8",
        "*",
    ),
    *("&a [*a]", "<<: *a", "!!python/object:os.system x", "!!bool x", "? [a]", "- - - -", "%YAML 9.9", "{a: 1, a: 2}"),
    *("\x1b[31mred", "a\nb", "a\tb", "=", "a=b", "a=", "=a", ",", ",,", "a,b", "%s%n", "{0}", "$(true)", "`true`"),
    *("re:[", "re:(a*)*b", "*" * 40, "NVFP4", "float3", "mamba", "fp8", "int4", "round_robin", "poisson"),
)

#: Values of other types, and numbers that are extreme but valid.
HOSTILE_VALUES: tuple[Any, ...] = (
    *(None, True, False, [], {}, [[]], [None], {"": None}, {"a": {"b": {"c": []}}}, [1, "a", None], [{}], ["a"] * 3),
    *(0, -1, 1, 2, 3, 7, 1000, 10**6, 10**9, 2**31, 2**53 + 1, 2**63, 2**64, -(2**63), 10**25, 10**40, 10**400),
    *(0.0, -0.0, 0.5, 1.5, 1e-320, 1e-300, 1e-12, 1e-3, 1e12, 1e16, 1e300, -1e300, 1.7976931348623157e308),
    *(float("nan"), float("inf"), float("-inf")),
)

#: Pieces of bytes that are inserted into files.
HOSTILE_BYTES = (
    *(text.encode("utf-8", "surrogatepass")[:400] for text in HOSTILE_TEXTS),
    *(b"\xff\xfe", b"\x00", b"\xed\xa0\x80", b"\xc3", b"\x1f\x8b", b"PAR1", b"\r", b"\r\n", b"\t", b'"', b"'", b"\\"),
    *(
        b'"\\ud800"',
        b"[" * 300,
        b"{" * 300,
        b"]" * 20,
        b'{"a":' * 200,
        b"- " * 300,
        b"? " * 300,
        b": ",
        b"#",
        b"|",
        b">",
    ),
    *(
        b"&a ",
        b"*a",
        b"&a [*a,*a]",
        b"<<: *a\n",
        b"---\n",
        b"...\n",
        b"1e5",
        b"-",
        b".",
        b"\n",
        b"\n\n",
        b",",
        b" " * 50,
    ),
)

values = st.one_of(st.sampled_from(HOSTILE_VALUES), st.sampled_from(HOSTILE_TEXTS), st.integers(), st.floats())

#: A place in a structure or in bytes, as a fraction of its size.
places = st.floats(0, 1, exclude_max=True)


def paths(value: Any, prefix: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the path of every value inside a structure, the structure itself first."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [prefix, *(path for key, item in inner for path in paths(item, (*prefix, key)))]


def changed(document: Any, place: float, change: str, value: Any) -> Any:
    """Return a copy of a document with one change at a place."""
    found = paths(document)
    path = found[int(place * len(found))]
    if not path:
        return value if change == "replace" else document
    document = copy.deepcopy(document)
    parent = document
    for key in path[:-1]:
        parent = parent[key]
    key = path[-1]
    if change == "replace":
        parent[key] = value
    elif change == "delete":
        del parent[key]
    elif change == "rename" and isinstance(parent, dict):
        parent[str(value)[:400]] = parent.pop(key)
    elif change == "add" and isinstance(parent, dict):
        parent[f"{key}s"] = value
    elif change == "wrap":
        parent[key] = [parent[key]]
    elif change == "deepen":
        for _ in range(150):
            parent[key] = [parent[key]]
    elif change == "repeat" and isinstance(parent, list):
        parent.extend([parent[key]] * 50)
    return document


CHANGES = ("replace", "replace", "replace", "delete", "rename", "add", "wrap", "deepen", "repeat")


def digits_of(document: Any) -> str:
    """Return a document as JSON, with integers of any length and numbers that JSON does not have."""
    import sys

    limit = sys.get_int_max_str_digits()
    sys.set_int_max_str_digits(0)
    try:
        return json.dumps(document, default=str)
    finally:
        sys.set_int_max_str_digits(limit)


@st.composite
def hostile_document(draw: st.DrawFn, document: Any, lines: bool = False) -> bytes:
    """Return a document with one to three changes as JSON (which is also YAML), or as one JSON document per line."""
    for _ in range(draw(st.integers(1, 3))):
        document = changed(document, draw(places), draw(st.sampled_from(CHANGES)), draw(values))
    if lines and isinstance(document, list):
        return "\n".join(map(digits_of, document)).encode("utf-8", "surrogatepass")
    return digits_of(document).encode("utf-8", "surrogatepass")


@st.composite
def hostile_bytes(draw: st.DrawFn, content: bytes) -> bytes:
    """Return content with one to four changes of bytes: inserted, replaced, removed, repeated or cut off."""
    for _ in range(draw(st.integers(1, 4))):
        at, size = int(draw(places) * (len(content) + 1)), draw(st.integers(0, 12))
        piece = draw(st.one_of(st.sampled_from(HOSTILE_BYTES), st.binary(max_size=4)))
        match draw(st.sampled_from(("insert", "replace", "remove", "repeat", "cut"))):
            case "insert":
                content = content[:at] + piece + content[at:]
            case "replace":
                content = content[:at] + piece + content[at + size :]
            case "remove":
                content = content[:at] + content[at + size :]
            case "repeat":
                content = content[:at] + content[at : at + size] * 20 + content[at + size :]
            case _:
                content = content[:at]
    return content


def hostile_file(content: bytes) -> st.SearchStrategy[bytes]:
    """Return variants of a file: of its structure (JSON, YAML), of its cells (CSV), and of its bytes."""
    variants = [hostile_bytes(content), hostile_bytes(content).map(lambda changed: gzip.compress(changed, 1))]
    document, lines = _document(content)
    if document is not None:
        variants += [hostile_document(document, lines)] * 4
    elif b"," in content.partition(b"\n")[0]:
        variants += [hostile_cells(content)] * 4
    return st.one_of(variants)


@st.composite
def hostile_cells(draw: st.DrawFn, content: bytes) -> bytes:
    """Return a table in CSV with one to three cells replaced."""
    rows = [line.split(",") for line in content.decode().splitlines()]
    for _ in range(draw(st.integers(1, 3))):
        row = rows[int(draw(places) * len(rows))]
        value = draw(st.one_of(st.sampled_from(HOSTILE_TEXTS), values.map(str_of)))
        row[int(draw(places) * len(row))] = value
    return "\n".join(map(",".join, rows)).encode("utf-8", "surrogatepass")


def str_of(value: Any) -> str:
    """Return the text of a value, also of a very long integer."""
    return digits_of(value)


def _document(content: bytes) -> tuple[Any, bool]:
    """Return the structure of a file, and whether it holds one JSON document per line; None for another format."""
    try:
        text = content.decode()
        if text.startswith("{") and len(lines := text.splitlines()) > 1 and lines[0].endswith("}"):
            return [json.loads(line) for line in lines], True
        found = yaml.safe_load(text)
    except (UnicodeDecodeError, ValueError, yaml.YAMLError):
        return None, False
    return (found, False) if isinstance(found, dict | list) else (None, False)
