from ...channels_first.functional import *  # noqa: F403
