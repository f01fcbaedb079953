"""`jaxpar invariance`: run a training script in several worlds, and compare what it taps.

`command` has the options and the output, `running` starts the processes of a world, and `child` runs in them:
it makes the devices and float64, and taps every step of `jaxpar.train_step`. `parity.bisect` compares.
"""
