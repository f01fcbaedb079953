"""Rendering a comparison: text for a terminal, JSON, JUnit's XML, one HTML file.

Each file has one function that takes a `Comparison`; none of them measures or judges.
"""
