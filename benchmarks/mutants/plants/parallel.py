"""Mistakes in scatter, replicate, parallel_apply, gather and the program they run."""

# fmt: off
from ..plant import plants

PLANTS = [
    *plants("jaxpar/_parallel/scatter.py",
        ('c = -(-B // N)', 'c = B // N + 1', "tests/test_scatter.py::test_sizes_equal_torch_for_every_batch_up_to_100"),
        ('return (0,) * N', 'return (0,)', "tests/test_scatter.py -k chunk"),
        ('(0,) * (placement.N if leaves else 1)', '(0,) * placement.N', "tests/test_scatter.py"),
        ('padding[axis] = (0, missing)', 'padding[axis] = (missing, 0)', "tests/test_scatter.py"),
        ('jnp.repeat(jax.lax.slice_in_dim(x, 0, 1, axis=axis), missing, axis)], axis)', 'jnp.repeat(jax.lax.slice_in_dim(x, 0, 1, axis=0), missing, 0)], 0)', "tests/test_scatter.py"),
        ('return stack[index].copy() if shared else stack[index]', 'return stack[index]', "tests/test_scatter.py tests/test_train_step.py -k \"written or changed or memory\""),
        ('if count != counts[0]', 'if count < counts[0]', "tests/test_scatter.py -k rows"),
    ),
    *plants("jaxpar/_parallel/gather.py",
        ('if any(shape != stack.shape[1:] for shape in shapes[:-1])', 'if any(shape != stack.shape[1:] for shape in shapes[:1])', "tests/test_gather.py tests/test_data_parallel.py"),
        ('if x.dtype != pieces[0].dtype', 'if x.dtype.kind != pieces[0].dtype.kind', "tests/test_gather.py -k dtypes"),
        ('return stack[: len(shapes)]', 'return stack', "tests/test_gather.py"),
        ('expected = (*first[:axis], shape[axis], *first[axis + 1 :])', 'expected = (*first[:axis], shape[axis], *shape[axis + 1 :])', "tests/test_gather.py -k shapes"),
        ('if len(shape) != len(first)', 'if len(shape) > len(first)', "tests/test_gather.py"),
    ),
    *plants("jaxpar/_parallel/reduce.py",
        ('jnp.where(index == source, term, jnp.zeros_like(term)) for term', 'term * (index == source).astype(term.dtype) for term', "tests/test_data_parallel.py tests/test_rules.py"),
        ('jnp.stack([bits >> 16, bits & 0xFFFF])', 'jnp.stack([bits >> 15, bits & 0x7FFF])', "tests/test_rules.py tests/test_data_parallel.py"),
        ('return ((high << 16) | low)', 'return ((high << 15) | low)', "tests/test_rules.py tests/test_data_parallel.py"),
        ('return x.astype(jnp.int32) if x.dtype == jnp.bool_ else x', 'return x', "tests/test_rules.py tests/test_data_parallel.py"),
    ),
    *plants("jaxpar/_parallel/replicate.py",
        ('return dataclasses.replace(self, k=len(kept))', 'return dataclasses.replace(self, k=kept.stop + 1)', "tests/test_verbs.py tests/test_rules.py -k replica"),
        ('self.placement.devices[i % self.k]', 'self.placement.devices[i]', "tests/test_verbs.py tests/test_rules.py -k replica"),
        ('jax.lax.stop_gradient(values) if self.detach else values', 'values', "tests/test_verbs.py tests/test_rules.py"),
    ),
]
