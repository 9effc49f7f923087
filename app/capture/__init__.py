"""`/capture.py`: one file for a running program, which writes down the call that failed in it."""
