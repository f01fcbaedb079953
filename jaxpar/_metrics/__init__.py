"""MetricsLog writes a run's numbers to files; progress displays how far a loop is.

Neither makes a step wait for the device. torch's counterparts are SummaryWriter and, in most scripts, tqdm.
"""

from .log import MetricsLog as MetricsLog
