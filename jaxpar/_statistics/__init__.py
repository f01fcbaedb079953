"""Means and variances of normalisations, and those of Linen's BatchNorm over all replicas."""
