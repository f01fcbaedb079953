"""Images with their channels last: how a port is rewritten for [N, H, W, C].

`flow` records which tensors with four axes each expression of the example evaluates to. `axes` derives, from
the operations on them, which tensors share one order of axes. `plan` decides the order of each group and
lists the replacements in the source: `dim=1` becomes `axis=-1`. Operations that depend on torch's order, such
as `flatten`, get a transposed image.
"""
