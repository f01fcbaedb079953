"""Watching: which lines of the user's classes run, and the values of every expression while they run.

A first run records which functions run. For a second run each of them gets a code object compiled from the
same syntax tree with a probe around every expression, and its own code back afterwards.
"""

from __future__ import annotations

import ast
import builtins
import copy
import functools
import gc
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from types import CodeType, FunctionType, MethodType
from typing import Any

import torch

from .aliases import Aliases
from .initial import MEASURED, Initial, is_apply
from .packages import is_users
from .source import Key, Source, source_of, start_of

PROBE, PASSED = "__jaxpar_probe__", "__jaxpar_passed__"
BEGIN, END = "__jaxpar_begin__", "__jaxpar_end__"
PROBED_NODES = (
    *(ast.Name, ast.Attribute, ast.Call, ast.Subscript, ast.BinOp, ast.UnaryOp),
    *(ast.Compare, ast.BoolOp, ast.IfExp, ast.List, ast.ListComp),
)
MOST_LITERALS = 16
"""How many texts and integers of an expression are kept, of which a registry may have been asked."""


def uncached(value: Any) -> Any:
    """Return the function that `functools.cache` or `lru_cache` decorates, or the value itself."""
    return value.__wrapped__ if isinstance(value, functools._lru_cache_wrapper) else value


class Site:
    """The values of one expression: their types, and callables, None and booleans by id in `objects`.

    `types` and `axes` are the dtypes and numbers of axes of its tensors, `keys` the names in its dicts.
    """

    def __init__(self) -> None:
        self.kinds: set[type] = set()
        self.keys: set[Any] = set()
        self.objects: dict[int, Any] = {}
        self.types: set[torch.dtype] = set()
        self.axes: set[int] = set()
        self.literals: set[str | int] = set()

    def add(self, value: Any) -> None:
        self.kinds.add(type(value))
        if isinstance(value, torch.Tensor):
            self.types.add(value.dtype)
            self.axes.add(value.ndim)
        if type(value) is dict:
            self.keys.update(value)
        if type(value) in (str, int) and len(self.literals) < MOST_LITERALS:
            self.literals.add(value)
        if callable(value) or value is None or isinstance(value, bool):
            function = uncached(value.__func__ if isinstance(value, MethodType) else value)
            self.objects[id(function)] = function

    def merge(self, other: Site) -> None:
        self.kinds |= other.kinds
        self.objects |= other.objects
        self.keys |= other.keys
        self.literals |= other.literals

    @property
    def is_tensor(self) -> bool:
        return any(issubclass(kind, torch.Tensor) for kind in self.kinds)


class Watched:
    """What ran, and with which values.

    `lines` and `called` are (path, line) of all statements that ran, and of those that ran in the module's
    call. `remembers` returns whether a call's outputs depend on earlier calls, and `memories` what the
    translator made of a class's memory. `kept_arguments` has the attributes of constructors' arguments,
    `typed_by_parameters` the classes whose `dtype` follows their parameters, and `keeping_modules` the plain
    classes whose objects keep modules. `hook_names` are the functions that are hooks, and `hook_owners` the
    objects that they are methods of or have as variables.
    """

    def __init__(self) -> None:
        self.sites: dict[Key, Site] = {}
        self.lines: set[tuple[str, int]] = set()
        self.called: set[tuple[str, int]] = set()
        self.in_call = False
        self.functions: dict[CodeType, FunctionType] = {}
        self.aliases = Aliases()
        self.initial = Initial()
        self.answers: dict[tuple[FunctionType, Callable[..., bool]], bool] = {}
        self.remembers: Callable[[], bool] = lambda: True
        self.memories: dict[tuple[str, int], Any] = {}
        self.kept_arguments: dict[type, str] = {}
        self.typed_by_parameters: frozenset[type] = frozenset()
        self.keeping_modules: frozenset[type] = frozenset()
        self.hook_names: frozenset[str] = frozenset()
        self.hook_owners: list[Any] = []

    def probe(self, key: Key, value: Any) -> Any:
        self.sites.setdefault(key, Site()).add(value)
        return value

    def record_line(self, path: str, line: int) -> None:
        enclosing_lines = self.initial.lines()
        (self.lines if enclosing_lines is None else enclosing_lines).add((path, line))
        if self.in_call:
            self.called.add((path, line))
        self.aliases.record_changes(sys._getframe(1), path, line)

    def begin(self, *location: Any) -> None:
        if not self.in_call:
            self.initial.begin(location)

    def end(self, *location: Any) -> None:
        if not self.in_call:
            lines = self.initial.end(location[:3], *location[3:])
            enclosing_lines = self.initial.lines()
            (self.lines if enclosing_lines is None else enclosing_lines).update(lines)

    @functools.cache  # noqa: B019 - as long as what was seen
    def variables(self, source: Source) -> dict[tuple[ast.AST | None, str], Site]:
        variables: dict[tuple[ast.AST | None, str], Site] = {}
        for node in ast.walk(source.tree):
            site = self.sites.get(source.key(node)) if isinstance(node, ast.Name) else None
            if site is not None and isinstance(node, ast.Name):
                variables.setdefault((source.around(node), node.id), Site()).merge(site)
        return variables

    @functools.cached_property
    def kinds_in_call(self) -> set[type]:
        """The types of all values of the module's call; read after all calls."""
        return {kind for key, site in self.sites.items() if key[:2] in self.called for kind in site.kinds}

    @property
    def paths(self) -> set[str]:
        """The files of the lines that ran."""
        return {path for path, _ in self.lines}

    @functools.cached_property
    def callables(self) -> set[int]:
        """The ids of all functions and classes that were values of expressions; read after all calls."""
        return {number for site in self.sites.values() for number in site.objects}

    def listening(self) -> AbstractContextManager[None]:
        """A context in which subclasses record more than the probes do."""
        return nullcontext()

    def site(self, source: Source, node: ast.AST) -> Site | None:
        return self.sites.get(source.key(node))


