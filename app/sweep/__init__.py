"""The boundary map: where in a range of arguments a call passes, and which check rules the rest out."""
