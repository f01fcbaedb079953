"""Images with their channels last: how a port is rewritten for [N, H, W, C].

`flow` records the images of each expression, `axes` derives which of them share one order of axes, and `plan`
decides the order of each group and lists the replacements in the source: `dim=1` becomes `axis=-1`.
"""
