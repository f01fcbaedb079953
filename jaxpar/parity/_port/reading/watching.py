"""Watching: which lines of the user's classes run, and what every expression in them is while they run.

A first run says which functions run. In a second one each of them has another code object, compiled from
the same syntax tree with a probe around every expression; afterwards it has its own again. So everything is
known that a reader of the source cannot know: that `norm_layer` is BatchNorm2d, that `x` is a tensor and not
a list, that a branch never ran.
"""

from __future__ import annotations

import ast
import builtins
import copy
import functools
import gc
import inspect
import itertools
import sys
import sysconfig
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from types import CodeType, FunctionType, MethodType
from typing import Any

import torch

from .aliases import Aliases
from .profiling import profiled
from .source import Key, Source, source_of

PROBE, PASSED = "__jaxpar_probe__", "__jaxpar_passed__"
SEEN_KINDS = (
    *(ast.Name, ast.Attribute, ast.Call, ast.Subscript, ast.BinOp, ast.UnaryOp),
    *(ast.Compare, ast.BoolOp, ast.IfExp, ast.List, ast.ListComp),
)
STANDARD = tuple(Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "platstdlib"))
"""Folders of Python itself."""
INSTALLED = {"site-packages", "dist-packages"}
"""Where in them everybody's packages lie."""
FOREIGN = (Path(torch.__file__).resolve().parent, Path(__file__).resolve().parents[3])
"""Folders of torch and of jaxpar."""
NUMERIC = {"numpy", "torch", "torchgen", "jax", "flax"}
"""Packages that have words of their own in the rules, or none."""


class Site:
    """What one expression was.

    Attributes:
      kinds: the types of its values.
      objects: those values that are worth knowing.
      types, axes: of the tensors among them.
    """

    def __init__(self) -> None:
        self.kinds: set[type] = set()
        self.objects: dict[int, Any] = {}
        self.types: set[torch.dtype] = set()
        self.axes: set[int] = set()

    def add(self, value: Any) -> None:
        self.kinds.add(type(value))
        if isinstance(value, torch.Tensor):
            self.types.add(value.dtype)
            self.axes.add(value.ndim)
        if callable(value) or value is None or isinstance(value, bool):
            kept = value.__func__ if isinstance(value, MethodType) else value
            self.objects[id(kept)] = kept

    def merge(self, other: Site) -> None:
        self.kinds |= other.kinds
        self.objects |= other.objects

    @property
    def is_tensor(self) -> bool:
        return any(issubclass(kind, torch.Tensor) for kind in self.kinds)


class Watched:
    """What was seen.

    Attributes:
      sites: by the place of the expression.
      lines, called: (path, line) of all statements that ran, and of those that ran in the module's call.
      functions: those of the user that ran, by code object.
      aliases: which statements changed the tensor of another name.
    """

    def __init__(self) -> None:
        self.sites: dict[Key, Site] = {}
        self.lines: set[tuple[str, int]] = set()
        self.called: set[tuple[str, int]] = set()
        self.in_call = False
        self.functions: dict[CodeType, FunctionType] = {}
        self.aliases = Aliases()

    def probe(self, key: Key, value: Any) -> Any:
        self.sites.setdefault(key, Site()).add(value)
        return value

    def passed(self, path: str, line: int) -> None:
        self.lines.add((path, line))
        if self.in_call:
            self.called.add((path, line))
        self.aliases.look(sys._getframe(1), path, line)

    @functools.cache  # noqa: B019 - as long as what was seen
    def variables(self, source: Source) -> dict[tuple[ast.AST | None, str], Site]:
        """What the variables of functions were, everywhere in them."""
        found: dict[tuple[ast.AST | None, str], Site] = {}
        for node in ast.walk(source.tree):
            seen = self.sites.get(source.key(node)) if isinstance(node, ast.Name) else None
            if seen is not None and isinstance(node, ast.Name):
                found.setdefault((source.around(node), node.id), Site()).merge(seen)
        return found

    def listening(self) -> AbstractContextManager[None]:
        """While it lasts, calls that stand in no file of the user are noted as well; here none."""
        return nullcontext()

    def site(self, source: Source, node: ast.AST) -> Site | None:
        return self.sites.get(source.key(node))


def watch(make: Callable[[], Any], call: Callable[[Any], Any], watched: Watched | None = None) -> Watched:
    """Makes and calls twice and says what ran; the second run's result is forgotten."""
    watched = watched or Watched()

    def run() -> None:
        watched.in_call = False
        made = make()
        watched.in_call = True
        call(made)

    watched.functions = {
        code: function for function in functions_of(codes(run)) for code in [function.__code__]
    }
    with probes(watched, watched.functions.values()), watched.listening():
        run()
    watched.aliases.forget()
    return watched


