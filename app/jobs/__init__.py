"""Diagnoses that last: accepted, carried out in the background, kept, and read by their ids."""
