"""The private and experimental names that jaxpar touches: all in one file, all there, all as relied on.

Run it first after raising a version.
"""

from __future__ import annotations

import ast
import importlib
import os
import subprocess
import sys
import threading
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from processes import ranks

from jaxpar import _upstream as upstream

ROOT = Path(__file__).resolve().parents[1]
REGISTER = ROOT / "jaxpar" / "_upstream"
FOREIGN = ("jax", "jaxlib", "flax", "optax", "orbax", "torch", "threading", "tensorstore")
UNPROMISED = ("jax.extend", "jax.interpreters", "jax.experimental", "flax.nnx.nn", "torch.nn.parallel")
MEMBERS = {"_raw_value", "unsafe_buffer_pointer", "_register_atexit", "_open_and_write"}


def private_names(source: str) -> set[str]:
    """The names of other libraries in a file that begin with `_`, or that nobody promises to keep."""
    found, roots = set(), {}
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                found |= _judged(alias.name)
                roots[alias.asname or alias.name.split(".")[0]] = alias.name.split(".")[0]
        elif isinstance(node, ast.ImportFrom) and not node.level:
            for alias in node.names:
                found |= _judged(f"{node.module}.{alias.name}")
                roots[alias.asname or alias.name] = f"{node.module}.{alias.name}"
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute):
            found |= {node.attr} & MEMBERS
            words, inner = [node.attr], node.value
            while isinstance(inner, ast.Attribute):
                words, inner = [inner.attr, *words], inner.value
            if isinstance(inner, ast.Name) and inner.id in roots:
                found |= _judged(".".join([roots[inner.id], *words]))
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            found |= {node.name} & MEMBERS
        elif isinstance(node, ast.Constant) and node.value in MEMBERS:
            found.add(node.value)
    return found


def _judged(name: str) -> set[str]:
    words = name.split(".")
    private = any(w.startswith("_") and not w.startswith("__") for w in words)
    unpromised = any(name == p or name.startswith(p + ".") for p in UNPROMISED)
    return {name} if words[0] in FOREIGN and (private or unpromised) else set()


def is_elsewhere(name: str) -> bool:
    """Whether the register has the name, or a member of its."""
    return any(full == name or full.startswith(name + ".") or full.endswith("." + name) for full in known())


def known() -> list[str]:
    return list(upstream.ELSEWHERE)


FILES = sorted(
    path
    for top in ("jaxpar", "torch_ref")
    for path in (ROOT / top).rglob("*.py")
    if REGISTER not in path.parents
)


@pytest.mark.full
def test_no_other_file_has_one():
    apart = {str(f.relative_to(ROOT)): private_names(f.read_text()) for f in FILES}
    unknown = {f: sorted(n for n in names if not is_elsewhere(n)) for f, names in apart.items()}
    assert not {f: names for f, names in unknown.items() if names}


@pytest.mark.parametrize(
    "source",
    [
        "from jax._src import core",
        "import jax\njax._src.core",
        "import jax.extend",
        "from flax import nnx\nnnx._something",
        "x.unsafe_buffer_pointer()",
        "object.__setattr__(leaf, '_raw_value', 1)",
        "import torch\ntorch._C._broadcast",
        "def f():\n    from jax.experimental import multihost_utils",
    ],
)
def test_a_planted_private_name_is_found(source):
    assert [name for name in private_names(source) if not is_elsewhere(name)]


def test_public_names_are_not_found():
    assert not private_names("import jax\nfrom flax import nnx\njax.jit, nnx.Variable, jax.__version__")


# ----------------------------------------------------------------------- each is there, and does it


@pytest.mark.parametrize("name", [n for n in known() if not n.startswith("torch")])
def test_what_other_files_subclass_is_there(name):
    resolve(name)


