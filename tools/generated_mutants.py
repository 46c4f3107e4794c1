"""Mutants generated from the source: of all small changes of some files, a sample that a seed fixes.

`generated_mutants.yaml` names the files, the tests that may notice a change in them, and the mutants that cannot be
told from the original, each with its reason. A mutant's id holds the file, the function and the change, never a line,
and its place in the sample depends on the seed and on this id only: a change elsewhere leaves the sample as it was.

Of the named tests, those run that run the changed statement (all that run any statement of the file, where the change
is outside functions), the fastest first, for at most LONGEST_S together.
"""

from __future__ import annotations

import ast
import copy
import hashlib
import json
import subprocess
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from queue import SimpleQueue
from typing import Annotated, Any, Final

import yaml
from planted_faults import LIMIT_S, ROOT, Fault, ListError, run_tests, write_source
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from run_statements import first_line, instrumented, marked

LIST: Final = Path(__file__).with_suffix(".yaml")

LONGEST_S: Final = 40.0  # of the tests of one mutant

MOST_SURVIVORS: Final = 0.05  # of the mutants that are not equivalent

Recorded = dict[str, dict[str, Any]]  # as `run_statements` writes it, by test

_OPERATORS: Final[dict[type[ast.operator], type[ast.operator]]] = {
    **{ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult},
    **{ast.FloorDiv: ast.Mult, ast.Mod: ast.Mult, ast.Pow: ast.Mult},
}
_COMPARISONS: Final[dict[type[ast.cmpop], type[ast.cmpop]]] = {
    **{ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq},
    **{ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In},
}
_CALLS: Final = {
    **{"min": "max", "max": "min", "all": "any", "any": "all", "math.ceil": "math.floor", "math.floor": "math.ceil"},
    **{"np.minimum": "np.maximum", "np.maximum": "np.minimum", "np.mean": "np.sum"},
}
#: Arguments that decide an order or a statistic; the default takes their place.
_KEYWORDS: Final = ("key", "reverse", "ddof", "default")

#: Parts of the source that do nothing at run time, or only word a message.
_WITHOUT_EFFECT: Final = (ast.JoinedStr, ast.Raise, ast.Assert, ast.Import, ast.ImportFrom)


class Group(BaseModel):
    """Files, and the test files that may notice a change in them."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    files: Annotated[tuple[str, ...], Field(min_length=1)]  # patterns relative to the root
    functions: tuple[str, ...] = ()  # only these (`function`, `Class.method`); empty: all
    tests: Annotated[tuple[str, ...], Field(min_length=1)]  # files or folders


class Equivalent(BaseModel):
    """Mutants that no test can kill, and why."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    reason: str
    ids: Annotated[tuple[str, ...], Field(min_length=1)]


