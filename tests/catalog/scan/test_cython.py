"""Cython is read as Python, at its own lines, whatever of it Python has not."""

from __future__ import annotations

import ast
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from catalog.scan.cython import python_of, scan
from catalog.scan.model import Found, template_of

SOURCE = b'''# cython: language_level=3
from libc.stdint cimport int64_t

cdef extern from "x.h" nogil:
    int f(int) except +

cdef class Buffer(Base):
    cdef int64_t n

    def __init__(self, int64_t n, *, bint flag=False):
        if n < 0:
            raise ValueError(f"size {n} is negative")

    cdef inline int grow(self, int by) except -1 nogil:
        cdef int x = <int>by
        if x == 0:
            with gil:
                raise RuntimeError("cannot grow by nothing")
        return x

@cython.boundscheck(False)
cpdef long long take(double[:, ::1] a, int n=3, *args) except? -1:
    """it\'s ( a text"""
    try:
        for i from 0 <= i < n:
            if <int>a[i, 0] == f(&n):
                raise IndexError(
                    "index %d is out of range for %s"
                    % (<int>i, a),
                )
    except (OSError, <object>X):
        pass
    else:
        return <long long>n
    IF UNAME == "x":
        raise OSError("not on this system")
    ELSE:
        assert n > 0, f"n must be positive, got {n}"
    raise Broken(<object*>(a if))
'''


def _sites() -> list[Found]:
    return list(scan("a/b.pyx", SOURCE).sites)


def test_every_statement_that_raises_is_found_at_its_line() -> None:
    said = {site.line: template_of(site.parts).message for site in _sites() if site.parts is not None}
    assert said == {
        12: "size {n} is negative",
        18: "cannot grow by nothing",
        27: "index {i} is out of range for {a}",
        36: "not on this system",
        38: "n must be positive, got {n}",
    }
    assert [(site.exception, site.line) for site in _sites() if site.parts is None] == [("Broken", 39)]


def test_functions_classes_and_conditions_are_the_source_s() -> None:
    sites = {site.line: site for site in _sites()}
    assert (sites[18].function, sites[18].owner) == ("Buffer.grow", "Buffer")
    assert sites[12].conditions == ("n < 0",)
    assert sites[18].conditions == ("x == 0",)
    assert sites[27].function == "take"


def test_the_lines_kept_are_the_source_s() -> None:
    found = scan("a/b.pyx", SOURCE)
    assert b"cdef inline int grow" in zlib.decompress(found.code)


@pytest.mark.parametrize(
    "text", ["def f(int x):\n  pass\n", "cdef int x\n", "if <a b>:\n  pass\nelse:\n  pass\n", 'x = """open\n']
)
def test_what_is_not_understood_does_nothing(text: str) -> None:
    ast.parse(python_of(text))


@given(
    st.lists(
        st.sampled_from(
            [
                "\n",
                "    ",
                "cdef ",
                "class A:",
                "def f(",
                ")",
                ":",
                '"',
                "'''",
                "#",
                "raise X",
                "<int>",
                "\\\n",
                "if x",
                "é",
            ]
        ),
        max_size=30,
    ).map("".join)
)
def test_every_line_keeps_its_place(text: str) -> None:
    assert python_of(text).count("\n") == text.count("\n")