@pytest.mark.parametrize("name", [n for n in known() if n.startswith("torch")])
def test_what_torch_ref_replaces_is_there(name):
    torch = pytest.importorskip("torch")
    if name.startswith("torch._C") and not torch.backends.cuda.is_built():
        with pytest.raises(AttributeError):  # which is why they are replaced
            resolve(name)
    else:
        resolve(name)


def test_each_has_a_reason():
    assert all(len(why) > 20 for why in upstream.ELSEWHERE.values())


def resolve(name: str) -> object:
    words = name.split(".")
    for cut in range(len(words), 0, -1):
        try:
            found = importlib.import_module(".".join(words[:cut]))
        except ImportError:
            continue
        for word in words[cut:]:
            found = getattr(found, word)
        return found
    raise ImportError(name)


def calls(x):
    @jax.custom_jvp
    def doubled(x):
        return 2 * x

    doubled.defjvps(lambda t, out, x: 2 * t)
    return jax.jit(jnp.sin)(x) + jax.checkpoint(jnp.cos)(x) + doubled(x)


def test_programs_open_and_close():
    table = np.arange(3.0)
    program = jax.make_jaxpr(lambda x: calls(x) + jnp.asarray(table))(jnp.ones(3))
    jaxpr, consts = upstream.opened(program)
    assert isinstance(program, upstream.PROGRAMS)
    assert len(jaxpr.constvars) == len(consts)
    assert upstream.opened(jaxpr)[0] is jaxpr
    assert sum(upstream.called(e) is not None for e in jaxpr.eqns) == 3
    assert sum(map(upstream.has_own_jvp, jaxpr.eqns)) == 1


def next_transformations(x):
    g = jax.custom_vjp(lambda x: 2 * x)
    g.defvjp(lambda x: (2 * x, None), lambda _, t: (2 * t,))
    return calls(x) + g(x)


@pytest.mark.slow
def test_the_programs_inside_of_equations():
    """Also those of JAX's next transformations, which a process of their own switches on."""
    source = """
        import jax, jax.numpy as jnp, sys
        sys.path.insert(0, "tests")
        for flag in ("jax_remat3", "jax_custom_jvp3", "jax_custom_vjp3"):
            if hasattr(jax.config, flag):
                jax.config.update(flag, True)
        import test_upstream as t
        eqns = t.upstream.opened(jax.make_jaxpr(t.next_transformations)(jnp.ones(3)))[0].eqns
        held = [e for e in eqns if any(t.upstream.inside(v) is not None for v in e.params.values())]
        print(len(held))
    """
    (ended,) = ranks(1, source)
    assert (ended.code, ended.out.strip()) == (0, "4"), ended.err


def test_an_equation_alone_and_a_program_rewritten():
    program = jax.make_jaxpr(lambda x: jnp.sin(x) + 1.0)(0.5)
    jaxpr, _ = upstream.opened(program)
    sine = jaxpr.eqns[0]
    alone = upstream.part(jaxpr, [sine], sine.invars, sine.outvars)
    assert upstream.jaxpr_as_fun(alone)(0.5) == [jnp.sin(0.5)]
    for form in (program, jaxpr):
        cosine = jax.make_jaxpr(jnp.cos)(0.5).eqns[0]
        changed = upstream.rewritten(
            form, eqns=[sine.replace(primitive=cosine.primitive, params=cosine.params), *jaxpr.eqns[1:]]
        )
        assert [e.primitive.name for e in upstream.opened(changed)[0].eqns] == ["cos", "add"]
    assert not isinstance(sine.invars[0], upstream.Literal)
    assert isinstance(jaxpr.eqns[1].invars[1], upstream.Literal)


def test_the_state_of_the_trace():
    eager = upstream.get_opaque_trace_state(convention="nnx")
    staged = []
    jax.jit(lambda: staged.append(upstream.get_opaque_trace_state(convention="nnx")))()
    assert eager == upstream.get_opaque_trace_state(convention="nnx")
    assert staged[0] != eager


