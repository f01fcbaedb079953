"""Training: a loss, its gradients and an update on every replica of every process, in one compiled program.

`engine` has the only loop: take the arrays, agree with the other ranks, run the program, put the arrays back.
"""
