"""MetricsLog writes a run's numbers to files; progress displays how far a loop is."""

from .log import MetricsLog as MetricsLog
