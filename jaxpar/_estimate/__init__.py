"""estimate: what a training step needs on each device, and how it would scale, before anything runs.

`step` makes shapes of a module, an optimizer and a batch, `count` compiles them and counts,
`hardware` holds the rates, `scaling` is the model, `report` the result; `table` and `chart` show it.
"""
