"""The names by which `jaxpar invariance` speaks to the processes of a world: variables, a folder."""

FOLDER = "JAXPAR_TAPS"
"""The folder of the taps."""

ACCUMULATE = "JAXPAR_ACCUMULATE"
"""How many batches an update accumulates; scripts may read it."""

STEPS = "JAXPAR_TAPPED_STEPS"
"""After so many steps the script ends."""

WITHOUT = "JAXPAR_WITHOUT"
"""What is removed from the training, to see whether the worlds still differ: names of `without`."""

ALONE = "train_step"
"""The folder of the steps that tap themselves; a script's own taps are compared instead if it has some."""
