"""Rendering a comparison: text for a terminal, JSON, JUnit's XML, one HTML file.

Each file draws a `Result`, and none of them measures or judges. `phrases` has what all of them say alike.
"""
