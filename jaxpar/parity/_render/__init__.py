"""Render a comparison as text for a terminal, JSON, JUnit XML, or one HTML file.

Each file draws a `ComparisonData`, and none measures or judges; `phrases` holds the shared sentences.
"""
