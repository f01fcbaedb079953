"""Images with their channels last: what of a port is written for [N, H, W, C].

The example says which tensors with four axes go where (`flow`). What computes on them says which of them have
the same order of axes (`axes`), and what becomes of that is a text for each place that changes (`plan`):
`dim=1` becomes `axis=-1`. Where torch's order itself matters, as in `flatten`, they are turned back before.
"""
