"""Source tree → extracted records: what a package raises, where, when and in which words.

Nothing of the scanned package is imported or run.

    targets       what is to be scanned: an installed package, a folder, a wheel, a requirement
    packages      public repositories of well-known packages, and where their files lie in them
    python        raise, assert and log statements of a Python file, by its syntax tree
    expressions   the template that a message's expression prints
    conditions    what must hold for a statement to be reached
    cpp           checks and throws of a C++ or CUDA file, by tree-sitter
    resolve       messages that another file completes: exception classes and functions that raise
    run           all files over the cores; extracted: records with ids, in path order
"""
