"""Render a comparison as text for a terminal, JSON, JUnit XML, or one HTML file.

Each file draws a `ComparisonData`; none of them measures or judges. `phrases` holds the sentences that all of
them share.
"""
