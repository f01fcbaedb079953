"""Outputs and decorators."""
