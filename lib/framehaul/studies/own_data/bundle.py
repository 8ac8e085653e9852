"""Code taken out of the library with what it uses, and no more of that than it uses."""

from __future__ import annotations

import ast
import importlib.util
import re
import sys
import textwrap
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import packages_distributions
from pathlib import Path

OURS = "framehaul"


class SnippetError(RuntimeError):
    """Code cannot be taken out of the library; the message says what stands in the way."""


@dataclass(frozen=True)
class Import:
    """What a name is bound to by an import: `from module import original`, or `import module` where that is empty."""

    module: str
    original: str = ""
    for_types: bool = False
    """Whether it stands under `if TYPE_CHECKING`."""

    @property
    def is_ours(self) -> bool:
        """Whether it comes from this library."""
        return self.module.split(".")[0] == OURS


@dataclass
class Module:
    """A module's source, its definitions at the top, and its imports."""

    name: str
    source: str
    definitions: dict[str, ast.stmt] = field(default_factory=dict)
    for_types: set[str] = field(default_factory=set)
    imports: dict[str, Import] = field(default_factory=dict)
    submodules: set[str] = field(default_factory=set)
    """Modules within modules that are imported by their whole name, such as `pyarrow.csv`."""
    documented: dict[ast.stmt, ast.stmt] = field(default_factory=dict)
    """The text that follows a definition and says what it is."""

    def __post_init__(self) -> None:
        self._take(ast.parse(self.source).body, for_types=False)

    def _take(self, statements: list[ast.stmt], *, for_types: bool) -> None:
        before: ast.stmt | None = None
        for statement in statements:
            names = _bound(statement)
            self.definitions |= dict.fromkeys(names, statement)
            if for_types:
                self.for_types |= set(names)
            if isinstance(statement, ast.If) and ast.unparse(statement.test) == "TYPE_CHECKING":
                self._take(statement.body, for_types=True)
            elif isinstance(statement, ast.ImportFrom | ast.Import):
                self._import(statement, for_types=for_types)
            elif isinstance(statement, ast.Expr) and before is not None and _bound(before):
                self.documented[before] = statement
            before = statement

    def _import(self, statement: ast.ImportFrom | ast.Import, *, for_types: bool) -> None:
        for alias in statement.names:
            if isinstance(statement, ast.ImportFrom):
                if statement.module != "__future__":
                    assert statement.module is not None
                    self.imports[alias.asname or alias.name] = Import(statement.module, alias.name, for_types)
            elif alias.asname or "." not in alias.name:
                self.imports[alias.asname or alias.name] = Import(alias.name, "", for_types)
            else:
                self.submodules.add(alias.name)


def _bound(statement: ast.stmt) -> list[str]:
    """The names that a statement defines."""
    match statement:
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
            return [statement.name]
        case ast.Assign():
            return [node.id for target in statement.targets for node in ast.walk(target) if isinstance(node, ast.Name)]
        case ast.AnnAssign(target=ast.Name(id=name)) | ast.TypeAlias(name=ast.Name(id=name)):
            return [name]
    return []


@cache
def module(name: str) -> Module:
    """One of the library's modules."""
    found = importlib.util.find_spec(name)
    assert found is not None and found.origin is not None
    return Module(name, Path(found.origin).read_text("utf8"))


