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
}
"""By file, lines and what becomes of them: why it is the same."""
