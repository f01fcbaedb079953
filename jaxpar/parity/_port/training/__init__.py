"""Training: a torch optimizer and its scheduler become lines of `jaxpar.optim`.

`lines` is the entry. `optimizer` and `scheduler` write their lines, `functions` writes the user's functions
that a scheduler calls, and `dims` the argument that gives optimizers of matrices torch's axes. `steps` is the
proof: it executes the lines and compares them with torch's objects.
"""
