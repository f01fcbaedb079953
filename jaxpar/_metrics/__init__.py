"""What a loop shows of itself: MetricsLog writes the numbers of a training, progress shows how far it is.

Neither makes a step wait for the device. torch's counterparts are SummaryWriter and, in most scripts, tqdm.
"""

from .log import MetricsLog as MetricsLog
