"""Memory: attributes that a call sets, `if self.table is None or len(self.table) < n: self.table = make(n)`.

A compiled program has no memory. Where the outputs do not depend on earlier calls, each call computes the
values anew: they become local variables, which methods of the class take as arguments and return.
"""

from __future__ import annotations

import ast
import builtins
import dataclasses
from collections.abc import Iterable, Iterator

from torch import nn

from ..reading.source import Function, Source, source_of, start_of
from .attributes import ASKING, as_if_empty, asked, computes, is_get, loaded, own_attribute, reads, set_by
from .context import Context, variables_of
from .expressions import is_none
from .fragment import Hole

KEEPS = "it keeps an array in the module, which a compiled step would forget"
READ, SET, CALL = "read", "set", "call"
BRANCHES = (ast.If, ast.For, ast.While, ast.Try, ast.AsyncFor)
Event = tuple[str, str, tuple[int, ...]]
"""What happens to which attribute or method, in which branches."""


@dataclasses.dataclass(frozen=True)
class ModuleMemory:
    """What calls keep in a module of one class.

    Attributes:
      names: the local variables' names, by attribute.
      arguments, returned: the attributes that a method needs from its caller, and those that it returns.
      read: the attributes that are read after they are set.
      entries: the dicts, of which the variable is the entry that the call uses.
      within_call: the attributes that stay attributes, of no state: another method or module reads them.
    """

    names: dict[str, str] = dataclasses.field(default_factory=dict)
    arguments: dict[str, list[str]] = dataclasses.field(default_factory=dict)
    returned: dict[str, list[str]] = dataclasses.field(default_factory=dict)
    read: frozenset[str] = frozenset()
    entries: frozenset[str] = frozenset()
    within_call: frozenset[str] = frozenset()

    def variables(self, names: Iterable[str]) -> list[str]:
        return [self.names[name] for name in names]


def memory_of(ctx: Context, node: ast.AST) -> ModuleMemory:
    """Return what the class around a node keeps."""
    owner: ast.AST | None = node
    while owner is not None and not isinstance(owner, ast.ClassDef):
        owner = ctx.source.parents.get(owner)
    if owner is None or ctx.kind is None:
        return ModuleMemory()
    key = (ctx.source.path, owner.lineno)
    if key not in ctx.watched.memories:
        ctx.watched.memories[key] = ModuleMemory()  # ends a recursion
        ctx.watched.memories[key] = _Methods(ctx, owner).memory()
    return ctx.watched.memories[key]


def variable_of(ctx: Context, node: ast.AST) -> str | None:
    """Return the local variable that an attribute of `self` is in the written file."""
    if not ctx.kind or not (name := own_attribute(node)):
        return None
    return memory_of(ctx, node).names.get(name)


def entry_of(ctx: Context, node: ast.expr) -> str | None:
    """Return the local variable for `self.tables[key]` and `self.tables.get(key)`, which is None at first."""
    entries = memory_of(ctx, node).entries
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and is_get(node, entries):
        return (
            "None" if isinstance(ctx.source.parents[node], ast.Assign) else variable_of(ctx, node.func.value)
        )
    is_entry = isinstance(node, ast.Subscript) and own_attribute(node.value) in entries
    return variable_of(ctx, node.value) if isinstance(node, ast.Subscript) and is_entry else None


def computed_first(ctx: Context, node: ast.stmt) -> bool:
    """Return whether a statement is `x = self.tables.get(key)` or the next one, `if x is None: x = ...`."""
    siblings = getattr(ctx.source.parents[node], "body", [])
    if node not in siblings:
        return False
    at = siblings.index(node) - isinstance(node, ast.If)
    first, second = [*siblings, None][max(at, 0) :][:2]
    if not (isinstance(first, ast.Assign) and isinstance(second, ast.If) and not second.orelse):
        return False
    name, entries = ast.unparse(first.targets[0]), memory_of(ctx, node).entries
    sets = any(isinstance(x, ast.Assign) and ast.unparse(x.targets[0]) == name for x in second.body)
    return is_get(first.value, entries) and ast.unparse(second.test) == f"{name} is None" and sets


def stored(ctx: Context, node: ast.stmt) -> tuple[str, ast.expr] | None:
    """Return the attribute that a statement sets, and its value, if it becomes a local variable."""
    name, value = set_by(node)
    return (name, value) if name and value is not None and name in memory_of(ctx, node).names else None


