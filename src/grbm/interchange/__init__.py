"""Machines in and out: the conventions of other packages, and files for other programs."""
