"""`jaxpar demo`: train a small CNN with `jaxpar.train_step`, and compare the same training with PyTorch's.

`models` has the CNN in both frameworks, `run` trains and compares, `report` prints. The comparison is
`parity.compare`, which takes the same steps on copies of both models, from the same weights.
"""
