"""Training: a loss, its gradients and an update on every replica of every process, in one compiled program.

torch runs forward, loss, backward and optimizer one after the other and hooks communication into the
backward. Here they are one program. `engine` has the only loop around it: take the arrays, agree with the
other ranks, run the program, put the arrays back.
"""
