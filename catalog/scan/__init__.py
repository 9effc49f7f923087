"""Source tree → extracted records: what a package raises, where, when and in which words.

Nothing of the scanned package is imported or run.

    targets       what is to be scanned: an installed package, a folder, a wheel, a requirement
    folders, archives, listing        its files, each at its path in the public repository
    packages      public repositories of well-known packages, and where their files lie in them
    python        raise, assert and log statements of a Python file, by its syntax tree
    cython        a Cython file as Python, statement by statement
    reports, calls, texts, builders   what they say, by what names hold and helpers make of it
    expressions   the template that a message's expression prints
    conditions    what must hold for a statement to be reached
    cpp           checks and throws of a C++ or CUDA file, by tree-sitter
    around, printed, defines          where they stand, what they print, macros of the package's own
    resolve       messages that another file completes: exception classes and functions that raise
    run           all files over the cores; extracted: records with ids, in path order
"""
