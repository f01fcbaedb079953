"""Mistakes in torch.cuda's verbs."""

# fmt: off
from ..plant import plants

PLANTS = [
    *plants("jaxpar/_devices/context.py",
        ('self._previous = None if self.mesh is None else enter_context(None)', 'self._previous = None', "tests/test_context_mesh.py -k function"),
        ('    restore_context(self._previous)\n        if error', '    if error', "tests/test_context_mesh.py -k lies"),
        ('or (source.spec[axis] if axis < len(source.spec) else None)', 'or None', "tests/test_context_mesh.py -k lies"),
        ('return isinstance(mesh, Mesh) and array.committed and not placed', 'return False', "tests/test_context_mesh.py -k lies"),
        ('mesh is None and (typed or not is_real(array))', 'mesh is None and not typed and not is_real(array)', "tests/test_context_mesh.py -k placed_arrays"),
        ('refuse_own_mesh(scope.left, [x], to, "DataParallel")', 'pass', "tests/test_context_mesh.py -k wrapped_outside_trains"),
        ('return None if self._previous is None else self.mesh', 'return self.mesh', "tests/test_context_mesh.py -k placed_arrays"),
        ('or _is_remote(mesh) or settled)', 'or _is_remote(mesh))', "tests/test_context_mesh.py -k placed_arrays"),
    ),
    *plants("jaxpar/_devices/devices.py",
        ('return len(available) if len(available) > 1 or available[0].platform != "cpu" else 0', 'return len(available)', "tests/test_devices.py -k one_cpu"),
        ('if isinstance(spec, int) and not isinstance(spec, bool)', 'if isinstance(spec, int)', "tests/test_devices.py -k no_such"),
        ('return _current() or devices()[0]', 'return devices()[0]', "tests/test_current.py"),
    ),
    *plants("jaxpar/_devices/move.py",
        ('return home == {target} and leaf.committed', 'return home == {target}', "tests/test_move.py -k \"array or tree\""),
        ('placements.sort(key=lambda entry: entry[0])', 'placements.sort(key=lambda entry: not entry[0])', "tests/test_move.py -k two_devices"),
        ('if stay_spread and len(home) > 1 and target in home', 'if stay_spread and len(home) > 1', "tests/test_move.py -k wrapper"),
        ('return dtype if jnp.issubdtype(leaf.dtype, jnp.floating) else None', 'return dtype', "tests/test_move.py -k \"tree or dtype\""),
        ('table.dtype = table.embedding.dtype', 'pass', "tests/test_move.py -k embeddings"),
        ('return dtype if jnp.issubdtype(dtype, jnp.complexfloating) else None', 'return dtype', "tests/test_move.py -k \"dtype or tree\""),
    ),
    *plants("jaxpar/_devices/visible.py",
        ('entry.strip().startswith("-")', 'entry.startswith("-")', "tests/test_visible.py -k allows"),
        ('if change and change != _memory.warned', 'if change', "tests/test_visible.py -k once"),
        ('value is not None and gpus > _allowed(value)', 'value is not None and gpus >= _allowed(value)', "tests/test_visible.py -k something_else"),
    ),
    *plants("jaxpar/_upstream/start.py",
        ('if module not in _LIBRARIES and', 'if', "tests/test_virtual.py -m slow -k \"line_that and library\""),
    ),
]
