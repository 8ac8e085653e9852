"""Code of the library with what it uses, transitively, read from its files: nothing is imported, and so no driver.

What a reader is shown of a technique and the file that `make mine` hands out are both made here.
"""

from __future__ import annotations

import ast
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from graphlib import TopologicalSorter
from itertools import chain, pairwise
from pathlib import Path
from symtable import SymbolTable, symtable

from framehaul.techniques import contract
from framehaul.techniques.registry import CLIENTS_OF_DRIVERS, REQUIREMENTS, asked_for, terms_of

OURS = "framehaul"
LIBRARY = Path(__file__).parents[1]
TECHNIQUES = __package__
CLIENTS = f"{TECHNIQUES}.clients"
GIVEN = tuple(f"{OURS}.{module}" for module in ("data.schema", "servers", "errors"))
"""What a technique is given, a table and a server, and what it raises: imported by the code that is shown."""


@dataclass(frozen=True, order=True)
class Import:
    """What binds a name: `from module import original`, or `import module` where that is empty."""

    module: str
    original: str
    bound: str

    @property
    def root(self) -> str:
        """The package that it is of."""
        return self.module.split(".", maxsplit=1)[0]

    @property
    def statement(self) -> str:
        """The statement that makes it."""
        name = self.original or self.module
        renamed = "" if self.bound in (name, self.root) else f" as {self.bound}"
        return f"from {self.module} import {name}{renamed}" if self.original else f"import {name}{renamed}"


class Module:
    """A module's text, what it defines at its top, and what it imports."""

    def __init__(self, name: str, text: str) -> None:
        self.name, self._lines = name, text.splitlines()
        self.definitions: dict[str, ast.stmt] = {}
        self.statements: list[ast.stmt] = []
        """All but imports and texts."""
        self._imports: list[Import] = []
        self._imports_of: dict[str, list[Import]] = {}
        self._documentation: dict[ast.stmt, ast.Expr] = {}
        self._take(ast.parse(text).body)

    def _take(self, body: list[ast.stmt]) -> None:
        for before, statement in pairwise([None, *body]):
            assert statement is not None
            match statement:
                case ast.If(test=ast.Name(id="TYPE_CHECKING")):
                    self._take(statement.body)
                case ast.Import() | ast.ImportFrom():
                    self._imports += imports_by(statement)
                case ast.Expr(value=ast.Constant()):
                    if before is not None:
                        self._documentation[before] = statement
                case _:
                    self.statements.append(statement)
                    self.definitions |= dict.fromkeys(bound(statement), statement)

    def imports_of(self, name: str) -> list[Import]:
        """The imports that bind a name; of a package also those of its modules by their whole names."""
        if name not in self._imports_of:
            found = [imported for imported in self._imports if imported.bound == name]
            packages = {imported.module for imported in found if not imported.original}
            self._imports_of[name] = [
                imported
                for imported in self._imports
                if imported.bound == name or (packages and not imported.original and imported.root in packages)
            ]
        return self._imports_of[name]

    def text(self, statement: ast.stmt) -> str:
        """A statement as it stands in the file, with the comment above and the text below that say what it is.

        What registers a technique is no part of it.
        """
        first, registered = statement.lineno - 1, registration(statement)
        kept = [decorator for decorator in getattr(statement, "decorator_list", []) if decorator is not registered]
        first = min([first, *(decorator.lineno - 1 for decorator in kept)])
        above = start = first if registered is None else registered.lineno - 1
        while above and self._lines[above - 1].startswith("#"):
            above -= 1
        last = self._documentation.get(statement, statement).end_lineno
        return textwrap.dedent("\n".join([*self._lines[above:start], *self._lines[first:last]]))


@cache
def module(name: str) -> Module:
    """One of the library's modules."""
    path = _path(name)
    assert path is not None, name
    return Module(name, path.read_text("utf8"))


@cache
def _path(name: str) -> Path | None:
    """The file of one of the library's modules, if there is one of that name."""
    path = LIBRARY.joinpath(*name.split(".")[1:])
    return next((file for file in (path / "__init__.py", path.with_suffix(".py")) if file.exists()), None)


def bound(statement: ast.stmt) -> list[str]:
    """The names that a statement defines."""
    match statement:
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            return [name]
        case ast.Assign():
            return [node.id for target in statement.targets for node in ast.walk(target) if isinstance(node, ast.Name)]
        case ast.AnnAssign(target=ast.Name(id=name)) | ast.TypeAlias(name=ast.Name(id=name)):
            return [name]
    return []


