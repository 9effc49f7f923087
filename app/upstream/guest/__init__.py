"""What runs in upstream's interpreter: the standard library and torch alone, nothing else of this project.

Faultbook starts it there as a process of its own and speaks JSON with it, one object a line.
"""
