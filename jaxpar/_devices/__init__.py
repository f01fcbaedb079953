"""Counterparts of torch.cuda: the devices, the current one, and moves of arrays and modules between them."""
