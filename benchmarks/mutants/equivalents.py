"""Drawn mutants that survive, and why: no test can see them, or none needs to."""

EQUIVALENTS: dict[tuple[str, str, str], str] = {}
"""By file, lines and what becomes of them: why it is the same."""