def without_memory(ctx: Context, node: ast.Assign) -> list[ast.Assign] | None:
    """Return a constructor's `self.a = self.b = None` without what calls keep; None if all stay."""
    names, pairs = memory_of(ctx, node).names, [(target, node.value) for target in node.targets]
    first, value = node.targets[0], node.value
    if isinstance(first, ast.Tuple) and isinstance(value, ast.Tuple) and len(first.elts) == len(value.elts):
        pairs = [*zip(first.elts, value.elts, strict=True)]
    remaining = [pair for pair in pairs if own_attribute(pair[0]) not in names]
    if len(remaining) == len(pairs) or not ctx.only_making(node):
        return None
    return [ast.copy_location(ast.Assign([target], value), node) for target, value in remaining]


def taken_by(ctx: Context, node: ast.Call | Function) -> list[str]:
    """Return the variables that a method, or the one that is called, takes as arguments."""
    memory = memory_of(ctx, node)
    return memory.variables(memory.arguments.get(_method(ctx, node), ()))


def returned_by(ctx: Context, node: ast.Call | Function) -> str:
    """Return the variables that a method, or the one that is called, returns, as a target; "" if none."""
    memory = memory_of(ctx, node)
    return ", ".join(memory.variables(memory.returned.get(_method(ctx, node), ())))


def _method(ctx: Context, node: ast.Call | Function) -> str:
    if isinstance(node, ast.Call):
        return own_attribute(node.func)
    return node.name if ctx.source.owner(node) else ""


def decided(ctx: Context, node: ast.If | ast.IfExp) -> bool | None:
    """Return which branch is written for a condition that reads the memory, as if it were empty.

    Raises:
      Hole: the condition depends on more than the memory.
    """
    names = memory_of(ctx, node).names
    if not reads(node.test, names):
        return None
    if (value := as_if_empty(ctx, node.test, names, computes(node, names))) is None:
        raise Hole(KEEPS)
    return value


