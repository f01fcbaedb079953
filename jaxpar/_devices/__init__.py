"""torch.cuda's verbs: which devices there are, which one is current, how arrays and modules get there."""
