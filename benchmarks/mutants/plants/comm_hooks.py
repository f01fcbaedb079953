"""Mistakes in how gradients are reduced."""

# fmt: off
from ..plant import plants

PLANTS = [
    *plants("jaxpar/comm_hooks/_default_hooks.py",
        ('[g * jnp.asarray(1 / bucket.replicas, g.dtype) for g in bucket.gradients]', 'bucket.gradients', "tests/test_value_and_grad.py"),
        ('[g / bucket.replicas for g in bucket.gradients]', '[g * (1 / bucket.replicas) for g in bucket.gradients]', "tests/test_comm_hooks.py", 0, "XLA itself makes a product with 1/W of a division by a number; tests/test_comm_hooks.py pins that"),
    ),
    *plants("jaxpar/comm_hooks/_default_hooks.py",
        ('fp16_compress = fp16_compress_wrapper(allreduce)', 'fp16_compress = bf16_compress_wrapper(allreduce)', "tests/test_comm_hooks.py"),
        ('r.astype(g.dtype) for r, g', 'r for r, g', "tests/test_comm_hooks.py"),
    ),
    *plants("jaxpar/comm_hooks/_powersgd.py",
        ('size=int(number) + 1', 'size=int(number) + 2', "tests/test_comm_hooks.py -k draws_torchs"),
        ('shapes, state.calls - settings.start', 'shapes, state.calls', "tests/test_comm_hooks.py -k draws_torchs"),
        ('state.calls < settings.start, early', 'state.calls <= settings.start, early', "tests/test_comm_hooks.py"),
        ('errors = [g - r for g, r', 'errors = [r - g for g, r', "tests/test_comm_hooks.py"),
        ('if (n + m) * r * settings.rate < n * m', 'if (n + m) * r < n * m', "tests/test_comm_hooks.py"),
        ('queries = [q / bucket.replicas for q in sums]', 'queries = list(sums)', "tests/test_comm_hooks.py"),
        ('.transpose(np.argsort(axes))', '.transpose(axes)', "tests/test_comm_hooks.py"),
        ('queries if settings.warm else []', 'state.queries if settings.warm else []', "tests/test_comm_hooks.py"),
        ('if (use_error_feedback or warm_start) and start_powersgd_iter <= 1', 'if (use_error_feedback or warm_start) and start_powersgd_iter < 1', "tests/test_value_and_grad.py -k \"hook or powersgd or wrong or refuse\""),
    ),
    *plants("jaxpar/comm_hooks/hook.py",
        ('ends = np.cumsum([arrays[i].size for i in group])', 'ends = np.cumsum([len(arrays[i].ravel()) + 0 * i for i in group[::-1]])', "tests/test_value_and_grad.py -k small_arrays"),
        ('groups.setdefault(x.dtype if small else i, [])', 'groups.setdefault("all" if small else i, [])', "tests/test_value_and_grad.py -k small_arrays"),
        ('self._summed = summed[len(arrays) :]', 'self._summed = summed[: len(arrays)]', "tests/test_value_and_grad.py"),
    ),
]