def watch(make: Callable[[], Any], call: Callable[[Any], Any], watched: Watched | None = None) -> Watched:
    """Make and call twice and return what ran; the second run's result is discarded."""
    watched = watched or Watched()

    def run() -> None:
        watched.in_call = False
        with watched.initial.counting():
            module = make()
        watched.lines.update(watched.initial.close())
        watched.in_call = True
        call(module)

    watched.functions = {function.__code__: function for function in functions_of(codes(run))}
    for cache in referrers(functools._lru_cache_wrapper, watched.functions.values()):
        cache.cache_clear()  # otherwise the function would not run again
    with probes(watched, watched.functions.values()), watched.listening():
        run()
    watched.aliases.release_frames()
    return watched


@contextmanager
def profiled(note: Callable[[Any, str, Any], None]) -> Iterator[None]:
    """Pass this thread's calls and returns to `note`; a profiler that was active resumes afterwards."""
    before = sys.getprofile()
    sys.setprofile(note)
    try:
        yield
    finally:
        sys.setprofile(None)
        # cProfile's profiler is not a function that sys.setprofile accepts.
        resume = getattr(before, "enable", functools.partial(sys.setprofile, before))
        resume()


def codes(run: Callable[[], Any]) -> list[CodeType]:
    ran: dict[CodeType, None] = {}

    def note(frame: Any, event: str, _: Any) -> None:
        if event == "call":
            ran[frame.f_code] = None

    with profiled(note):
        run()
    return [code for code in ran if is_users(code.co_filename)]


def functions_of(codes: Iterable[CodeType]) -> list[FunctionType]:
    """Nested functions have no object, because they exist only while they run."""
    code_set = set(codes)
    # A code object has no reference to its function.
    return [function for function in referrers(FunctionType, code_set) if function.__code__ in code_set]


def referrers(kind: type, referents: Iterable[Any]) -> list[Any]:
    """Return the objects of a type that refer to one of these, those that a program has frozen too."""
    frozen = gc.get_freeze_count() > 0
    if frozen:
        gc.collect()  # before garbage is frozen, too
        gc.unfreeze()  # what is frozen is hidden from the search
    objects = [x for x in gc.get_referrers(*referents) if isinstance(x, kind)]
    if frozen:
        gc.freeze()
    return objects


@contextmanager
def probes(watched: Watched, functions: Iterable[FunctionType]) -> Iterator[None]:
    """Install probes in functions. Other threads that run them meanwhile are recorded as well."""
    # A probe inspects values with isinstance, which reads an attribute of them: a probed __getattribute__
    # would recurse.
    probeable = (function for function in functions if function.__name__ != "__getattribute__")
    originals = {function: function.__code__ for function in probeable}
    # In builtins: the probed functions keep their globals, which must not get new names.
    probes = {PROBE: watched.probe, PASSED: watched.record_line, BEGIN: watched.begin, END: watched.end}
    vars(builtins).update(probes)
    try:
        for function in originals:
            probed = _probed(function)
            if probed is not None:
                # Replacing the code keeps the function's identity: bound methods run the probes, too.
                function.__code__ = probed
        yield
    finally:
        for function, code in originals.items():
            function.__code__ = code
        for name in probes:
            delattr(builtins, name)