def test_the_array_below_a_tracer():
    x, below = jnp.ones((2, 3)), []

    def f(x):
        below.append(upstream.concrete(x))
        return x.sum()

    jax.vmap(f)(x)
    jax.grad(f)(x)
    jax.vmap(jax.grad(f))(x)
    jax.grad(lambda x: jax.vmap(f)(x).sum())(x)
    jax.jvp(f, (x,), (x,))
    assert [array is x for array in below] == [True] * 5
    jax.jit(f)(x)
    jax.jit(jax.vmap(jax.grad(f)))(x)
    assert below[5:] == [None, None]
    assert upstream.concrete(2.5) == 2.5


def test_the_run_time():
    jax.devices()
    assert upstream.backends_are_initialized()
    assert upstream.coordination_client() is None
    assert upstream.in_cloud_tpu_vm() is False
    assert upstream.kubernetes_job() is None  # test_rendezvous_secret.py has one
    assert callable(upstream.clusters.K8sCluster._job)
    assert upstream.detect_cluster(1) == (None, None, None, None)
    assert upstream.reached_preemption_sync_point(0) is False


@pytest.mark.slow
def test_nothing_of_it_starts_jax():
    source = (
        "from jaxpar import _upstream as u; assert not u.backends_are_initialized(); "
        "import sys; assert 'flax' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", source], check=True, env=os.environ | {"PYTHONPATH": str(ROOT)})


def test_what_is_differentiated():
    seen = []
    f = lambda x: (seen.append(upstream.is_differentiated(x)), x.sum())[1]  # noqa: E731
    jax.grad(f)(jnp.ones(3))
    jax.jit(jax.grad(f))(jnp.ones(3))
    jax.jvp(f, (jnp.ones(3),), (jnp.ones(3),))
    jax.jit(f)(jnp.ones(3))
    assert seen == [True, True, True, False]


def test_what_vmap_maps_over():
    seen = []
    jax.vmap(lambda x, y: seen.append((upstream.is_mapped(x), upstream.is_mapped(y))), (0, None))(
        jnp.ones(3), jnp.ones(3)
    )
    jax.jit(lambda x: seen.append(upstream.is_mapped(x)))(jnp.ones(3))
    assert seen == [(True, False), False]


def test_options_of_all_programs_in_a_context():
    x = jnp.arange(41.0)
    with upstream.compiling_with({"xla_of_no_release": 1}):
        with pytest.raises(jax.errors.JaxRuntimeError, match="xla_of_no_release"):
            x * x
        with upstream.compiling_with({}), pytest.raises(jax.errors.JaxRuntimeError, match="of_no_release"):
            jax.jit(jnp.sin)(x)
    assert (x * x).shape == x.shape


def test_addresses():
    x = jnp.arange(4.0)
    same = jax.device_put(x, x.device)
    assert upstream.address(x) == upstream.address(same)
    assert upstream.address(x) != upstream.address(x + 1)


def test_a_variable_set_past_the_trace():
    variable = nnx.Param(jnp.zeros(2))
    upstream.set_past_trace(variable, 7)
    assert variable.get_raw_value() == 7


def test_promotion():
    x, y = upstream.promote_dtype((jnp.ones(2, jnp.float32), jnp.ones(2, jnp.bfloat16)), None)
    assert x.dtype == y.dtype == jnp.float32
    assert upstream.promote_dtype((x, y), jnp.bfloat16)[0].dtype == jnp.bfloat16


@pytest.mark.slow
def test_a_pool_still_works_at_exit():
    source = (
        "from concurrent.futures import ThreadPoolExecutor as P\n"
        "from jaxpar._upstream import before_thread_pools_close as at_exit\n"
        "pool = P(1); pool.submit(int).result()\n"
        "at_exit(lambda: print(pool.submit(lambda: 'worked').result(), flush=True))"
    )
    run = subprocess.run(
        [sys.executable, "-c", source],
        check=True,
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )
    assert run.stdout == "worked\n"
    assert threading.current_thread() is threading.main_thread()
