"""Mistakes in distributions."""

# fmt: off
from ..plant import plants

PLANTS = [
    *plants("jaxpar/distributions/_discrete.py",
        ('x / x.sum(-1, keepdims=True)', 'x / x.sum()', "tests/test_distributions.py -k \"numbers and categorical\""),
        ('mode="fill")', 'mode="clip")', "tests/test_distributions.py -k nothing_is_checked"),
        ('jnp.where(index >= 0, scores, jnp.nan)', 'scores', "tests/test_distributions.py -k nothing_is_checked"),
        ('(probs >= eps) & (probs <= 1 - eps)', '(probs > eps) & (probs < 1 - eps)', "tests/test_distributions.py -k \"numbers and bernoulli\""),
        ('(jax.nn.sigmoid(logits) - value) * d_logits', '(1 - value - jax.nn.sigmoid(-logits)) * d_logits', "tests/test_distributions.py -k \"numbers and bernoulli\""),
        ('jnp.where(logits >= least, logits, least)', 'logits', "tests/test_distributions.py -k \"numbers and categorical\""),
        ('probs == 0.5, jnp.nan, probs >= 0.5', 'probs >= 0.5, 1.0, 0.0', "tests/test_distributions.py -k \"numbers and bernoulli\""),
        ('multinomial(rows, n, True, generator=generator).T.reshape(shape)', 'multinomial(rows, n, True, generator=generator).reshape(shape)', "tests/test_distributions.py -k draws_are_torchs"),
        ('abs(p.sum(-1) - 1) < 1e-6', 'abs(p.sum(-1) - 1) < 1e6', "tests/test_distributions.py -k refused"),
    ),
    *plants("jaxpar/distributions/_distribution.py",
        ('        dtype = jnp.result_type(float)\n', '        pass\n', "tests/test_distributions.py -k floating_point"),
        ('is_staged() or has_tracers(value) or bool', 'is_staged() or bool', "tests/test_distributions.py -k vmap"),
        ('if is_staged() or has_tracers(jax.lax.stop_gradient(self))', 'if has_tracers(jax.lax.stop_gradient(self))', "tests/test_distributions.py -k refused_here"),
        ('fixed, shape = jax.lax.stop_gradient(self),', 'fixed, shape = self,', "tests/test_distributions.py -k reparameterised"),
        ('dict(zip(aux[0], children, strict=True)), aux[1]', 'dict(zip(aux[0], children, strict=True)), True', "tests/test_distributions.py -k nothing_is_checked"),
        ('if 1 not in (i, j) and i != j', 'if i != j', "tests/test_distributions.py"),
        ('jnp.result_type(*arrays) if arrays', 'jnp.result_type(float, *arrays) if arrays', "tests/test_distributions.py -k python_numbers", 0, "float is weak: it takes the dtype of the arrays"),
    ),
    *plants("jaxpar/distributions/_kl.py",
        ('jnp.where(x > 20, x,', 'jnp.where(x > 30, x,', "tests/test_distributions.py -k \"numbers and bernoulli\""),
        ('jnp.where(p == 0, 0, jnp.where(q == 0, jnp.inf, term))', 'jnp.where(q == 0, jnp.inf, jnp.where(p == 0, 0, term))', "tests/test_distributions.py -k \"numbers and bernoulli\""),
        ('((p.loc - q.loc) / q.scale) ** 2', '((p.loc - q.loc) / p.scale) ** 2', "tests/test_distributions.py -k \"numbers and normal\""),
    ),
    *plants("jaxpar/distributions/_normal.py",
        ('math.log(math.sqrt(2 * math.pi))', 'math.log(2 * math.pi)', "tests/test_distributions.py -k \"numbers and normal\""),
        ('generator.randn(*shape, dtype=self.loc.dtype) * np.asarray(self.scale)', 'generator.randn(*shape) * np.asarray(self.scale)', "tests/test_distributions.py -k draws_are_torchs"),
    ),
]
