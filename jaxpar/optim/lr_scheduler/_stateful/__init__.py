"""torch's schedulers as objects that write into an optimizer's rate when they are stepped.

Their arithmetic is torch's, number by number in Python's floats and in the same order, so that rates are
torch's to the last bit: most of them are the rate before times a factor, which `schedule(step)` computes at
once. Attributes have torch's names, so a `state_dict` goes from one to the other.
"""