def imports_by(statement: ast.AST) -> list[Import]:
    """What an import statement imports; nothing of another one."""
    match statement:
        case ast.Import(names=names):
            return [Import(alias.name, "", alias.asname or alias.name.split(".")[0]) for alias in names]
        case ast.ImportFrom(module=str(whole), names=names):
            return [Import(whole, alias.name, alias.asname or alias.name) for alias in names]
    return []


@cache
def imports_within(statement: ast.stmt) -> frozenset[Import]:
    """What a function imports of others when it is called."""
    every = chain.from_iterable(map(imports_by, ast.walk(statement)))
    return frozenset(one for one in every if one.root != OURS)


def registration(statement: ast.stmt) -> ast.Call | None:
    """The decorator that registers a technique."""
    for decorator in getattr(statement, "decorator_list", []):
        if isinstance(decorator, ast.Call) and ast.unparse(decorator.func) == "technique":
            return decorator
    return None


@cache
def names_in(statement: ast.stmt) -> list[tuple[str, str]]:
    """The names of its module that a statement uses, and those of which it uses a member, with that.

    What registers it is left aside, and so are parameters and variables of functions, whatever else is named like them.
    """
    found: dict[tuple[str, str], None] = {}
    registered = registration(statement)
    parts = [node for node in ast.iter_child_nodes(statement) if node is not registered]
    used = _names_of_module(symtable(ast.unparse(statement), "", "exec"))
    for inner in (inner for node in parts for inner in ast.walk(node)):
        if isinstance(inner, ast.Name) and inner.id in used:
            found[inner.id, ""] = None
        elif isinstance(inner, ast.Attribute) and isinstance(inner.value, ast.Name) and inner.value.id in used:
            found[inner.value.id, inner.attr] = None
    return [*found]


def _names_of_module(table: SymbolTable) -> set[str]:
    """The names that are used in a scope, or in one inside of it, and are the module's."""
    at_top = table.get_type() == "module"
    names = {one.get_name() for one in table.get_symbols() if at_top or one.is_global()}
    return names.union(*map(_names_of_module, table.get_children()))


class Uses:
    """What code uses, transitively: definitions of the library's modules that are followed, and imports of all else."""

    def __init__(self, follow: Callable[[str], bool] = lambda _: True) -> None:
        self._follow = follow
        self.kept: dict[str, tuple[Module, set[ast.stmt]]] = {}
        self.imports: set[Import] = set()
        self._order: dict[str, set[str]] = {}

    def add(self, where: Module, statement: ast.stmt) -> None:
        """A statement, with all that it uses."""
        _, kept = self.kept.setdefault(where.name, (where, set()))
        if statement in kept:
            return
        kept.add(statement)
        self.imports |= imports_within(statement)
        for name, member in names_in(statement):
            if member:
                self._member(where, name, member)
            else:
                self._name(where, name)

    def _name(self, where: Module, name: str) -> None:
        if statement := where.definitions.get(name):
            self.add(where, statement)
            return
        for imported in where.imports_of(name):
            if self._followed(imported.module) and not _path(f"{imported.module}.{imported.original}"):
                self._order.setdefault(where.name, set()).add(imported.module)
                self._name(module(imported.module), imported.original)
            else:
                self.imports.add(imported)

    def _member(self, where: Module, name: str, member: str) -> None:
        """A definition of a module that was imported as a whole."""
        for imported in where.imports_of(name):
            whole = f"{imported.module}.{imported.original}"
            if self._followed(whole) and _path(whole):
                self._order.setdefault(where.name, set()).add(whole)
                self._name(module(whole), member)

    def _followed(self, name: str) -> bool:
        return name.startswith(f"{OURS}.") and self._follow(name)

    def import_lines(self) -> str:
        """Import statements: the standard library's, those of others, ours."""
        groups: tuple[list[str], list[str], list[str]] = [], [], []
        for imported in sorted(self.imports, key=lambda imported: (bool(imported.original), imported)):
            lines = groups[0 if imported.root in sys.stdlib_module_names else 2 if imported.root == OURS else 1]
            more = f"from {imported.module} import "
            if imported.original and lines and lines[-1].startswith(more):
                lines[-1] += f", {imported.statement.removeprefix(more)}"
            else:
                lines.append(imported.statement)
        return "\n\n".join("\n".join(lines) for lines in groups if lines)

    def modules(self) -> Iterator[tuple[str, str]]:
        """Each module that something is used of, by name, with that, behind those whose definitions it uses."""
        # Sorted, for sets have another order in each process, and code is to be the same in all of them.
        graph = {name: sorted(self._order.get(name, ())) for name in sorted({*self.kept, *self._order})}
        for name in TopologicalSorter(graph).static_order():
            if name in self.kept:
                where, kept = self.kept[name]
                statements = sorted(kept, key=lambda statement: statement.lineno)
                text = where.text(statements[0])
                for before, statement in pairwise(statements):
                    apart = "\n\n\n" if _is_block(before) or _is_block(statement) else "\n"
                    text += apart + where.text(statement)
                yield name, text


