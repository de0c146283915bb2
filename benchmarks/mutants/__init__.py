"""Mutation testing: the share of small faults, put into the sources on purpose, that the tests of each tier kill."""
