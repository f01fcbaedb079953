"""Edit: new texts of a source's nodes, and what the rules of an edit look up in the rest of the source."""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, TypeGuard

from ..source import Code, last_name

Texts = dict[Any, str]  # by node
Edit = tuple[int, Texts]  # a cost, the smaller the likelier
Edits = Iterator[Edit]
SIMPLE = ast.Assign, ast.AugAssign, ast.AnnAssign, ast.Return, ast.Expr
VALUES = ast.Call, ast.BinOp, ast.Subscript, ast.Compare, ast.UnaryOp, ast.IfExp
BUILTINS = frozenset(("range", "len", "int", "float", "tuple", "list", "zip", "enumerate", "super", "rngs"))


class Surroundings:
    """A source and the objects that it defines; `hints` is torch's source, or ""."""

    def __init__(self, code: Code, defined: Mapping[str, Any], hints: str = "", settings: tuple = ()):
        self.code, self.defined = code, defined
        self.hints = frozenset(re.findall(r"[A-Za-z_]\w*", hints))
        numbers = {ast.unparse(node) for node in ast.walk(code.tree) if is_number(node)}
        torchs = set(re.findall(r"(?<![\w.])\d+(?:\.\d+)?(?:e-?\d+)?", hints))
        torchs |= {f"{x:.12g}" for x in settings if isinstance(x, int | float) and not isinstance(x, bool)}
        self.torchs_numbers = sorted(torchs - numbers)
        self.numbers = sorted(numbers)

    @cached_property
    def modules(self) -> frozenset[str]:
        """The names of imported modules."""
        imports = (node for node in ast.walk(self.code.tree) if isinstance(node, ast.Import | ast.ImportFrom))
        aliases = (alias for node in imports for alias in node.names)
        return frozenset(alias.asname or alias.name.partition(".")[0] for alias in aliases)

    @cached_property
    def attributes(self) -> dict[ast.ClassDef, list[str]]:
        """The attributes of self that each class binds, those first that its code does not read."""
        names = {}
        for owner in (node for node in ast.walk(self.code.tree) if isinstance(node, ast.ClassDef)):
            of_self = [node for node in ast.walk(owner) if is_of_self(node)]
            bound = [node.attr for node in of_self if isinstance(node.ctx, ast.Store)]
            read = {node.attr for node in of_self if isinstance(node.ctx, ast.Load)}
            names[owner] = sorted(dict.fromkeys(bound), key=lambda name: name in read)
        return names

    @cached_property
    def read(self) -> frozenset[str]:
        """The attributes of self that the source reads."""
        of_self = (node for node in ast.walk(self.code.tree) if is_of_self(node))
        return frozenset(node.attr for node in of_self if isinstance(node.ctx, ast.Load))

    def attributes_at(self, node: ast.AST) -> list[str]:
        """Return the attributes of self in reach of a node, but not where they are bound."""
        function, owner = self.owner(node, ast.FunctionDef), self.owner(node, ast.ClassDef)
        if isinstance(function, ast.FunctionDef) and function.name == "__init__":
            return []
        return self.attributes.get(owner, []) if isinstance(owner, ast.ClassDef) else []

    def class_of(self, node: ast.AST, name: str) -> Any:
        """Return the class of the object that an attribute of self is bound to around a node, or None."""
        owner = self.owner(node, ast.ClassDef)
        for assigned in ast.walk(owner) if owner is not None else ():
            if not isinstance(assigned, ast.Assign):
                continue
            targets, values = ([*getattr(x, "elts", [x])] for x in (assigned.targets[0], assigned.value))
            for target, value in zip(targets, values, strict=False):
                if is_of_self(target) and target.attr == name and isinstance(value, ast.Call):
                    bound = self.object(value.func)
                    return bound if isinstance(bound, type) else None
        return None

    def owner(self, node: ast.AST | None, kind: type[ast.AST]) -> ast.AST | None:
        while node is not None and not isinstance(node, kind):
            node = self.code.parents.get(node)
        return node

    def names_at(self, node: ast.AST) -> list[str]:
        """Return the local names that hold a value at a node, the latest first."""
        return [name for name in self.code.names_at(node) if name not in BUILTINS and name != "self"]

    def object(self, node: ast.expr) -> Any:
        """Return what a dotted name is bound to in the module's globals, or None."""
        try:
            return eval(ast.unparse(node), dict(self.defined)) if is_dotted(node) else None
        except Exception:
            return None

    def module_with(self, *names: str) -> str:
        """Return the imported prefix under which a function is, such as `jax.nn.`; "" if none has it."""
        prefixes = {"jnp": "jnp.", "jax": "jax.nn.", "nnx": "nnx.", "np": "np."}
        for alias, prefix in prefixes.items():
            owner = self.object(ast.parse(prefix.rstrip("."), mode="eval").body)
            if alias in self.modules and all(hasattr(owner, name) for name in names):
                return prefix
        return ""

    def is_value(self, node: ast.AST) -> bool:
        """Whether a node is an expression of arrays or numbers, which may get more calls or terms."""
        parent = self.code.parents.get(node)
        if isinstance(node, ast.Name):
            if node.id in self.modules | BUILTINS | {"self"} or not isinstance(node.ctx, ast.Load):
                return False
            if callable(self.defined.get(node.id)):
                return False
        elif isinstance(node, ast.Attribute):
            if not isinstance(node.ctx, ast.Load) or ast.unparse(node).partition(".")[0] in self.modules:
                return False
        elif not isinstance(node, VALUES):
            return False
        if isinstance(node, ast.Subscript) and not isinstance(node.ctx, ast.Load):
            return False
        if isinstance(node, ast.Call) and last_name(node.func) in ("super", "__init__", "Rngs"):
            return False
        return not (isinstance(parent, ast.Call) and parent.func is node) and not isinstance(
            parent, ast.Expr | ast.arg | ast.ClassDef
        )


def is_number(node: Any) -> TypeGuard[ast.Constant]:
    is_constant = isinstance(node, ast.Constant) and isinstance(node.value, int | float)
    return is_constant and not isinstance(node.value, bool)


def is_of_self(node: Any) -> TypeGuard[ast.Attribute]:
    return isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self"


def is_dotted(node: Any) -> bool:
    owner: Any = node
    while isinstance(owner, ast.Attribute):
        owner = owner.value
    return isinstance(owner, ast.Name)


def is_method(call: ast.Call, modules: frozenset[str]) -> bool:
    """Whether a call is of a value's method, such as x.mean(): neither a module's function nor a layer."""
    function = call.func
    if not isinstance(function, ast.Attribute) or is_of_self(function):
        return False
    return ast.unparse(function).partition(".")[0] not in modules | {"self", "super()"}


def exchanges(code: Code, nodes: Sequence[ast.expr]) -> Iterator[Texts]:
    """Exchange two of some expressions, neighbours first."""
    pairs = sorted(itertools.combinations(range(len(nodes)), 2), key=lambda pair: pair[1] - pair[0])
    for i, j in pairs:
        if code.text(nodes[i]) != code.text(nodes[j]):
            yield {nodes[i]: code.text(nodes[j]), nodes[j]: code.text(nodes[i])}
