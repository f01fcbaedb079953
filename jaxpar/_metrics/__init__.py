"""MetricsLog: the numbers of a training, in files that outlive the process."""

from .log import MetricsLog as MetricsLog
