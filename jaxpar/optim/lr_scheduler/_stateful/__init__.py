"""torch's schedulers as objects that write into an optimizer's rate when they are stepped.

Their arithmetic is torch's, number by number in Python's floats, so that rates are equal to the last bit.
Attributes have torch's names, so a `state_dict` goes from one to the other.
"""