def _is_block(statement: ast.stmt) -> bool:
    return hasattr(statement, "body")


@dataclass(frozen=True)
class Source:
    """All that is needed to run techniques, as it stands in the library, from its imports to their calls."""

    module: str
    """Where the first one is."""
    docstring: str
    """Of the first one."""
    beneath: str
    """Imports, and what is used of the library below its techniques."""
    code: str
    """The techniques, what they use beside other techniques, and what opens their clients."""
    calls: str
    """What opens the client of each, and its call."""
    packages: tuple[str, ...]
    """What it imports of others: what has to be installed."""
    own_lines: int
    """Lines of code of this project below its techniques, without which it does not run."""

    @property
    def text(self) -> str:
        """All of it."""
        return f"{self.beneath}\n\n\n{self.code}\n\n\n{self.calls}"


def source(database: str, direction: str, drivers: Mapping[str, str]) -> Source:
    """The code of techniques, or of streamed moves, which are given by name with their drivers.

    Raises KeyError when there is none of a name.
    """
    uses, calls = Uses(lambda name: not name.startswith(GIVEN)), []
    clients = module(CLIENTS)
    table = clients.definitions["CLIENTS"]
    assert isinstance(table, ast.AnnAssign) and isinstance(table.value, ast.Dict)
    openers = {
        ast.literal_eval(key): ast.unparse(value)
        for key, value in zip(table.value.keys, table.value.values, strict=True)
        if key
    }
    functions = [_function(database, direction, name) for name in drivers]
    for (where, function), driver in zip(functions, drivers.values(), strict=True):
        opener = openers[_client(function, driver)]
        uses.add(where, function)
        uses.add(clients, clients.definitions[opener])
        calls.append(_call(function, opener))
    parts = {name: f"# {name}\n\n{text}" for name, text in uses.modules()}
    own = [text for name, text in parts.items() if name.startswith(TECHNIQUES)]
    others = [text for name, text in parts.items() if not name.startswith(TECHNIQUES)]
    packages = {one.root for one in uses.imports} - sys.stdlib_module_names - {OURS}
    where, function = functions[0]
    beneath = "\n\n\n".join(["from __future__ import annotations\n\n" + uses.import_lines(), *others])
    return Source(
        where.name, ast.get_docstring(function) or "", beneath, "\n\n\n".join(own), "\n".join(calls),
        tuple(sorted(packages)), sum(bool(line) for text in others for line in text.splitlines()),
    )  # fmt: skip


type Function = ast.FunctionDef | ast.AsyncFunctionDef


def _function(database: str, direction: str, name: str) -> tuple[Module, Function]:
    here = LIBRARY / "techniques"
    for path in (*here.glob(f"*/{database}_{direction}.py"), here / "streaming.py"):
        where = module(".".join([OURS, *path.relative_to(LIBRARY).with_suffix("").parts]))
        function = where.definitions.get(name)
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            return where, function
    raise KeyError(name)


def terms(database: str, direction: str, name: str, driver: str) -> tuple[contract.Contract | None, list[str]]:
    """What a registered technique's write is had on, and what it asks for, in words.

    Neither for a streamed move. Raises KeyError when there is none of that name.
    """
    _, function = _function(database, direction, name)
    given = _registered_with(function)
    if not given:
        return None, []
    own = given.get("contract")
    found = terms_of(database, direction, getattr(contract, own.id) if isinstance(own, ast.Name) else None)
    requires = ast.literal_eval(given.get("requires", ast.Tuple([])))
    return found, [REQUIREMENTS[one] for one in asked_for(requires, _client(function, driver), found)]


def _client(function: Function, driver: str) -> str:
    """Which client it takes, a key of `clients.CLIENTS`."""
    given = _registered_with(function)
    return str(ast.literal_eval(given["client"])) if "client" in given else CLIENTS_OF_DRIVERS.get(driver, driver)


def _registered_with(function: Function) -> dict[str | None, ast.expr]:
    registered = registration(function)
    return {keyword.arg: keyword.value for keyword in registered.keywords} if registered else {}


def _call(function: Function, opener: str) -> str:
    """A technique's call with its client, which is open for it alone."""
    client, *others = (argument.arg for argument in function.args.args)
    waits = isinstance(function, ast.AsyncFunctionDef)
    given = "" if ast.unparse(function.returns or ast.Constant(None)) == "None" else "returned = "
    return (
        f"{'async ' * waits}with {opener}(server) as {client}:\n"
        f"    {given}{'await ' * waits}{function.name}({', '.join([client, *others])})"
    )
