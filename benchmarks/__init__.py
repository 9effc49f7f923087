"""Measurements; each module is a command of its own and prints a table. `python -m benchmarks` runs those
this host can.
"""
