"""Expressions in a shell text: variables, sums of integers, and tests."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Mapping
from typing import Final

#: A variable that the text does not set, as it stays in the words.
UNSET: Final = re.compile(r"\$\{(\w+)\}")

#: Comparisons of `[` and `[[`, by their operator.
_COMPARE: Final[Mapping[str, Callable[[float, float], bool]]] = {
    "-eq": lambda a, b: a == b,
    "-ne": lambda a, b: a != b,
    "-gt": lambda a, b: a > b,
    "-ge": lambda a, b: a >= b,
    "-lt": lambda a, b: a < b,
    "-le": lambda a, b: a <= b,
}


def expanded(text: str, variables: Mapping[str, str]) -> str:
    """Return a text with the variables that are set; the others stay."""

    def value(match: re.Match[str]) -> str:
        name = match[1] or match[3]
        known = variables.get(name)
        return known if known is not None else match[0] if match[2] is None else match[2]

    return re.sub(r"\$\{(\w+)(?::?-([^}]*))?\}|\$([A-Za-z_]\w*)", value, text).strip("'\"")


#: Operations of `$((...))`; a quotient is rounded towards zero, as in a shell.
_OPERATIONS: Final[Mapping[type[ast.AST], Callable[..., int]]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Mod: lambda a, b: a - b * int(a / b),
    ast.FloorDiv: lambda a, b: int(a / b),
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
}


def integer_sum(text: str, variables: Mapping[str, str]) -> str | None:
    """Return the value of `$((A * 8))`, of known integers with comparisons and `a ? b : c`; None for anything else."""
    inside = re.fullmatch(r"\$\(\((.*)\)\)", text, re.S)
    if not inside:
        return None
    plain = re.sub(r"\$?\{?([A-Za-z_]\w*)\}?", lambda m: variables.get(m[1], m[0]), inside[1])
    choice = re.fullmatch(r"([^?]+)\?([^:?]+):([^:?]+)", plain, re.S)
    if choice:
        plain = f"({choice[2]}) if ({choice[1]}) else ({choice[3]})"
    try:
        return str(int(_evaluated(ast.parse(plain.replace("/", "//").strip(), mode="eval").body)))
    except (SyntaxError, ValueError, ZeroDivisionError, KeyError):
        return None


def _evaluated(node: ast.expr) -> int:
    """Return the value of an integer expression.

    Raises:
        ValueError: The expression has something else than integers and the operations of a shell.
    """
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return node.value
    if isinstance(node, ast.BinOp):
        return _OPERATIONS[type(node.op)](_evaluated(node.left), _evaluated(node.right))
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_evaluated(node.operand)
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        return _OPERATIONS[type(node.ops[0])](_evaluated(node.left), _evaluated(node.comparators[0]))
    if isinstance(node, ast.IfExp):
        return _evaluated(node.body if _evaluated(node.test) else node.orelse)
    raise ValueError(ast.dump(node))


def condition_holds(words: list[str]) -> bool | None:
    """Return whether a test in `[` or `[[` holds; None where it is another command or something in it is unknown."""
    if len(words) < 3 or words[0] not in ("[", "[[") or words[-1] not in ("]", "]]"):
        return None
    for joiner, decides in (("||", True), ("&&", False)):
        if joiner in words:
            at = words.index(joiner)
            sides = [condition_holds([*words[:at], "]]"]), condition_holds(["[[", *words[at + 1 :]])]
            return decides if decides in sides else None if None in sides else not decides
    inner = [UNSET.sub("", word) for word in words[1:-1]]  # an unset variable is empty
    if any("$" in word or "`" in word for word in inner):
        return None
    if len(inner) == 2 and inner[0] in ("-z", "-n"):
        return (not inner[1]) == (inner[0] == "-z")
    if len(inner) != 3:
        return None
    a, sign, b = inner
    if sign in ("=", "==", "!="):
        return None if "*" in b else (a == b) == (sign != "!=")
    if sign in _COMPARE and a.lstrip("-").isdigit() and b.lstrip("-").isdigit():
        return _COMPARE[sign](int(a), int(b))
    return None
