"""Small faults planted one at a time, each of which the tests must notice.

    python tools/mutants.py                  # listed faults: the tests on the tree as it is, then every mutant
    python tools/mutants.py --generated 150  # so many of the changes that the syntax tree offers (--seed for others)
    python tools/mutants.py --only kv-take   # mutants whose id contains this
    python tools/mutants.py --jobs 2 --json result.json
    python tools/mutants.py --list           # no test is run

`mutants.yaml` names functions (`function`, `Class.method`) and tests (functions, stems of test files) by name only,
so both may move between files. `generated_mutants.py` makes the others. A fault is planted in a copy in a temporary
folder; the working tree is only read. A mutant is killed where a test fails or the time limit passes. Exit status 1
where one survives (of the generated ones: more than 5 % of those that are not equivalent), 2 where the list does not
fit the tree, or a test fails without any fault.
"""

from __future__ import annotations

import argparse
import ast
import copy
import json
import re
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import generated_mutants
import yaml
from planted_faults import LIMIT_S, PACKAGES, ROOT, Fault, ListError, Outcome, judged, run_tests, trees_of
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from catalogs.ui.words import percent

LIST: Final = Path(__file__).with_suffix(".yaml")
COMPARISONS: Final[dict[str, type[ast.cmpop]]] = {
    **{"<": ast.Lt, "<=": ast.LtE, ">": ast.Gt, ">=": ast.GtE, "==": ast.Eq, "!=": ast.NotEq},
    **{"is": ast.Is, "is not": ast.IsNot, "in": ast.In, "not in": ast.NotIn},
}
OPERATORS: Final[dict[str, type[ast.operator]]] = {
    **{"+": ast.Add, "-": ast.Sub, "*": ast.Mult, "/": ast.Div, "//": ast.FloorDiv, "%": ast.Mod, "**": ast.Pow}
}


class _Operation(BaseModel):
    """Base. occurrence: which of several places in the function, in the order of the source, from 1."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)

    occurrence: Annotated[int, Field(ge=1)] = 1

    def planted(self, function: ast.AST) -> ast.AST:
        """A copy of the function with the fault in it. Raises ListError where there is no such place."""
        changed = copy.deepcopy(function)
        places = [(node, put) for node, put in _children(changed) if self.at(node)]
        if len(places) < self.occurrence:
            raise ListError(f"{self}: {len(places)} such places")
        node, put = places[self.occurrence - 1]
        put(self.instead(node))
        return changed

    def at(self, node: ast.AST) -> bool:
        """Whether the operation can be applied to this node."""
        raise NotImplementedError

    def instead(self, node: Any) -> Any:
        """What takes the node's place."""
        raise NotImplementedError


class Compare(_Operation):
    """Another comparison: `<` instead of `<=`."""

    kind: Literal["compare"]
    old: str = Field(alias="from")
    new: str = Field(alias="to")

    def at(self, node: ast.AST) -> bool:
        return isinstance(node, ast.Compare) and any(isinstance(op, COMPARISONS[self.old]) for op in node.ops)

    def instead(self, node: Any) -> Any:
        found = next(i for i, op in enumerate(node.ops) if isinstance(op, COMPARISONS[self.old]))
        node.ops[found] = COMPARISONS[self.new]()
        return node


class Arithmetic(_Operation):
    """Another arithmetic operator, of an expression or of an augmented assignment: `-` instead of `+`."""

    kind: Literal["arithmetic"]
    old: str = Field(alias="from")
    new: str = Field(alias="to")

    def at(self, node: ast.AST) -> bool:
        return isinstance(node, ast.BinOp | ast.AugAssign) and isinstance(node.op, OPERATORS[self.old])

    def instead(self, node: Any) -> Any:
        node.op = OPERATORS[self.new]()
        return node


class Replace(_Operation):
    """Another expression, or another constant; `from` is compared as Python prints it."""

    kind: Literal["replace"]
    old: str = Field(alias="from")
    new: str = Field(alias="to")

    def at(self, node: ast.AST) -> bool:
        return isinstance(node, ast.expr) and ast.unparse(node) == ast.unparse(ast.parse(self.old, mode="eval").body)

    def instead(self, node: Any) -> Any:  # noqa: ARG002 - one signature for all
        return ast.parse(self.new, mode="eval").body


