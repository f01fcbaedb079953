"""Translating: one expression, statement or definition of torch as JAX source.

    definitions ─► functions ─► blocks: statements by type ─► expressions: expressions by type

`@expression(ast.Call)` and `@statement(ast.For)` register the function for a type of node. It takes the
`Context` and the node, and returns a `Fragment`, or a statement's text. Nodes of all other types keep their
own text, with their parts translated.
"""

from . import assignments as assignments
from . import calls as calls
from . import conditions as conditions
from . import functions as functions
from . import indexing as indexing
from . import literals as literals
from . import names as names
from . import statements as statements