class Bundle:
    """What a piece of code uses of the library, transitively.

    Of classes only the methods whose names are used anywhere are kept, of enumerations only the members. Raises
    SnippetError when two things have one name.
    """

    def __init__(self, main: Module) -> None:
        self._main = main
        self._attributes: set[str] = set()
        while True:
            self._kept: dict[tuple[str, str], ast.stmt] = {}
            self._imports: dict[str, Import] = {}
            self._submodules: set[str] = set()
            before = set(self._attributes)
            self._visit(main, list(dict.fromkeys(main.definitions.values())))
            for statement in ast.parse(main.source).body:
                self._visit(main, [statement])
            if self._attributes == before:
                break
        self._check_names()

    def distributions(self) -> set[str]:
        """Packages to be installed, by the name that pip knows."""
        roots = {found.module.split(".")[0] for found in self._imports.values() if not found.for_types}
        roots |= {name.split(".")[0] for name in self._submodules}
        known = packages_distributions()
        return {known[root][0] for root in roots - sys.stdlib_module_names}

    def text(self) -> str:
        """Imports, then the definitions, those of a module together and below what they use."""
        blocks = [self._import_lines(for_types=False)]
        types = [line for line in self._import_lines(for_types=True).splitlines() if line]
        later: list[str] = []
        now: list[str] = []
        for name in self._modules():
            found = module(name)
            statements = {id(kept): kept for (where, _), kept in self._kept.items() if where == name}
            for statement in sorted(statements.values(), key=lambda kept: kept.lineno):
                into = later if set(_bound(statement)) <= found.for_types else now
                into.append(self._source(found, statement))
        if types or later:
            lines = "\n".join([*types, *(["", *later] if types and later else later)])
            blocks.append("if TYPE_CHECKING:\n" + re.sub(r"^(?=.)", "    ", lines, flags=re.MULTILINE))
        return "\n\n".join(blocks) + "\n\n\n" + "\n\n\n".join(now)

    def _modules(self) -> list[str]:
        """The modules that something is kept of, each behind those that it imports from."""
        kept, seen, order = {where for where, _ in self._kept}, set[str](), list[str]()

        def visit(where: Module) -> None:
            for name in dict.fromkeys(found.module for found in where.imports.values() if found.is_ours):
                if name not in seen:
                    seen.add(name)
                    visit(module(name))
                    if name in kept:
                        order.append(name)

        visit(self._main)
        return order

    def _visit(self, where: Module, statements: list[ast.stmt]) -> None:
        for statement in statements:
            for node in self._kept_nodes(statement):
                if isinstance(node, ast.Attribute):
                    self._attributes.add(node.attr)
                elif isinstance(node, ast.Name):
                    self._use(where, node.id)
        for name in where.submodules:
            root, _, rest = name.partition(".")
            aliases = {bound for bound, found in where.imports.items() if found.module == root and not found.original}
            if rest.split(".")[0] in self._attributes and aliases & self._imports.keys():
                self._submodules.add(name)

    def _use(self, where: Module, name: str) -> None:
        if name in where.definitions:
            if where is not self._main and (where.name, name) not in self._kept:
                self._kept[where.name, name] = where.definitions[name]
                self._visit(where, [where.definitions[name]])
        elif name in where.imports:
            found = where.imports[name]
            if found.is_ours:
                self._use(module(found.module), found.original)
            else:
                self._imports[name] = found
        else:
            self._submodules |= {full for full in where.submodules if full.split(".")[0] == name}

    def _kept_nodes(self, statement: ast.stmt) -> list[ast.AST]:
        cut = self._cut(statement)
        registered = self._registration(statement)
        found, waiting = [], [statement]  # type: tuple[list[ast.AST], list[ast.AST]]
        while waiting:
            node = waiting.pop()
            if node in cut or node is registered:
                continue
            found.append(node)
            waiting += ast.iter_child_nodes(node)
        return found

    def _registration(self, statement: ast.stmt) -> ast.expr | None:
        """The decorator that registers a technique, which is not part of it."""
        decorators = getattr(statement, "decorator_list", [])
        return next((found for found in decorators if ast.unparse(found).startswith("technique(")), None)

    def _cut(self, statement: ast.stmt) -> set[ast.stmt]:
        """Members of a class that nothing uses."""
        if not isinstance(statement, ast.ClassDef):
            return set()
        is_enum = any(ast.unparse(base) == "Enum" for base in statement.bases)
        return {
            member
            for member in statement.body
            if (
                isinstance(member, ast.FunctionDef)
                and not member.name.startswith("__")
                and member.name not in self._attributes
            )
            or (is_enum and isinstance(member, ast.Assign) and not set(_bound(member)) & self._attributes)
        }

    def _source(self, where: Module, statement: ast.stmt) -> str:
        """The lines of a definition, with the comment above it and the text below it."""
        lines = where.source.splitlines()
        first, last = _span(statement)
        cut = {at for member in self._cut(statement) for at in range(*_span(member))}
        registration = self._registration(statement)
        if registration is not None:
            assert registration.end_lineno is not None
            first = registration.end_lineno
        while lines[first - 1].lstrip().startswith("#"):
            first -= 1
        if statement in where.documented:
            last = _span(where.documented[statement])[1]
        text = textwrap.dedent("\n".join(lines[at] for at in range(first, last) if at not in cut))
        return re.sub(r"\n{3,}", "\n\n", text).strip("\n") if cut else text

    def _import_lines(self, *, for_types: bool) -> str:
        """Import statements, the standard library's first."""
        lines: dict[bool, set[str]] = {True: set(), False: set()}
        from_modules: dict[str, set[str]] = {}
        for bound, found in self._imports.items():
            if found.for_types != for_types:
                continue
            if found.original:
                renamed = "" if found.original == bound else f" as {bound}"
                from_modules.setdefault(found.module, set()).add(found.original + renamed)
            else:
                renamed = "" if found.module == bound else f" as {bound}"
                lines[_is_standard(found.module)].add(f"import {found.module}{renamed}")
        if not for_types:
            for name in self._submodules:
                lines[_is_standard(name)].add(f"import {name}")
            if any(found.for_types for found in self._imports.values()) or self._has_types():
                from_modules.setdefault("typing", set()).add("TYPE_CHECKING")
        for name, originals in from_modules.items():
            lines[_is_standard(name)].add(f"from {name} import {', '.join(sorted(originals))}")
        groups = [
            sorted(lines[standard], key=lambda line: (line.startswith("from"), line)) for standard in (True, False)
        ]
        return "\n\n".join("\n".join(group) for group in groups if group)

    def _has_types(self) -> bool:
        return any(name in module(where).for_types for where, name in self._kept)

    def _check_names(self) -> None:
        seen: dict[str, object] = dict.fromkeys(self._main.definitions, self._main.name)
        for where, name in self._kept:
            if seen.setdefault(name, where) != where:
                raise SnippetError(f"{name} is defined by {seen[name]} and by {where}: rename one")
        for name in self._imports:
            if name in seen:
                raise SnippetError(f"{name} is imported, and defined by {seen[name]}: rename one")


def _span(statement: ast.stmt) -> tuple[int, int]:
    """The lines of a statement, decorators included, counted from 0, the last one exclusive."""
    decorators: list[ast.expr] = getattr(statement, "decorator_list", [])
    assert statement.end_lineno is not None
    return min([statement.lineno, *(node.lineno for node in decorators)]) - 1, statement.end_lineno


def _is_standard(name: str) -> bool:
    return name.split(".", maxsplit=1)[0] in sys.stdlib_module_names