class Drop(_Operation):
    """The statement that begins with these words is left out."""

    kind: Literal["drop"]
    statement: str

    def at(self, node: ast.AST) -> bool:
        return isinstance(node, ast.stmt) and ast.unparse(node).startswith(self.statement)

    def instead(self, node: Any) -> Any:  # noqa: ARG002 - one signature for all
        return ast.Pass()


class Negate(_Operation):
    """The condition of an `if`, `while`, conditional expression or comprehension is turned round."""

    kind: Literal["negate"]
    condition: str

    def at(self, node: ast.AST) -> bool:
        if not isinstance(node, ast.If | ast.While | ast.IfExp):
            return False
        return ast.unparse(node.test) == ast.unparse(ast.parse(self.condition, mode="eval").body)

    def instead(self, node: Any) -> Any:
        node.test = ast.UnaryOp(ast.Not(), node.test)
        return node


class Return(_Operation):
    """The function's return statement returns something else."""

    kind: Literal["return"]
    new: str = Field(alias="to")

    def at(self, node: ast.AST) -> bool:
        return isinstance(node, ast.Return) and node.value is not None

    def instead(self, node: Any) -> Any:
        node.value = ast.parse(self.new, mode="eval").body
        return node


class Swap(_Operation):
    """Two positional arguments (from 0) of a call of this name change places."""

    kind: Literal["swap"]
    call: str
    arguments: tuple[int, int] = (0, 1)

    def at(self, node: ast.AST) -> bool:
        return (
            isinstance(node, ast.Call) and ast.unparse(node.func) == self.call and len(node.args) > max(self.arguments)
        )

    def instead(self, node: Any) -> Any:
        a, b = self.arguments
        node.args[a], node.args[b] = node.args[b], node.args[a]
        return node


Operation = Annotated[
    Compare | Arithmetic | Replace | Drop | Negate | Return | Swap,
    Field(discriminator="kind"),
]