def _probed(function: FunctionType) -> CodeType | None:
    """None if the function's source does not match."""
    code = function.__code__
    source = source_of(code.co_filename)
    node = source.function(code)
    if node is None:
        return None
    probed = _Probes(source).visit(copy.deepcopy(node))
    probed.decorator_list = []
    shell: ast.stmt = probed
    owner = source.owner(node)
    if owner is not None:  # super() and names like __x need a class around the function
        shell = _statement(f"class {owner.name}: pass")
        shell.body = [probed]  # type: ignore[attr-defined]
    free = [name for name in code.co_freevars if name != "__class__"]
    global_names = {owner.name if owner is not None else node.name} - set(free)
    shell_function: Any = _statement("def __shell__(): pass")
    shell_function.body = [*(_statement(f"{name} = None") for name in free), shell]
    # The class's name must be the file's global, not a local variable of the shell.
    shell_function.body[:0] = [ast.Global([name]) for name in global_names]
    module = ast.fix_missing_locations(ast.Module([shell_function], []))
    # With the future imports of the function's own file, and without this file's.
    compiled = compile(module, source.path, "exec", dont_inherit=True, flags=code.co_flags & _FUTURES)
    matching = next((inner for inner in _inside(compiled) if _fits(inner, code)), None)
    if matching is None:  # without probes it would look like a function that did not run
        raise LookupError(f"{source.place(node)}: {code.co_qualname} cannot be watched")
    return matching


def _statement(text: str) -> ast.stmt:
    return ast.parse(text).body[0]


_FUTURES = 0x1FE0000  # The flags of `from __future__` imports


def _fits(code: CodeType, like: CodeType) -> bool:
    return code.co_name == like.co_name and code.co_freevars == like.co_freevars


def _inside(code: CodeType) -> Iterator[CodeType]:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield constant
            yield from _inside(constant)


class _Probes(ast.NodeTransformer):
    """Puts a probe around every expression that is read, and a call before every statement."""

    def __init__(self, source: Source):
        self.source = source

    def visit(self, node: ast.AST) -> Any:
        key = self.source.key(node) if isinstance(node, PROBED_NODES) else None
        reads = isinstance(getattr(node, "ctx", ast.Load()), ast.Load)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "super":
            return node  # Python's compiler looks for the name `super`
        # Before Python 3.12, nodes inside an f-string have positions that are not the source's.
        if isinstance(node, ast.JoinedStr):
            return node
        new = super().visit(node)
        if key is None or not reads:
            return new
        arguments: list[ast.expr] = [ast.Constant(key), new]  # type: ignore[arg-type]
        return ast.copy_location(ast.Call(ast.Name(PROBE, ast.Load()), arguments, []), node)

    def generic_visit(self, node: ast.AST) -> Any:
        for name, value in ast.iter_fields(node):
            if name in ("annotation", "returns", "decorator_list", "type_params", "pattern"):
                continue
            if isinstance(value, list) and value and isinstance(value[0], ast.stmt):
                setattr(node, name, [new for statement in value for new in self._statement(statement)])
            elif isinstance(value, list):
                setattr(node, name, [self.visit(x) if isinstance(x, ast.AST) else x for x in value])
            elif isinstance(value, ast.AST):
                setattr(node, name, self.visit(value))
        return node

    def _statement(self, node: ast.stmt) -> list[ast.stmt]:
        location = (self.source.path, *start_of(node))
        end = _reported(END, (*location, is_apply(node)))  # before `visit`, which changes the node
        statements = [_reported(PASSED, location[:2]), self.visit(node)]
        if isinstance(node, MEASURED):
            statements = [statements[0], _reported(BEGIN, location), statements[1], end]
        return [ast.copy_location(statement, node) for statement in statements]


def _reported(name: str, location: Iterable[Any]) -> ast.stmt:
    """Return a statement that passes a location on."""
    return ast.Expr(ast.Call(ast.Name(name, ast.Load()), [ast.Constant(part) for part in location], []))
