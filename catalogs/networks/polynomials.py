"""Polynomials with rational coefficients in named sizes: exact, readable and writable as text.

The text form is that of arithmetic: `batch*height*width/256 + 3*batch`. It has names, integers, `+`, `-`, `*`, `**`
with an integer exponent, and `/` by an integer.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache, reduce
from operator import mul
from typing import Final

from catalogs.errors import InputError, nearest_name

#: A product of powers of names, as sorted pairs of name and exponent.
Monomial = tuple[tuple[str, int], ...]

#: Most characters of an expression. A judgement: a hundred times those of any real one.
MOST_CHARACTERS: Final = 20_000

#: Largest exponent. A judgement: far above that of any real expression.
MOST_EXPONENT: Final = 16


@dataclass(frozen=True, slots=True)
class Polynomial:
    """A polynomial: terms of a monomial and its coefficient, sorted, without zeros."""

    terms: tuple[tuple[Monomial, Fraction], ...] = ()

    @staticmethod
    def of(value: Polynomial | int | Fraction | str) -> Polynomial:
        """Return a number, the text of an expression, or a polynomial as a polynomial.

        Raises:
            InputError: The text is not a polynomial.
        """
        if isinstance(value, Polynomial):
            return value
        if isinstance(value, str):
            return parse_polynomial(value)
        return Polynomial((((), Fraction(value)),)) if value else Polynomial()

    @staticmethod
    def name(name: str) -> Polynomial:
        """Return the polynomial that is one name."""
        return Polynomial(((((name, 1),), Fraction(1)),))

    @staticmethod
    def from_terms(terms: Iterable[tuple[Monomial, Fraction]]) -> Polynomial:
        """Return the sum of terms, in which monomials may repeat."""
        total: dict[Monomial, Fraction] = {}
        for monomial, coefficient in terms:
            total[monomial] = total.get(monomial, Fraction(0)) + coefficient
        kept = [(m, c) for m, c in total.items() if c]
        return Polynomial(tuple(sorted(kept, key=lambda t: (-sum(e for _, e in t[0]), t[0]))))

    @property
    def names(self) -> frozenset[str]:
        """The names of the sizes that the polynomial depends on."""
        return frozenset(name for monomial, _ in self.terms for name, _ in monomial)

    @property
    def constant(self) -> Fraction | None:
        """The value of a polynomial without names; None if it has names."""
        if self.names:
            return None
        return self.terms[0][1] if self.terms else Fraction(0)

    def value(self, sizes: Mapping[str, int]) -> Fraction:
        """Return the value at the given sizes.

        Raises:
            InputError: A name has no size.
        """
        total = Fraction(0)
        for monomial, coefficient in self.terms:
            product = 1
            for name, exponent in monomial:
                if name not in sizes:
                    raise InputError("no value is given for this size", name, nearest_name(name, sizes))
                product *= sizes[name] ** exponent
            total += coefficient * product
        return total

    def count(self, sizes: Mapping[str, int]) -> int:
        """Return the value at the given sizes, which is a count.

        Raises:
            InputError: The value is negative or not an integer, or a name has no size.
        """
        value = self.value(sizes)
        if value.denominator != 1 or value < 0:
            at = ", ".join(f"{name}={sizes[name]}" for name in sorted(self.names))
            raise InputError(f"{self} is not a count at {at}", str(value))
        return value.numerator

    def __add__(self, other: Polynomial | int | Fraction) -> Polynomial:
        """Return the sum of two polynomials, or of a polynomial and a number."""
        return Polynomial.from_terms((*self.terms, *Polynomial.of(other).terms))

    def __sub__(self, other: Polynomial | int | Fraction) -> Polynomial:
        """Return this polynomial minus another one or a number."""
        return self + Polynomial.of(other) * -1

    def __mul__(self, other: Polynomial | int | Fraction) -> Polynomial:
        """Return the product of two polynomials, or of a polynomial and a number."""
        return Polynomial.from_terms(
            (_product(m, n), c * d) for m, c in self.terms for n, d in Polynomial.of(other).terms
        )

    def __str__(self) -> str:
        """Return the text form, which `parse_polynomial` reads."""
        if not self.terms:
            return "0"
        texts = [_term_text(m, c) for m, c in self.terms]
        return reduce(lambda a, b: f"{a} - {b[1:]}" if b.startswith("-") else f"{a} + {b}", texts)


def _product(first: Monomial, second: Monomial) -> Monomial:
    powers = dict(first)
    for name, exponent in second:
        powers[name] = powers.get(name, 0) + exponent
    return tuple(sorted(powers.items()))


def _term_text(monomial: Monomial, coefficient: Fraction) -> str:
    factors = [name if e == 1 else f"{name}**{e}" for name, e in monomial]
    top = abs(coefficient.numerator)
    if top != 1 or not factors:
        factors.insert(0, str(top))
    text = "*".join(factors)
    if coefficient.denominator != 1:
        text += f"/{coefficient.denominator}"
    return f"-{text}" if coefficient < 0 else text


@lru_cache(maxsize=16384)
def parse_polynomial(text: str) -> Polynomial:
    """Return the polynomial that an expression states.

    Raises:
        InputError: The text is not a sum of products of names and integers.
    """
    if len(text) > MOST_CHARACTERS:
        raise InputError(f"an expression has at most {MOST_CHARACTERS:,} characters", len(text))
    try:
        tree = ast.parse(text.strip(), mode="eval")
        return _read(tree.body)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        rule = "an expression has names, integers, +, -, *, /INTEGER and **INTEGER"
        hint = error.hint if isinstance(error, InputError) else None
        raise InputError(rule, text, "batch*height*width/256 + 1", hint) from None


def _read(node: ast.expr) -> Polynomial:
    match node:
        case ast.Constant(value=int() as number) if not isinstance(number, bool):
            return Polynomial.of(number)
        case ast.Name(id=name):
            return Polynomial.name(name)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return _read(operand) * -1
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return _read(left) + _read(right)
        case ast.BinOp(left=left, op=ast.Sub(), right=right):
            return _read(left) - _read(right)
        case ast.BinOp(left=left, op=ast.Mult(), right=right):
            return _read(left) * _read(right)
        case ast.BinOp(left=left, op=ast.Div(), right=right):
            divisor = _read(right).constant
            if not divisor:
                raise InputError("only division by a number other than 0 is allowed")
            return _read(left) * (1 / divisor)
        case ast.BinOp(left=left, op=ast.Pow(), right=ast.Constant(value=int() as exponent)):
            if not 0 <= exponent <= MOST_EXPONENT:
                raise InputError(f"an exponent is between 0 and {MOST_EXPONENT}")
            return reduce(mul, [_read(left)] * exponent, Polynomial.of(1))
    raise InputError("this is not arithmetic of names and integers")
