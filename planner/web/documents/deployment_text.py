"""The text of a deployment.yaml, checked as someone writes it: each fault at the line of its key."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import yaml
from pydantic import ValidationError

from catalogs.deployments.resolve import resolve_pools
from catalogs.deployments.schema import Deployment
from catalogs.errors import InputError, nearest_name, printable, shown_value
from catalogs.io.http import plain_text
from catalogs.io.yaml_loader import load_yaml
from planner.web.documents.shapes import CheckedText, TextFault
from planner.web.questions import refuse_network, shown_names
from planner.web.uploads import LocalFile, Uploads, replaced, with_names

#: Most faults that are listed; further ones show when these are mended.
MOST_FAULTS: Final = 20


class _Places:
    """The place of each key of a YAML text."""

    def __init__(self, text: str) -> None:
        self._marks: dict[tuple[str, ...], tuple[int, int]] = {}
        self._values: dict[tuple[str, ...], str] = {}
        self._files: list[str] = []
        root = yaml.compose(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
        self._walk(root, (), set())

    def _walk(self, node: yaml.Node | None, path: tuple[str, ...], open_nodes: set[int]) -> None:
        if id(node) in open_nodes:
            return  # an alias of a node that holds it
        inside = open_nodes | {id(node)}
        if isinstance(node, yaml.MappingNode):
            for key, value in node.value:
                place = (*path, str(key.value))
                self._marks.setdefault(place, (key.start_mark.line + 1, key.start_mark.column + 1))
                self._walk(value, place, inside)
                if isinstance(value, yaml.ScalarNode):
                    self._values.setdefault(place, str(value.value))
        elif isinstance(node, yaml.SequenceNode):
            for i, value in enumerate(node.value):
                self._marks.setdefault((*path, str(i)), (value.start_mark.line + 1, value.start_mark.column + 1))
                self._walk(value, (*path, str(i)), inside)

    def rename(self, files: Sequence[LocalFile]) -> None:
        """Replace uploads by their original names, by which errors name them."""
        names = {file.reference: file.name for file in files}
        self._values = {path: names.get(value, value) for path, value in self._values.items()}
        self._files = list(names.values())

    def of(self, path: Sequence[str]) -> tuple[int, int]:
        """Return (line, column) of a key, or of the nearest key around it."""
        known = (self._marks[tuple(path[:n])] for n in range(len(path), 0, -1) if tuple(path[:n]) in self._marks)
        return next(known, (1, 1))

    def meant(self, error: InputError) -> Sequence[str]:
        """Return the key that an error is about: one with its value, or one that its rule names."""
        wanted = str(error.value)
        for same in (wanted.__eq__, lambda value: len(wanted) > 1 and wanted in value):
            found = [path for path, value in self._values.items() if same(value)]
            if len(found) == 1:
                return found[0]
        about = next((name for name in self._files if name in error.rule), None)
        if about is not None:
            return next(path for path, value in self._values.items() if value == about)
        named = [path for path in self._marks if path[-1].isidentifier() and path[-1] in error.rule]
        return max(named, key=lambda path: len(path[-1]), default=_about(error, self._marks))


def _about(error: InputError, marks: Mapping[tuple[str, ...], object]) -> Sequence[str]:
    """Return the key hardware for an error about a node or an accelerator, which rules call by its own name."""
    return ("hardware",) if ("hardware",) in marks and " node" in error.rule else ()


def checked_text(text: str, uploads: Uploads, owner: str) -> CheckedText:
    """Return the faults of the text of a deployment.yaml, or the deployment that it describes.

    Args:
        text: The text, which names uploaded files as `upload:SHA256`.
        uploads: The uploaded files.
        owner: The user; a text names only uploads of its own user.
    """
    try:
        data = load_yaml(text)
        places = _Places(text)
    except yaml.YAMLError as error:
        return _faulty([_of_yaml(error)])
    if not isinstance(data, dict):
        return _faulty([_fault((1, 1), "", "a deployment holds key: value pairs, for example model: llama3.1-8b")])
    try:
        local, files = uploads.local(data, owner)
        places.rename(files)
        with shown_names(files):
            refuse_network(local.get("model"))
            deployment = Deployment.model_validate(local)
            pools = resolve_pools(deployment)
    except ValidationError as error:
        found = sorted(_of_schema(error, data, places), key=lambda fault: (fault["line"], fault["column"]))
        return _faulty(found[:MOST_FAULTS])
    except InputError as error:
        path = places.meant(error)
        value = None if error.value is None else printable(str(error.value))
        return _faulty([_fault(places.of(path), ".".join(path), error.rule, value, error.nearest, error.hint)])
    parts = zip(pools, deployment.slices, strict=True)
    resolved = [pool.filled_in(part.written) | {"engine_version": pool.engine.version} for pool, part in parts]
    written = deployment.model_dump(mode="json", exclude_unset=True)
    return {
        "faults": [],
        "deployment": replaced(written, {str(file.path): file.reference for file in files}),
        "resolved": with_names(resolved, files),
        "notices": with_names(list(dict.fromkeys(notice for pool in pools for notice in pool.notices)), files),
    }


def _faulty(faults: list[TextFault]) -> CheckedText:
    return {"faults": faults, "deployment": None, "resolved": None, "notices": []}


def _fault(
    place: tuple[int, int],
    key: str,
    rule: str,
    value: str | None = None,
    nearest: str | None = None,
    hint: str | None = None,
) -> TextFault:
    line, column = place
    words = printable(rule)
    return {
        "line": line, "column": column, "key": key, "rule": words, "value": value, "nearest": nearest, "hint": hint
    }  # fmt: skip


def _of_yaml(error: yaml.YAMLError) -> TextFault:
    mark = getattr(error, "problem_mark", None)
    place = (1, 1) if mark is None else (mark.line + 1, mark.column + 1)
    return _fault(place, "", f"this is not valid YAML: {plain_text(getattr(error, 'problem', None) or error)}")


def _of_schema(error: ValidationError, data: Mapping[str, Any], places: _Places) -> Iterator[TextFault]:
    """Yield the faults of a deployment, each at its key; those of one key and several types are one fault."""
    done: set[tuple[str, ...]] = set()
    for each in error.errors(include_url=False, include_context=False):
        path = _written_path(tuple(map(str, each["loc"])), data)
        if path in done and each["type"] != "missing":
            continue
        done.add(path)
        key = ".".join(path)
        if each["type"] == "extra_forbidden":
            known = _keys_beside(path)
            nearest = nearest_name(path[-1], known) or (None if len(known) > 8 else ", ".join(known))
            yield _fault(places.of(path), key, f"unknown key {path[-1]!r}", None, nearest)
        elif each["type"] == "missing":
            name = ".".join(map(str, each["loc"]))
            yield _fault(places.of(path), name, f"key {name!r} is missing")
        else:
            message = each["msg"].removeprefix("Value error, ")
            value = plain_text(shown_value(each.get("input")))
            yield _fault(places.of(path), key, f"{key}: {message[:1].lower()}{message[1:]}", value)


def _written_path(loc: tuple[str, ...], data: Any) -> tuple[str, ...]:
    """Return the part of a location that the text has; the rest names types of the schema."""
    path: list[str] = []
    for part in loc:
        if isinstance(data, dict) and part in data:
            data = data[part]
        elif isinstance(data, list) and part.isdigit() and int(part) < len(data):
            data = data[int(part)]
        else:
            continue
        path.append(part)
    return tuple(path)


def _keys_beside(path: Sequence[str]) -> list[str]:
    """Return the keys that the schema has where a key stands."""
    schema = Deployment.model_json_schema()
    block: dict[str, Any] = schema
    for part in path[:-1]:
        found = block.get("properties", {}).get(part, {})
        names = [found, *found.get("anyOf", [])]
        references = [name["$ref"].rpartition("/")[2] for name in names if "$ref" in name]
        if not references:
            return []
        block = schema["$defs"][references[0]]
    return list(block.get("properties", {}))


def deployment_schema() -> dict[str, Any]:
    """Return the JSON Schema of deployment.yaml."""
    return Deployment.model_json_schema()
