"""Translating: torch's words become JAX's, where they stand.

Each class adds one kind of words to the one before it: `words` ─► `deciding` ─► `libraries` ─► `calls` ─►
`pairs` ─► `stopping` ─► `assignments` ─► `branches` ─► `initial` ─► `statements`; `definitions` are classes
and functions made of them. `precedence` says where an operation needs parentheses, `drawing` who draws
random numbers.
"""
