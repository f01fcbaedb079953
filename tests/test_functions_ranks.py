"""Functions and Equinox modules in two processes: join with unequal batches, and one rank's parameters."""

from __future__ import annotations

from pathlib import Path

import pytest
from processes import ROOT, outputs, ranks

TESTS = Path(__file__).resolve().parent

SCRIPT = """
    import jax
    import jax.numpy as jnp
    import numpy as np
    import optax
    import test_functions as cases

    import jaxpar

    jaxpar.distributed.init_process_group()
    rank = jaxpar.distributed.get_rank()
    every = np.concatenate  # the rows of both ranks, one replica each


    def by_hand(case, batches, params, buffers):
        # One replica in each process: its own key, its own rows, the mean of both losses.
        trained, parts = cases.trained_of(params)
        opt_state = cases.TX.init(trained)
        for key, x, y in batches:
            def loss(trained):
                made = [
                    case.by_hand(
                        cases.eqx.combine(trained, parts), buffers, jax.random.fold_in(key, r), x[r]
                    )
                    for r in range(2)
                ]
                return sum(cases.mse(made[r][0], y[r]) for r in range(2)) / 2, made[0][1]

            gradients, buffers = jax.grad(loss, has_aux=True)(trained)
            updates, opt_state = cases.TX.update(gradients, opt_state, trained)
            trained = optax.apply_updates(trained, updates)
        return cases.eqx.combine(trained, parts), buffers


    x, y = cases.X[:, :6].reshape(4, 2, 3, 4, 4, 1), cases.Y[:, :6].reshape(4, 2, 3, 1)
    keys = [jax.random.key(i) for i in range(4)]
    for name in ("function", "Equinox dropout", "Haiku state"):
        case = cases.CASES[name]
        net, state, params, buffers = cases.start(case)
        step = jaxpar.train_step(jaxpar.DistributedDataParallel(net), state, case.loss_fn)
        for i in range(4):
            step(keys[i], x[i, rank], y[i, rank])
        expected, after = by_hand(case, list(zip(keys, x, y)), params, buffers)
        cases.close(step.state.params, expected)
        jaxpar.check_replicas(step.state)
        if after is not None:
            cases.close(step.state.buffers, after)
        print(name, "as by hand")

    # Rank 1 has other parameters, which rank 0's replace, and one batch less.
    params = {"w": jnp.full((3, 1), 1.0 + rank)}
    ddp = jaxpar.DistributedDataParallel(lambda p, x: x @ p["w"])
    step = jaxpar.train_step(ddp, (params, optax.sgd(0.5)), lambda net, x: net(x).mean())
    x = np.ones((2, 4, 3)) * (1 + rank)
    with ddp.join():
        for rows in x[: 2 - rank]:
            step(rows)
    # Both: (1 + 2) / 2; then rank 0 alone: 1 / 2.
    cases.close(step.state.params, {"w": jnp.full((3, 1), 1 - 0.5 * 1.5 - 0.5 * 0.5)})
    jaxpar.check_replicas(step.state)
    try:
        ddp.value_and_grad(lambda net, x: net(x).mean())({"w": jnp.full((3, 1), 1.0 + rank)}, x[0])
    except jaxpar.errors.DivergenceError as error:
        print(type(error).__name__)
    jaxpar.distributed.destroy_process_group()
"""


@pytest.mark.slow
def test_two_processes():
    path = {"PYTHONPATH": f"{ROOT}:{TESTS}"}
    printed = outputs(ranks(2, SCRIPT, env=path, timeout=280))
    lines = ["function as by hand", "Equinox dropout as by hand", "Haiku state as by hand", "DivergenceError"]
    ours = [[line for line in text.splitlines() if "[Gloo]" not in line] for text in printed]
    assert ours == [lines, lines]
