"""torch modules that others wrote, put to `jaxpar.parity.port`. `run.py` says how."""
