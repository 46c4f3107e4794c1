"""Shell text as commands: quoting, line continuations, variables, arrays, here-documents and simple conditions.

Nothing is executed. A variable that the text does not set stays in the words as `${NAME}`; substitutions of commands
stay as they are written.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from catalogs.errors import InputError
from catalogs.launch.reading.expressions import UNSET, condition_holds, expanded, integer_sum

_NAME: Final = re.compile(r"[A-Za-z_]\w*")

_ASSIGNMENT: Final = re.compile(r"([A-Za-z_]\w*)(\+?)=", re.ASCII)

_PREFIXES: Final = ("then", "do", "time", "!", "{", "}")

_SETTERS: Final = ("export", "declare", "local", "readonly", "typeset")

_ENDS: Final = ";&|\n()"

#: The number of the script's own arguments. A loop over them is passed over, because none are given.
ARGUMENTS: Final = "$#"


@dataclass(frozen=True, slots=True)
class ShellCommand:
    """One simple command: its words, the variables that it is started with, and whether it is in a loop."""

    words: tuple[str, ...]
    environment: Mapping[str, str]
    in_loop: bool = False


@dataclass(slots=True)
class Script:
    """The commands of a shell text, and the files that it writes.

    Attributes:
        commands: The simple commands in their order, without those of branches that are known not to be taken.
        files: The contents of files that here-documents write, by the last part of their paths.
        conditional: Variables that were set under a condition that depends on something unknown.
    """

    commands: list[ShellCommand] = field(default_factory=list)
    files: dict[str, str] = field(default_factory=dict)
    conditional: set[str] = field(default_factory=set)


def unset_variables(word: str) -> list[str]:
    """Return the names of the variables in a word that the text does not set."""
    return UNSET.findall(word)


def is_output(word: str) -> bool:
    """Return whether a word holds the output of another command, which is not run."""
    return "$(" in word or "`" in word


def read_script(text: str, variables: Mapping[str, str] | None = None) -> Script:
    """Return the commands of a shell text.

    Args:
        text: One line or a whole script.
        variables: Variables that are set beforehand. Assignments of `NAME=${NAME:-default}` keep them, and so do those
            of another command's output, which is not known here.

    Raises:
        InputError: A quotation mark or a bracket is not closed.
    """
    reader = _Reader(text.replace("\r\n", "\n"), dict(variables or {}), stated=frozenset(variables or ()))
    reader.run()
    return reader.script


@dataclass(slots=True)
class _Branch:
    """One `if`, `case` or loop that is open.

    Attributes:
        active: Whether its present branch is taken; None: unknown.
        done: Whether a branch was taken.
        loop: Whether it is a loop.
    """

    active: bool | None
    done: bool = False
    loop: bool = False


@dataclass(slots=True)
class _Reader:
    text: str
    variables: dict[str, str]
    stated: frozenset[str] = frozenset()  # names of the variables that were set beforehand
    at: int = 0
    script: Script = field(default_factory=Script)
    arrays: dict[str, list[str]] = field(default_factory=dict)
    exported: set[str] = field(default_factory=set)
    _words: list[str] = field(default_factory=list)
    _literal: list[bool] = field(default_factory=list)  # whether a word began without quotes
    _word: str | None = None
    _bare: bool = True
    _documents: list[str] = field(default_factory=list)  # ends of here-documents that follow this line
    _target: str = ""
    _branches: list[_Branch] = field(default_factory=list)
    _tests: bool = False  # whether the commands up to `then` belong to a condition
    _joiner: str = ""  # what stands before the present command: && or ||
    _appends: bool = False
    _nothing: bool = False  # whether an array without words was expanded

    def run(self) -> None:
        while self.at < len(self.text):
            self._step(self.text[self.at])
        self._end_command()

    def _step(self, c: str) -> None:
        text, at = self.text, self.at
        if c == "\\":
            self._escape()
        elif c in " \t":
            self._end_word()
            self.at += 1
        elif c == "#" and self._word is None:
            end = text.find("\n", at)
            self.at = len(text) if end < 0 else end
        elif c == "'":
            end = self._closing("'", at + 1)
            self._add(text[at + 1 : end], quoted=True)
            self.at = end + 1
        elif c == '"':
            self._quoted()
        elif c == "$":
            self._variable(quoted=False)
        elif c == "`":
            end = self._closing("`", at + 1)
            self._add(text[at : end + 1])
            self.at = end + 1
        elif c in "<>&|()" and self._in_test:
            self._end_word()
            self._add(text[at : at + 2] if text[at : at + 2] in ("&&", "||") else c)
            self.at += len(self._word or "")
            self._end_word()
        elif c in "<>":
            self._redirect()
        elif c == "(" and self._word is not None and self._word.endswith("="):
            self._array()
        elif c in _ENDS:
            self._end_command()
            self._joiner = text[at : at + 2] if text[at : at + 2] in ("&&", "||") else ""
            self.at += len(self._joiner) or 1
            if c == "\n":
                self._read_documents()
        else:
            self._add(c)
            self.at += 1

    def _add(self, text: str, quoted: bool = False) -> None:
        if self._word is None:
            self._word, self._bare = "", not quoted
        self._word += text

    def _escape(self) -> None:
        following = re.match(r"\\[ \t]*\n|\\[ \t]+(?=--)", self.text[self.at :])
        if following:  # a space after the backslash is a common slip of copied lines, as are lines joined by YAML
            self._end_word()
            self.at += following.end()
            return
        self._add(self.text[self.at + 1 : self.at + 2], quoted=True)
        self.at += 2

    def _closing(self, mark: str, at: int) -> int:
        end = self.text.find(mark, at)
        if end < 0:
            raise InputError(f"a shell text must close its quotation mark {mark}", self.text[at - 1 : at + 40])
        return end

    def _quoted(self) -> None:
        start, began = self.at, self._word is not None
        self._nothing = False
        self._add("", quoted=True)
        self.at += 1
        while True:
            if self.at >= len(self.text):
                raise InputError('a shell text must close its quotation mark "', self.text[start : start + 40])
            c = self.text[self.at]
            if c == '"':
                self.at += 1
                if self._nothing and not began and self._word == "":  # "${EMPTY[@]}" is no word
                    self._word = None
                return
            if c == "$":
                self._variable(quoted=True)
            elif c == "\\" and self.text[self.at + 1 : self.at + 2] in ("$", "`", '"', "\\", "\n"):
                self._add(self.text[self.at + 1].replace("\n", ""))
                self.at += 2
            else:
                self._add(c)
                self.at += 1

    def _variable(self, quoted: bool) -> None:
        text, at = self.text, self.at
        if text.startswith("$(", at):
            end = self._bracket(at + 1, "(", ")")
            inner = text[at : end + 1]
            self._add(integer_sum(inner, self.variables) or re.sub(r"[\"'\\]", "", inner), quoted)
            self.at = end + 1
            return
        if text.startswith("${", at):
            end = self._bracket(at + 1, "{", "}")
            self.at = end + 1
            self._expand(text[at + 2 : end], quoted)
            return
        name = _NAME.match(text, at + 1)
        if name:
            self.at = name.end()
            self._expand(name[0], quoted)
            return
        sign = text[at + 1 : at + 2]
        self.at += 2 if sign.isdigit() or (sign and sign in "@*#?!$") else 1
        if sign == "#":
            self._add(ARGUMENTS, quoted)
        if self.at == at + 1:
            self._add("$", quoted)

    def _bracket(self, at: int, opening: str, closing: str) -> int:
        depth = 0
        for i in range(at, len(self.text)):
            depth += (self.text[i] == opening) - (self.text[i] == closing)
            if depth == 0:
                return i
        raise InputError(f"a shell text must close its bracket {opening}", self.text[at - 1 : at + 40])

    def _expand(self, inside: str, quoted: bool) -> None:
        """Add the value of a variable: `NAME`, `NAME[@]`, `NAME:-default`, `NAME-default` or `NAME:+other`."""
        listed = re.fullmatch(r"(\w+)\[[@*]\]", inside)
        if listed:
            words = self.arrays.get(listed[1])
            if words is None:
                self._add("${" + listed[1] + "}", quoted)
                return
            for i, word in enumerate(words):
                if i:
                    self._end_word()
                self._add(word, quoted=True)
            self._nothing = not words
            return
        found = re.match(r"(\w+)(?:(:?[-=+])(.*))?$", inside, re.S)
        if not found:
            self._add("${" + inside + "}", quoted)
            return
        name, sign, other = found[1], found[2] or "", found[3] or ""
        value = self.variables.get(name)
        missing = value is None or (sign.startswith(":") and not value)
        if sign.endswith("+"):
            value = None if missing else expanded(other, self.variables)
            value = value or ""
        elif missing and sign:
            value = expanded(other, self.variables)
        if value is None:
            self._add("${" + name + "}", quoted)
        elif quoted or self._assigns:
            self._add(value, quoted)
        else:
            self._split(value)

    @property
    def _in_test(self) -> bool:
        """Return whether a `[[` is open, in which && and || join tests."""
        return "[[" in self._words and "]]" not in self._words and self._word != "]]"

    @property
    def _assigns(self) -> bool:
        """Return whether the present word is an assignment; its value is never split into words."""
        before = all(w in _SETTERS or _ASSIGNMENT.match(w) for w in self._words)
        return before and self._bare and _ASSIGNMENT.match(self._word or "") is not None

    def _split(self, value: str) -> None:
        """Add an expansion without quotes; its spaces separate words."""
        words = value.split() if "$(" not in value else [value]
        if not words:
            return
        if value[:1].isspace():
            self._end_word()
        for i, word in enumerate(words):
            if i:
                self._end_word()
            self._add(word)
        if value[-1:].isspace():
            self._end_word()

    def _redirect(self) -> None:
        if self._word is not None and self._word.isdigit():
            self._word = None
        self._end_word()
        document = re.compile(r"<<-?\s*(['\"]?)([\w.]+)\1").match(self.text, self.at)
        if document and not self.text.startswith("<<<", self.at):
            self._documents.append(document[2])
            self.at = document.end()
            return
        target = re.compile(r"(?:>>|>&|>\||<<<|>|<)[ \t]*(\S*)").match(self.text, self.at)
        assert target is not None
        self._target = target[1].strip("'\"") or self._target
        self._appends = target[0].startswith(">>")
        self.at = target.end()

    def _read_documents(self) -> None:
        for end in self._documents:
            closing = re.compile(rf"^[ \t]*{re.escape(end)}[ \t]*$", re.M).search(self.text, self.at)
            stop = len(self.text) if closing is None else closing.start()
            name = expanded(self._target, self.variables).rpartition("/")[2]
            text = expanded(self.text[self.at : stop], self.variables)
            if self._active is not False:
                kept = self.script.files.get(name, "") if self._appends else ""
                self.script.files[name] = kept + text.lstrip("\n") + ("" if text.endswith("\n") else "\n")
            self.at = stop if closing is None else closing.end()
        self._documents, self._target, self._appends = [], "", False

    def _array(self) -> None:
        end = self._bracket(self.at, "(", ")")
        inner = _Reader(self.text[self.at + 1 : end].replace("\\\n", " "), self.variables, arrays=self.arrays)
        inner.text = re.sub(r"(?m)(^|\s)#.*$", " ", inner.text).replace("\n", " ")
        inner.run()
        words = [word for command in inner.script.commands for word in command.words]
        found = _ASSIGNMENT.match(self._word or "")
        self._word = None
        self.at = end + 1
        if found and self._active is not False:
            kept = self.arrays.get(found[1], []) if found[2] else []
            self.arrays[found[1]] = [*kept, *words]
            if self._active is None:
                self.script.conditional.add(found[1])

    def _end_word(self) -> None:
        if self._word is not None:
            self._words.append(self._word)
            self._literal.append(self._bare)
            self._word = None

    @property
    def _active(self) -> bool | None:
        """Return whether the present branch is taken; None where that depends on something unknown."""
        states = [branch.active for branch in self._branches]
        return False if False in states else None if None in states else True

    def _end_command(self) -> None:
        self._end_word()
        words, literal = self._words, self._literal
        self._words, self._literal = [], []
        if words and words[0] == "tee":
            self._target = words[-1]
        while words and literal[0] and words[0] in _PREFIXES:
            self._tests &= words[0] != "then"
            words, literal = words[1:], literal[1:]
        if words and self._tests and literal[0] and words[0] not in ("if", "elif"):
            self._further_test(words)
            return
        if words and literal[0] and self._branch(words):
            return
        if words and words[0] == "else":
            words, literal = words[1:], literal[1:]
        if not words or self._active is False:
            return
        own: dict[str, str] = {}
        exports = words[0] in _SETTERS
        if exports:
            words, literal = words[1:], literal[1:]
        while words and literal[0] and (found := _ASSIGNMENT.match(words[0])):
            value = words[0][found.end() :]
            if found[1] in self.stated and is_output(value):
                value = self.variables[found[1]]
            own[found[1]] = (self.variables.get(found[1], "") if found[2] else "") + value
            words, literal = words[1:], literal[1:]
        if exports:
            self.exported |= {*own, *(word for word in words if _NAME.fullmatch(word))}
        if exports or not words:
            self.variables |= own
            if self._active is None:
                self.script.conditional |= own.keys()
            return
        environment = {name: self.variables[name] for name in self.exported if name in self.variables}
        in_loop = any(branch.loop for branch in self._branches)
        self.script.commands.append(ShellCommand(tuple(words), environment | own, in_loop))

    def _further_test(self, words: list[str]) -> None:
        """Join another test to the condition of the branch that begins."""
        last, holds = self._branches[-1], condition_holds(words)
        first = last.active
        if self._joiner == "||":
            joined = True if True in (first, holds) else None if None in (first, holds) else False
        else:
            joined = False if False in (first, holds) else None if None in (first, holds) else True
        last.done = (last.done and first is not True) or joined is True
        last.active = joined

    def _branch(self, words: list[str]) -> bool:
        """Follow `if`, `elif`, `else`, `fi`, `case` and `esac`; return whether the command is one of them alone."""
        head = words[0]
        if head == "if":
            taken = condition_holds(words[1:])
            self._branches.append(_Branch(taken, taken is True))
            self._tests = True
        elif head in ("case", "for", "while", "until"):
            test = ["0" if word == ARGUMENTS else word for word in words[1:]]
            never = head == "while" and ARGUMENTS in words and condition_holds(test) is False
            self._branches.append(_Branch(False if never else None, loop=head != "case"))
        elif head in ("fi", "esac", "done"):
            if self._branches:
                self._branches.pop()
        elif head in ("elif", "else") and self._branches:
            last = self._branches[-1]
            if last.active is None:
                return head == "elif"
            taken = True if head == "else" else condition_holds(words[1:])
            last.active = False if last.done else taken
            last.done |= taken is True
            self._tests = head == "elif" and not last.done
            return head == "elif"
        else:
            return False
        return True
