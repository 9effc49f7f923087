"""From a text to records."""
