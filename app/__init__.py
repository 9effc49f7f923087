"""The web service and its command line. Arrows point one way: app → catalog → kernels."""
