"""Upstream as oracle: the same call on upstream's own function, in an interpreter that has it.

`guest` is what runs there; the rest starts it, asks it, and compares its word with ours.
"""
