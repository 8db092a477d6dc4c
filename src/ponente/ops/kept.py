"""Names by which policies of rematerialisation (models/stack.py) know what they may keep for the backward pass."""

PRODUCT = "product"  # of a weight
INPUT = "input"  # of a layer
ATTENTION = "attention"  # what its kernel made
WHOLE = "whole"  # a weight, of the parts that devices have
