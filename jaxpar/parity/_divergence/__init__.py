"""The first divergence: which layer differs although it is given the reference's inputs, and why.

    torch_trace ──► inputs and outputs of every layer, the functions called ──┐
                                                                              ├─► find ─► Divergence
    flax_replay ──► each layer of Flax on these inputs ───────────────────────┤
    search ───────► torch with one call changed (catalogue), until it is Flax ┘

`forward` finds the place in the forward pass, `weights` and `optimizers` elsewhere; `catalogue` knows what
may be wrong, and `search` tries it. Everything is done in float64, where a layer is either the same or not.
"""