class _Methods:
    """The methods of a class that ran in the module's call, and what they do with its attributes."""

    def __init__(self, ctx: Context, node: ast.ClassDef):
        self.ctx, self.node = ctx, node
        methods = [statement for statement in node.body if isinstance(statement, Function)]
        self.methods = {x.name: x for x in methods if any(ctx.in_call(inner) for inner in x.body)}
        self.dicts: set[str] = set()
        self.constructing = [x for x in methods if x.name not in self.methods and ctx.ran(x.body[0])]

    def memory(self) -> ModuleMemory:
        arrays, numbers, unread, elsewhere = self._candidates()
        names = arrays | numbers
        # Only what has a hole otherwise is worth several calls of torch's module.
        if (arrays or elsewhere) and self.ctx.watched.remembers():
            names, elsewhere, arrays = set(), set(), set()
        while names & arrays:
            memory = self._flow(names | unread)
            wrong = self._wrong(memory) | (numbers & names & memory.read)
            if not wrong:
                break
            names = names - wrong
        names = (names if names & arrays else set()) | unread
        memory = self._flow(names) if names else ModuleMemory()
        within_call = filter(self._is_set_first, (arrays - self.dicts - names) | elsewhere)
        return dataclasses.replace(memory, within_call=frozenset(within_call))

    def _is_set_first(self, name: str) -> bool:
        """Return whether only calls set an attribute, to arrays; the constructor at most to None."""
        sets = [(x, set_by(x)[1]) for x in ast.walk(self.node) if set_by(x)[0] == name]
        constructed = [value for x, value in sets if not self.ctx.in_call(x) and self.ctx.ran(x)]
        sites = [self.ctx.site(value) for x, value in sets if value and self.ctx.in_call(x)]
        only_arrays = all(site and site.is_tensor and len(site.kinds) == 1 for site in sites)
        plainly = all(isinstance(x, ast.Assign) for x, _ in sets)
        only_none = all(value and is_none(value) for value in constructed)
        return bool(sites) and only_arrays and plainly and only_none

    def _candidates(self) -> tuple[set[str], set[str], set[str], set[str]]:
        """Return the attributes that calls set: arrays and numbers that they read, other arrays, and arrays
        that other modules read."""
        arrays: set[str] = set()
        others: set[str] = set()
        for method in self.methods.values():
            for child in ast.walk(method):
                if not isinstance(child, ast.stmt) or not self.ctx.in_call(child):
                    continue
                name, value = set_by(child)
                if isinstance(child, ast.Assign) and isinstance(child.targets[0], ast.Subscript) and name:
                    site = self.ctx.site(child.targets[0].value)
                    (self.dicts if site and site.kinds <= {dict} else others).add(name)
                elif name:
                    (arrays if value and self.ctx.is_tensor(value) else others).add(name)
                elif isinstance(child, ast.Assign) and isinstance(child.targets[0], ast.Tuple):
                    arrays |= {own_attribute(target) for target in child.targets[0].elts} - {""}
        read = {
            name
            for method in self.methods.values()
            for child in ast.walk(method)
            if (name := asked(child) or loaded(child))
        }
        arrays |= self.dicts
        in_state = {name for module in self._modules() for name in variables_of(module)}
        attributes = (child for child in ast.walk(self.ctx.source.tree) if isinstance(child, ast.Attribute))
        elsewhere = {x.attr for x in attributes if not own_attribute(x) and self.ctx.is_module(x.value)}
        elsewhere |= {loaded(child) for part in self._others() for child in ast.walk(part)}
        outside = in_state | elsewhere
        outside |= {name for name in arrays - outside if self._is_read_by_others(name)}
        unread = arrays - read - self.dicts - others
        sets = (arrays & read) - outside, (others & read) - arrays - outside, unread - outside
        return *sets, (arrays & outside) - in_state - self.dicts

    def _is_read_by_others(self, name: str) -> bool:
        """Return whether a function of another file that ran may read an attribute of these modules."""
        watched = self.ctx.watched
        for source in map(source_of, watched.paths - {self.ctx.source.path}):
            for x in ast.walk(source.tree):
                asks = isinstance(x, ast.Call) and ast.unparse(x.func) in ASKING
                if asks and any(getattr(part, "value", None) == name for part in x.args):  # type: ignore[attr-defined]
                    return True
                if not isinstance(x, ast.Attribute) or x.attr != name or isinstance(x.ctx, ast.Store):
                    continue
                if (site := watched.site(source, x.value)) is not None:
                    if any(issubclass(kind, self.ctx.kind or nn.Module) for kind in site.kinds):
                        return True
                elif any((source.path, y.lineno) in watched.lines for y in _body_around(source, x)):
                    return True
        return False

    def _others(self) -> Iterator[ast.AST]:
        """Yield the constructor and derived classes, which may read an attribute before a call sets it."""
        yield from self.constructing
        for other in self.ctx.source.classes.values():
            if self.node.name in {base.id for base in other.bases if isinstance(base, ast.Name)}:
                yield other

    def _modules(self) -> list[nn.Module]:
        names = [child for child in ast.walk(self.node) if isinstance(child, ast.Name) and child.id == "self"]
        return [module for name in names for module in self.ctx.modules(name)]

    def _flow(self, names: set[str]) -> ModuleMemory:
        """Return which methods take and return what, for these attributes."""
        events = {name: [*self._events(method.body, names, ())] for name, method in self.methods.items()}
        needed: dict[str, list[str]] = {name: [] for name in events}
        returned: dict[str, list[str]] = {name: [] for name in events}
        read: set[str] = set()
        while True:
            before = repr((needed, returned))
            sets = {name: _sets(events, name, set()) for name in events}
            for method, happening in events.items():
                available: dict[str, list[tuple[int, ...]]] = {}
                makers: dict[str, str] = {}
                for kind, name, branches in happening:
                    if kind == SET:
                        available.setdefault(name, []).append(branches)
                        makers.pop(name, None)
                    for used in [name] if kind == READ else needed[name] if kind == CALL else []:
                        read.add(used)
                        if not any(branches[: len(set_in)] == set_in for set_in in available.get(used, ())):
                            needed[method] += [used] * (used not in needed[method])
                        elif (maker := makers.get(used)) and used not in returned[maker]:
                            returned[maker].append(used)
                    for attribute in sets[name] if kind == CALL else ():
                        available.setdefault(attribute, []).append(branches)
                        makers[attribute] = name
                for used in returned[method]:
                    if (maker := makers.get(used)) and used not in returned[maker]:
                        returned[maker].append(used)
            if repr((needed, returned)) == before:
                variables = {name: self._variable(name) for name in sorted(names)}
                entries = frozenset(self.dicts & names)
                return ModuleMemory(variables, needed, returned, frozenset(read), entries)

    def _variable(self, name: str) -> str:
        variable = name.lstrip("_")
        nodes = [*ast.walk(self.node)]
        bound = {x.id for x in nodes if isinstance(x, ast.Name)} | {
            x.arg for x in nodes if isinstance(x, ast.arg)
        }
        is_global = variable in self.ctx.scope.globals or hasattr(builtins, variable)
        return f"cached_{variable}" if variable in bound or is_global else variable

    def _wrong(self, memory: ModuleMemory) -> set[str]:
        """Return the attributes that cannot be variables: the call itself would need them from before."""
        wrong: set[str] = set()
        for method in self.methods.values():
            names = {*memory.arguments[method.name], *memory.returned[method.name]}
            if names and not self._is_called_plainly(method, memory):
                wrong |= names
        for child in (x for method in self.methods.values() for x in ast.walk(method)):
            wrong |= {asked(child)} if not self._is_in_test(child) else set()
            if isinstance(child, ast.If | ast.IfExp) and reads(child.test, memory.names):
                sets_first = computes(child, memory.names)
                if as_if_empty(self.ctx, child.test, memory.names, sets_first) is None:
                    wrong |= {name for name in memory.names if reads(child.test, [name])}
        return wrong & {*memory.names}

    def _is_in_test(self, node: ast.AST) -> bool:
        parents = self.ctx.source.parents
        while not isinstance(node, ast.stmt):
            node, child = parents[node], node
            if child is getattr(node, "test", None):
                return True
        return False

    def _is_called_plainly(self, method: Function, memory: ModuleMemory) -> bool:
        """Return whether a method is only called by methods of this class, and can return more."""
        parents = self.ctx.source.parents
        uses = [
            x
            for x in ast.walk(self.ctx.source.tree)
            if isinstance(x, ast.Attribute) and x.attr == method.name
        ]
        calls = [parents[use] for use in uses if own_attribute(use) and use in {*ast.walk(self.node)}]
        plain = len(calls) == len(uses) and all(isinstance(call, ast.Call) for call in calls)
        if not plain or method.decorator_list or method.name == "forward":
            return False
        if not memory.returned[method.name]:
            return True
        ends = any(isinstance(x, ast.Return) and self._is_written(x, memory.names) for x in ast.walk(method))
        return not ends and all(isinstance(parents[call], ast.Expr) for call in calls)

    def _is_written(self, node: ast.AST, names: Iterable[str]) -> bool:
        """Return whether no condition on the memory leaves a statement out, as `if self.table: return`."""
        while not isinstance(node, Function):
            child, node = node, self.ctx.source.parents[node]
            if isinstance(node, ast.If) and reads(node.test, names):
                chosen = as_if_empty(self.ctx, node.test, names, computes(node, names))
                if child in (node.body if chosen is False else node.orelse if chosen else ()):
                    return False
        return True

    def _events(
        self, body: Iterable[ast.stmt], names: set[str], branches: tuple[int, ...]
    ) -> Iterator[Event]:
        """Yield what statements do, in order, without the branches that are not written."""
        for node in body:
            if isinstance(node, ast.If) and reads(node.test, names):
                sets_first = computes(node, names)
                chosen = as_if_empty(self.ctx, node.test, names, sets_first)
                yield from self._events(node.orelse if chosen is False else node.body, names, branches)
                continue
            blocks = [x for name in ("body", "orelse", "finalbody") if (x := getattr(node, name, None))]
            blocks += [handler.body for handler in getattr(node, "handlers", ())]
            if blocks and not isinstance(node, Function | ast.ClassDef):
                inner = {id(statement) for block in blocks for statement in block}
                for child in ast.iter_child_nodes(node):
                    if id(child) not in inner:
                        yield from self._in_expression(child, names, branches)
                for number, block in enumerate(blocks):
                    more = (start_of(node)[0] * 4 + number,) if isinstance(node, BRANCHES) else ()
                    yield from self._events(block, names, branches + more)
                continue
            yield from self._in_expression(node, names, branches)
            if (name := set_by(node)[0]) in names:
                yield SET, name, branches
            for child in ast.walk(node):
                stores = isinstance(child, ast.Attribute) and isinstance(child.ctx, ast.Store)
                if stores and (name := own_attribute(child)) in names:
                    yield SET, name, branches

    def _in_expression(self, node: ast.AST, names: set[str], branches: tuple[int, ...]) -> Iterator[Event]:
        if isinstance(node, ast.IfExp) and reads(node.test, names):
            chosen = as_if_empty(self.ctx, node.test, names, computes(node, names))
            yield from self._in_expression(node.orelse if chosen is False else node.body, names, branches)
            return
        if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store) and own_attribute(node.value):
            node = node.slice
        if isinstance(node, ast.Assign) and is_get(node.value, names):
            return
        changed = own_attribute(node.target) if isinstance(node, ast.AugAssign) else ""
        if (name := asked(node) or loaded(node) or changed) in names:
            yield READ, name, branches
        for child in ast.iter_child_nodes(node):
            yield from self._in_expression(child, names, branches)
        if isinstance(node, ast.Call) and (called := own_attribute(node.func)) in self.methods:
            yield CALL, called, branches


def _body_around(source: Source, node: ast.AST) -> list[ast.stmt]:
    return getattr(source.around(node) or source.tree, "body", [])


def _sets(events: dict[str, list[Event]], method: str, callers: set[str]) -> list[str]:
    """Return the attributes that a method sets in any case, itself or by methods that it calls."""
    names: list[str] = []
    for kind, name, branches in events[method]:
        if not branches and kind == SET:
            names.append(name)
        elif not branches and kind == CALL and name not in callers:
            names += _sets(events, name, callers | {method})
    return list(dict.fromkeys(names))
