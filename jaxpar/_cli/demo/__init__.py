"""`jaxpar demo`: `parity.compare` and `train_step` on a small CNN, from the same weights."""