class Lists(BaseModel):
    """The file."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    groups: tuple[Group, ...]
    equivalent: tuple[Equivalent, ...] = ()

    def reasons(self) -> dict[str, str]:
        """Return why a mutant counts as equivalent, by id."""
        return {i: each.reason for each in self.equivalent for i in each.ids}


@dataclass(frozen=True, slots=True)
class Change:
    """One change: the range of bytes of the file, and what stands there instead."""

    path: str
    function: str  # "Class.method", or the name that is assigned outside functions
    line: int  # of the statement inside a function; 0 outside functions
    start: int
    end: int
    old: str
    new: str
    nth: int = 1  # of equal changes in this function

    @property
    def id(self) -> str:
        """The file, the function and the change, on one line."""
        number = f" #{self.nth}" if self.nth > 1 else ""
        return f"{self.path}:{self.function}: {self.old} -> {self.new}{number}"

    def text(self) -> str:
        """The file with the change. Raises ListError where it cannot be compiled."""
        source = (ROOT / self.path).read_bytes()
        changed = source[: self.start] + self.new.encode() + source[self.end :]
        try:
            ast.parse(changed)
        except SyntaxError as e:
            raise ListError(f"{self.id}: {e}") from None
        return changed.decode()


def read_lists(path: Path = LIST) -> Lists:
    """Read the lists of a file.

    Raises:
        ListError: A key or a value is not understood.
    """
    try:
        return Lists.model_validate(yaml.safe_load(path.read_text()))
    except ValidationError as e:
        raise ListError(f"{path.name}: {e}") from None


def files_of(group: Group) -> list[str]:
    """Return the files of the group.

    Raises:
        ListError: A pattern matches no file.
    """
    found = []
    for pattern in group.files:
        paths = sorted(p.relative_to(ROOT).as_posix() for p in ROOT.glob(pattern) if p.name != "__init__.py")
        if not paths:
            raise ListError(f"{LIST.name}: no file is named {pattern}")
        found += paths
    return found


def sample(lists: Lists, n: int, seed: int, only: str = "") -> list[Change]:
    """Return the first `n` changes in the order that the seed gives, grouped by file."""
    changes = []
    for group in lists.groups:
        for path in files_of(group):
            found = list(changes_of(path))
            functions = {c.function for c in found}
            if unknown := [f for f in group.functions if f not in functions]:
                raise ListError(f"{LIST.name}: {path} has no function {unknown[0]}")
            changes += [c for c in found if not group.functions or c.function in group.functions]
    if gone := lists.reasons().keys() - {c.id for c in changes}:
        raise ListError("equivalent, but not a mutant of this tree:\n" + "\n".join(sorted(gone)))
    ranked = sorted(changes, key=lambda c: hashlib.sha256(f"{seed} {c.id}".encode()).digest())
    return sorted((c for c in ranked[:n] if only in c.id), key=lambda c: (c.path, c.start))


def changes_of(path: str) -> Iterator[Change]:
    """Yield all changes of a file, in the order of the source."""
    source = (ROOT / path).read_bytes()
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    seen: Counter[tuple[str, str, str]] = Counter()
    tree = ast.parse(source)
    lines = {id(statement): first_line(statement) for statement in marked(tree, source.decode())}
    for scope, node, parent in _visited(tree, _Scope(), None, lines):
        if not hasattr(node, "lineno"):
            continue
        start = starts[node.lineno - 1] + node.col_offset
        end = starts[node.end_lineno - 1] + node.end_col_offset
        for instead in _instead(node, parent):
            old, new = ast.unparse(node), ast.unparse(instead)
            seen[scope.function, old, new] += 1
            nth = seen[scope.function, old, new]
            placed = new if isinstance(instead, ast.stmt) else f"({new})"
            yield Change(path, scope.function, scope.line, start, end, old, placed, nth)


@dataclass(frozen=True, slots=True)
class _Scope:
    """Where a node stands; function, line: as `Change` has them."""

    prefix: str = ""
    function: str = "-"
    line: int = 0


def _visited(
    node: ast.AST, scope: _Scope, parent: ast.AST | None, lines: Mapping[int, int]
) -> Iterator[tuple[_Scope, ast.AST, ast.AST | None]]:
    """Yield every node that can change what the file does, with its position and its parent.

    `lines` holds the line of each statement that is recorded, by the statement's `id`.
    """
    if isinstance(node, _WITHOUT_EFFECT) or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)):
        return
    if isinstance(node, ast.Call) and ast.unparse(node.func) in ("ConfigDict", "InputError", "Field"):
        return
    if id(node) in lines:
        scope = replace(scope, line=lines[id(node)])
    yield scope, node, parent
    left_out = {"annotation", "returns", "decorator_list", "type_comment"}
    if not scope.line:
        match node:
            case ast.FunctionDef():
                first = next((lines[id(statement)] for statement in node.body if id(statement) in lines), 0)
                scope = _Scope(f"{scope.prefix}{node.name}.", scope.prefix + node.name, first)
            case ast.ClassDef():
                scope = _Scope(f"{scope.prefix}{node.name}.", scope.prefix + node.name)
            case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
                scope = _Scope(scope.prefix, scope.prefix + name)
    for name, value in ast.iter_fields(node):
        if name not in left_out:
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST):
                    yield from _visited(child, scope, node, lines)


def _instead(node: ast.AST, parent: ast.AST | None) -> Iterator[ast.AST]:
    """Yield what may replace a node."""
    if node is getattr(parent, "test", None) and isinstance(node, ast.Name | ast.Attribute | ast.Call):
        yield ast.UnaryOp(ast.Not(), node)
    match node:
        case ast.BinOp():
            yield from _arithmetic(node, parent)
        case ast.Compare():
            for i, op in enumerate(node.ops):
                yield _with(node, ops=[*node.ops[:i], _COMPARISONS[type(op)](), *node.ops[i + 1 :]])
        case ast.BoolOp():
            yield _with(node, op=ast.Or() if isinstance(node.op, ast.And) else ast.And())
            for i in range(len(node.values)):
                rest = [*node.values[:i], *node.values[i + 1 :]]
                yield _with(node, values=rest) if len(rest) > 1 else rest[0]
        case ast.UnaryOp(op=ast.USub() | ast.Not()):
            yield node.operand
        case ast.Constant(value=bool()):
            if not (isinstance(parent, ast.keyword) and parent.arg == "strict"):
                yield ast.Constant(not node.value)
        case ast.Constant(value=int()):
            yield ast.Constant(node.value + 1)
        case ast.Constant(value=float()):
            yield ast.Constant(1.5 * node.value if node.value else 1.0)
        case ast.Call():
            yield from _calls(node)
        case ast.AugAssign() | ast.Continue() | ast.Break():
            yield ast.Pass()
        case ast.Expr(value=ast.Call()):
            yield ast.Pass()
        case ast.Tuple(ctx=ast.Load()) if isinstance(parent, ast.Lambda):
            for i in range(len(node.elts)):
                yield _with(node, elts=[*node.elts[:i], *node.elts[i + 1 :]])


def _arithmetic(node: ast.BinOp, parent: ast.AST | None) -> Iterator[ast.AST]:
    """Yield another operator, one operand alone, and, for a whole product or quotient, one per cent more."""
    words = (ast.JoinedStr, ast.List, ast.Tuple, ast.ListComp)
    text = any(
        isinstance(side, words) or (isinstance(side, ast.Constant) and isinstance(side.value, str))
        for side in (node.left, node.right)
    )
    if text or type(node.op) not in _OPERATORS:
        return
    yield _with(node, op=_OPERATORS[type(node.op)]())
    yield node.left
    if isinstance(node.op, ast.Add | ast.Mult):
        yield node.right
    if isinstance(node.op, ast.Mult | ast.Div) and not isinstance(parent, ast.BinOp):
        yield ast.BinOp(ast.Constant(1.01), ast.Mult(), node)


def _calls(node: ast.Call) -> Iterator[ast.AST]:
    """Yield another function, or the call without an argument that decides an order or a statistic."""
    name = ast.unparse(node.func)
    if name in _CALLS:
        yield _with(node, func=ast.parse(_CALLS[name], mode="eval").body)
    for i, keyword in enumerate(node.keywords):
        if keyword.arg in _KEYWORDS:
            yield _with(node, keywords=[*node.keywords[:i], *node.keywords[i + 1 :]])


def _with(node: ast.AST, **fields: Any) -> ast.AST:
    """Return a copy of the node with other fields."""
    changed = copy.copy(node)
    for name, value in fields.items():
        setattr(changed, name, value)
    return changed


def test_files(lists: Lists) -> dict[str, list[str]]:
    """Return every test file with the changed files in which it may notice a fault.

    Raises:
        ListError: A name matches no test file.
    """
    found: dict[str, list[str]] = defaultdict(list)
    for group in lists.groups:
        for name in group.tests:
            path = ROOT / name
            paths = sorted(path.rglob("test_*.py")) if path.is_dir() else [path]
            if not paths or not all(p.is_file() for p in paths):
                raise ListError(f"{LIST.name}: no test file is named {name}")
            for each in paths:
                found[each.relative_to(ROOT).as_posix()] += files_of(group)
    return {name: sorted(set(files)) for name, files in found.items()}


def faults(lists: Lists, changes: Sequence[Change], trees: Sequence[Path]) -> Iterator[Fault]:
    """Yield the changes with their tests; one that no test reaches has none, and equivalent ones are marked."""
    reasons = lists.reasons()
    found = recorded(lists, [c for c in changes if c.id not in reasons], trees)
    tests: dict[tuple[str, int], dict[str, float]] = defaultdict(dict)
    for node, test in found.items():
        for path, line in test["statements"]:
            tests[path, line][node] = tests[path, 0][node] = test["seconds"]
    for change in changes:
        seconds = tests[change.path, change.line]
        yield _fault(change, seconds, reasons.get(change.id, ""))


def recorded(lists: Lists, changes: Sequence[Change], trees: Sequence[Path]) -> Recorded:
    """Run the test files one by one, in every tree at the same time. Raises ListError where a test fails."""
    changed = {c.path for c in changes}
    names = [name for name, files in test_files(lists).items() if changed & set(files)]
    found: Recorded = {}
    free: SimpleQueue[Path] = SimpleQueue()
    for tree in trees:
        free.put(tree)
        for path in changed:
            write_source(tree / path, instrumented((ROOT / path).read_text(), path))

    def one(name: str) -> Recorded:
        tree = free.get()
        try:
            return _recorded(name, tree)
        finally:
            free.put(tree)

    with ThreadPoolExecutor(len(trees)) as pool:
        for part in pool.map(one, names):
            found |= part
    for tree in trees:
        for path in changed:
            write_source(tree / path, (ROOT / path).read_text())
    return found


def _recorded(name: str, tree: Path) -> Recorded:
    out = tree / "statements.json"
    try:
        done = run_tests(tree, [name], 4 * LIMIT_S, "-p", "run_statements", "--statements-out", str(out))
    except subprocess.TimeoutExpired:
        raise ListError(f"{name} does not end on the tree as it is") from None
    if done.returncode:
        raise ListError(f"tests fail on the tree as it is:\n{done.stdout[-3000:]}{done.stderr[-1000:]}")
    result: Recorded = json.loads(out.read_text())
    return result


def _fault(change: Change, seconds: Mapping[str, float], equivalent: str) -> Fault:
    nodes, total = [], 0.0
    for node in sorted(seconds, key=lambda node: (seconds[node], node)):
        total += seconds[node]
        if nodes and total > LONGEST_S:
            break
        nodes.append(node)
    limit_s = 60.0 + 8.0 * min(total, LONGEST_S)  # so long that a busy machine does not count as a kill
    return Fault(change.id, Path(change.path), change.text(), tuple(nodes), limit_s, equivalent)
