"""The isolated process that runs operations: what is sent to it, what it does, and the pool that keeps it
warm.
"""
