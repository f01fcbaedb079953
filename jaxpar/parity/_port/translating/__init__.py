"""Translating: one expression, statement or definition of torch as JAX source.

Each class translates one kind of syntax and inherits from the one before: `words` ─► `deciding` ─►
`libraries` ─► `calls` ─► `pairs` ─► `stopping` ─► `assignments` ─► `branches` ─► `initial` ─► `statements`;
`definitions` writes classes and functions. `precedence` adds parentheses, `drawing` finds random numbers.
"""