def codes(run: Callable[[], Any]) -> list[CodeType]:
    """The user's code objects that a call runs."""
    found: dict[CodeType, None] = {}

    def note(frame: Any, event: str, _: Any) -> None:
        if event == "call":
            found[frame.f_code] = None

    with profiled(note):
        run()
    return [code for code in found if is_users(code.co_filename)]


@functools.cache
def is_users(path: str) -> bool:
    """Whether a file is neither torch's nor Python's, and is there."""
    if path.startswith("<") or not path.endswith(".py"):
        return False
    real = Path(path).resolve()
    packages = {package for folder, package in itertools.pairwise(real.parts) if folder in INSTALLED}
    if not packages and any(map(real.is_relative_to, STANDARD)):
        return False
    return real.is_file() and not any(map(real.is_relative_to, FOREIGN)) and not packages & NUMERIC


def functions_of(codes: Iterable[CodeType]) -> list[FunctionType]:
    """The functions that have these code objects; nested ones exist only while they run."""
    wanted = set(codes)
    found = {
        id(each): each
        for each in gc.get_referrers(*wanted)
        if isinstance(each, FunctionType) and each.__code__ in wanted
    }
    return list(found.values())


@contextmanager
def probes(watched: Watched, functions: Iterable[FunctionType]) -> Iterator[None]:
    """The functions with probes in them. Other threads that run them in the meantime are seen as well."""
    # A probe looks at values with isinstance, which asks them for an attribute.
    looking = (each for each in functions if each.__name__ != "__getattribute__")
    own = {function: function.__code__ for function in looking}
    setattr(builtins, PROBE, watched.probe)
    setattr(builtins, PASSED, watched.passed)
    try:
        for function in own:
            probed = _probed(function)
            if probed is not None:
                function.__code__ = probed
        yield
    finally:
        for function, code in own.items():
            function.__code__ = code
        delattr(builtins, PROBE)
        delattr(builtins, PASSED)


def _probed(function: FunctionType) -> CodeType | None:
    """The code of a function with probes; None if its source is another one."""
    code = function.__code__
    source = source_of(code.co_filename)
    node = source.function(code)
    if node is None:
        return None
    probed = _Probes(source).visit(copy.deepcopy(node))
    probed.decorator_list = []
    shell: ast.stmt = probed
    owner = source.owner(node)
    if owner is not None:  # a class around it, for super() and for names like __x
        shell = _statement(f"class {owner.name}: pass")
        shell.body = [probed]  # type: ignore[attr-defined]
    free = [name for name in code.co_freevars if name != "__class__"]
    own = {owner.name if owner is not None else node.name} - set(free)
    around: Any = _statement("def __shell__(): pass")
    around.body = [*(_statement(f"{name} = None") for name in free), shell]
    # The name of the class is the file's, and no variable of what stands around it here.
    around.body[:0] = [ast.Global([name]) for name in own]
    module = ast.fix_missing_locations(ast.Module([around], []))
    compiled = compile(module, source.path, "exec", dont_inherit=True, flags=code.co_flags & _FUTURES)
    found = next((each for each in _inside(compiled) if _fits(each, code)), None)
    if found is None:  # unseen it would look like one that did not run
        raise LookupError(f"{source.place(node)}: {code.co_qualname} cannot be watched")
    return found


def _statement(text: str) -> ast.stmt:
    return ast.parse(text).body[0]


_FUTURES = 0x1FE0000
"""The flags of `from __future__` imports."""


def _fits(code: CodeType, like: CodeType) -> bool:
    return code.co_name == like.co_name and code.co_freevars == like.co_freevars


def _inside(code: CodeType) -> Iterator[CodeType]:
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield each
            yield from _inside(each)


class _Probes(ast.NodeTransformer):
    """Puts a probe around every expression that is read, and one before every statement."""

    def __init__(self, source: Source):
        self.source = source

    def visit(self, node: ast.AST) -> Any:
        key = self.source.key(node) if isinstance(node, SEEN_KINDS) else None
        reads = isinstance(getattr(node, "ctx", ast.Load()), ast.Load)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "super":
            return node  # Python looks for this very word
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
                setattr(node, name, [new for each in value for new in self._statement(each)])
            elif isinstance(value, list):
                setattr(node, name, [self.visit(x) if isinstance(x, ast.AST) else x for x in value])
            elif isinstance(value, ast.AST):
                setattr(node, name, self.visit(value))
        return node

    def _statement(self, node: ast.stmt) -> list[ast.stmt]:
        place: list[ast.expr] = [ast.Constant(self.source.path), ast.Constant(node.lineno)]
        call = ast.Expr(ast.Call(ast.Name(PASSED, ast.Load()), place, []))
        return [ast.copy_location(call, node), self.visit(node)]


def is_module_class(value: Any) -> bool:
    return inspect.isclass(value) and issubclass(value, torch.nn.Module)
