"""Training: a torch optimizer and its scheduler become lines of `jaxpar.optim`.

`lines` joins the others: `optimizer` and `scheduler` write, `functions` are those that a scheduler calls,
`dims` says which axes of a leaf an optimizer of matrices means. `steps` is the proof: the lines, executed,
against torch's objects.
"""
