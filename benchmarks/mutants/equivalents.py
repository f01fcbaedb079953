"""Drawn mutants that survive, and why: no test can see them, or none needs to."""

EQUIVALENTS: dict[tuple[str, str, str], str] = {
    ("jaxpar/parity/_divergence/layer_exchanges.py", "return False", "return None"): (
        "its callers only ask whether it is true"
    ),
    (
        "jaxpar/parity/_runs/envelope.py",
        "allowed = max(NUDGES * spread[part], FEWEST * unit)",
        "allowed = max(FEWEST * unit, NUDGES * spread[part])",
    ): "the larger of two numbers",
    (
        "jaxpar/_cli/main.py",
        "click.echo(json.dumps(table.document(snapshot), indent=2))",
        "click.echo(json.dumps(table.document(snapshot), indent=3))",
    ): "white space of JSON",
    (
        "jaxpar/parity/_runs/world_causes.py",
        "if abs(np.vdot(weights, losses) / weights.sum() - all_loss) <= 1e-9 * abs(all_loss):",
        "if abs(np.vdot(weights, losses) / weights.sum() - all_loss) < 1e-9 * abs(all_loss):",
    ): "a difference of exactly one in 1e9",
    (
        "jaxpar/_training/update.py",
        "pairs = zip(self.calls, nets, nets_of(optimizer), strict=True)",
        "pairs = zip(self.calls, nets, nets_of(optimizer), strict=False)",
    ): "the module, its calls and the optimizer have an entry each for every network",
    (
        "jaxpar/_pytest_plugin.py",
        "virtual_devices(max(needed, jax.config.jax_num_cpu_devices)) # type: ignore[attr-defined]",
        "virtual_devices(max(jax.config.jax_num_cpu_devices, needed)) # type: ignore[attr-defined]",
    ): "the larger of two numbers",
    (
        "jaxpar/parity/_record.py",
        "Calls = tuple[Arguments, Call]",
        "pass",
    ): "a name for annotations, which are not evaluated; mypy refuses a name that is not defined",
    (
        "jaxpar/_tools/launch/worker.py",
        "os.read(pipe, 1)",
        "os.read(pipe, 2)",
    ): "nothing is written into the pipe: the read ends with the supervisor",
    (
        "jaxpar/parity/_divergence/interventions.py",
        "for names in [[name] for name in named] + [group for group in (trained, frozen) if len(group) > 1]:",
        "for names in [[name] for name in named] "
        "+ [group for group in (trained, frozen) if len(group) >= 1]:",
    ): "what one parameter alone does is tried a second time, after it explained nothing",
    (
        "jaxpar/nn/_layer.py",
        "program = next((n for n in PROGRAMS if n >= size), 1 << (size - 1).bit_length())",
        "program = next((n for n in PROGRAMS if n >= size), 1 << (size + 1).bit_length())",
    ): "a shorter draw is the beginning of a longer one, so that only time is lost",
    (
        "jaxpar/parity/_port/as_used.py",
        "if not np.array_equal(np.isfinite(returned), finite) "
        "and np.array_equal(np.isfinite(double), finite):",
        "if not np.array_equal(finite, np.isfinite(returned)) "
        "and np.array_equal(np.isfinite(double), finite):",
    ): "equality is symmetric",
    (
        "jaxpar/parity/_loops/recipe.py",
        "return {name: np.clip(g, -limit, limit) for name, g in gradients.items()}",
        "return {name: np.clip(-limit, g, limit) for name, g in gradients.items()}",
    ): "the larger of -limit and g, and then the smaller of that and limit",
}
"""By file, lines and what becomes of them: why it is the same."""
