"""Rendering a comparison: text for a terminal, JSON, JUnit's XML, one HTML file.

Each file draws a `Result`; none of them measures or judges. `phrases` holds the words that all of them share.
"""
