"""Models that others wrote in torch and in Flax, put to jaxpar.parity. `run.py` says how."""
