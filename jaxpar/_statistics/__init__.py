"""Means and variances of normalisations, also of Linen's BatchNorm over all replicas."""