class Mutant(BaseModel):
    """One fault. package, parameters: needed only where several functions have the name; the parameters' names."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    id: str
    behaviour: str  # what it breaks
    function: str
    package: Literal["catalogs", "calibration", "simulator", "planner"] | None = None
    parameters: tuple[str, ...] | None = None
    operation: Operation
    tests: Annotated[tuple[str, ...], Field(min_length=1)]


@dataclass(frozen=True, slots=True)
class Definition:
    """A function of the tree: its file, and its place among the definitions of that name in the file."""

    path: Path  # relative to the root of the tree
    package: str
    name: str
    node: ast.FunctionDef | ast.AsyncFunctionDef


def _children(parent: ast.AST) -> Iterator[tuple[ast.AST, Callable[[ast.AST], None]]]:
    """Yield every node below, in the order of the source, with a function that replaces it."""
    for name, value in ast.iter_fields(parent):
        if isinstance(value, list):
            for i, item in enumerate(value):
                if isinstance(item, ast.AST):
                    yield item, lambda new, at=value, i=i: at.__setitem__(i, new)  # type: ignore[misc]
                    yield from _children(item)
        elif isinstance(value, ast.AST):
            yield value, lambda new, name=name: setattr(parent, name, new)  # type: ignore[misc]
            yield from _children(value)


def read_list(path: Path) -> tuple[Mutant, ...]:
    """Read the mutants of the file.

    Raises:
        ListError: A key or a value is not understood, or an id is used twice.
    """
    try:
        found = tuple(Mutant.model_validate(item) for item in yaml.safe_load(path.read_text()))
    except ValidationError as e:
        raise ListError(f"{path.name}: {e}") from None
    ids = [mutant.id for mutant in found]
    twice = sorted({i for i in ids if ids.count(i) > 1})
    if twice:
        raise ListError(f"{path.name}: ids used twice: {', '.join(twice)}")
    return found


def definitions(root: Path, mutants: Sequence[Mutant]) -> dict[str, list[Definition]]:
    """Return the functions of the four packages by name, `function` or `Class.method`: all that a mutant may name.

    Functions inside functions and declarations of overloads are left out.
    """
    found: dict[str, list[Definition]] = defaultdict(list)
    wanted = "|".join(sorted({re.escape(mutant.function.rpartition(".")[2]) for mutant in mutants}))
    has_one = re.compile(rf"\bdef ({wanted})\b")
    for package in PACKAGES:
        for path in sorted((root / package).rglob("*.py")):
            text = path.read_text()
            for name, node in _functions(ast.parse(text).body, "") if has_one.search(text) else ():
                found[name].append(Definition(path.relative_to(root), package, name, node))
    return found


def _functions(body: Sequence[ast.stmt], prefix: str) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            if "overload" not in (ast.unparse(decorator) for decorator in node.decorator_list):
                yield prefix + node.name, node
        elif isinstance(node, ast.ClassDef):
            yield from _functions(node.body, f"{prefix}{node.name}.")


def defined(mutant: Mutant, known: dict[str, list[Definition]]) -> Definition:
    """Return the one function that the mutant names.

    Raises:
        ListError: There is none, or more than one.
    """
    found = [d for d in known.get(mutant.function, []) if mutant.package in (None, d.package)]
    found = [d for d in found if mutant.parameters in (None, tuple(a.arg for a in d.node.args.args))]
    if len(found) != 1:
        where = ", ".join(str(d.path) for d in found) or "nowhere"
        raise ListError(f"{mutant.id}: {mutant.function} is defined {len(found)} times ({where})")
    return found[0]


def planted(definition: Definition, operation: Operation, source: str) -> str:
    """The source of the file with the fault; only the function is printed anew."""
    lines = source.splitlines(keepends=True)
    node = definition.node
    first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
    changed = ast.fix_missing_locations(operation.planted(node))
    text = ast.unparse(changed)
    if text == ast.unparse(node):
        raise ListError(f"{operation} changes nothing")
    indented = "".join(f"{' ' * node.col_offset}{line}\n" for line in text.splitlines())
    return "".join([*lines[: first - 1], indented, *lines[node.end_lineno or node.lineno :]])


def test_nodes(root: Path) -> dict[str, list[str]]:
    """Return pytest's node ids by `function`, `file::function` and `file`, the stem of a test file's name."""
    found: dict[str, list[str]] = defaultdict(list)
    for path in sorted((root / "tests").rglob("test_*.py")):
        at = path.relative_to(root).as_posix()
        found[path.stem].append(at)
        for name, _ in _functions(ast.parse(path.read_text()).body, ""):
            node, function = f"{at}::{name.replace('.', '::')}", name.rpartition(".")[2]
            found[function].append(node)
            found[f"{path.stem}::{function}"].append(node)
    return found


def selected(mutant: Mutant, known: dict[str, list[str]]) -> tuple[str, ...]:
    """Return pytest's node ids of the mutant's tests, with their `[parameters]`.

    Raises:
        ListError: A name is not unique.
    """
    nodes = []
    for text in mutant.tests:
        name, bracket, parameters = text.partition("[")
        found = known.get(name, [])
        if len(found) != 1:
            raise ListError(f"{mutant.id}: test {name} is defined {len(found)} times")
        nodes.append(found[0] + bracket + parameters)
    return tuple(nodes)


def check_list(mutants: Sequence[Mutant], known: dict[str, list[Definition]], tests: dict[str, list[str]]) -> None:
    """Check that every mutant fits the tree.

    Raises:
        ListError: Some do not; it has one line for each.
    """
    problems = []
    for mutant in mutants:
        try:
            definition = defined(mutant, known)
            planted(definition, mutant.operation, (ROOT / definition.path).read_text())
            selected(mutant, tests)
        except ListError as e:
            problems.append(str(e) if str(e).startswith(mutant.id) else f"{mutant.id}: {e}")
    if problems:
        raise ListError("\n".join(problems))


def listed(only: str) -> list[Mutant]:
    """Return the mutants of the list whose id contains a text.

    Raises:
        ListError: The list does not fit the tree.
    """
    mutants = [m for m in read_list(LIST) if only in m.id]
    check_list(mutants, definitions(ROOT, mutants), test_nodes(ROOT))
    return mutants


def listed_faults(mutants: Sequence[Mutant], tree: Path) -> list[Fault]:
    """Raises ListError where a test fails on the tree as it is."""
    known, tests = definitions(ROOT, mutants), test_nodes(ROOT)
    faults = []
    for mutant in mutants:
        definition = defined(mutant, known)
        text = planted(definition, mutant.operation, (ROOT / definition.path).read_text())
        faults.append(Fault(mutant.id, definition.path, text, selected(mutant, tests)))
    done = run_tests(tree, sorted({node for fault in faults for node in fault.nodes}), 20 * LIMIT_S)
    if done.returncode:
        raise ListError(f"tests fail on the tree as it is:\n{done.stdout[-3000:]}{done.stderr[-1000:]}")
    return faults


def print_listed(mutants: Sequence[Mutant]) -> None:
    known = definitions(ROOT, mutants)
    for mutant in mutants:
        print(f"{defined(mutant, known).package:12} {mutant.id:32} {mutant.function}: {mutant.behaviour}")


def outcomes_of(faults: Iterable[Fault], trees: Sequence[Path], width: int) -> list[Outcome]:
    """Return the outcomes, which are printed one by one."""
    outcomes = []
    for outcome in judged(faults, trees):
        outcomes.append(outcome)
        print(f"{outcome.status:10} {outcome.id:{width}} {outcome.seconds:5.1f} s  {outcome.killed_by}", flush=True)
    return outcomes


def main() -> int:
    """Return the exit status: 0 if enough mutants are killed, 1 if not, and 2 if that cannot be decided."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--generated", type=int, metavar="N", help="so many generated mutants in place of the list")
    parser.add_argument("--seed", type=int, default=1, help="of the sample of generated mutants")
    parser.add_argument("--only", default="", metavar="ID", help="mutants whose id contains this")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="mutants at a time")
    parser.add_argument("--list", action="store_true", help="print the mutants and check that they fit the tree")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the outcomes")
    args = parser.parse_args()
    started, allowed = time.monotonic(), 0.0
    try:
        if args.generated is None:
            mutants = listed(args.only)
            if args.list:
                print_listed(mutants)
                print(f"{len(mutants)} mutants")
                return 0
            with trees_of(args.jobs) as trees:
                outcomes = outcomes_of(listed_faults(mutants, trees[0]), trees, 32)
        else:
            lists, allowed = generated_mutants.read_lists(), generated_mutants.MOST_SURVIVORS
            changes = generated_mutants.sample(lists, args.generated, args.seed, args.only)
            if args.list:
                print("\n".join(change.id for change in changes))
                return 0
            with trees_of(args.jobs) as trees:
                outcomes = outcomes_of(generated_mutants.faults(lists, changes, trees), trees, 0)
    except ListError as e:
        print(f"mutants: {e}", file=sys.stderr)
        return 2
    return report(outcomes, allowed, time.monotonic() - started, args.json)


def report(outcomes: Sequence[Outcome], allowed: float, seconds: float, out: Path | None) -> int:
    """Print and write the rate, and return the exit status."""
    counted = [o for o in outcomes if o.status != "equivalent"]
    killed = sum(o.status == "killed" for o in counted)
    rate = f" ({percent(killed / len(counted), 1)})" if counted else ""
    equivalent = f", {len(outcomes) - len(counted)} equivalent" if len(counted) < len(outcomes) else ""
    print(f"{killed} of {len(counted)} killed{rate}{equivalent}, {seconds:.0f} s")
    if out is not None:
        out.write_text(json.dumps({"killed": killed, "mutants": [asdict(o) for o in outcomes]}, indent=1) + "\n")
    return int(not counted or killed < (1 - allowed) * len(counted))


if __name__ == "__main__":
    sys.exit(main())
