"""Checks and throws of C++ and CUDA sources."""

from __future__ import annotations

from textwrap import dedent

import pytest

from catalog.scan import cpp
from catalog.scan.extracted import records
from catalog.scan.macros import MACROS, Macros, parse_macro


def found(code: str, macros: Macros | None = None) -> list[tuple[str, str]]:
    """(exception, message) of the records of one file."""
    scanned = cpp.scan("csrc/a.cuh", dedent(code).encode(), macros or Macros())
    return [(record.error_class, record.message) for record in records("o/r", [scanned])]


@pytest.mark.parametrize(
    ("statement", "exception", "message"),
    [
        ('TORCH_CHECK(x.dim() == 2, "x must be 2D, got ", x.dim(), "D");', "RuntimeError",
         "x must be 2D, got {x.dim()}D"),
        ('TORCH_CHECK_VALUE(ok, "bad " "value");', "ValueError", "bad value"),
        ('TORCH_CHECK_WITH(TypeError, ok, "not a type: ", name);', "TypeError", "not a type: {name}"),
        ('RuntimeCheck(n > 0, "n out of range: ", n);', "RuntimeError", "n out of range: {n}"),
        ('host::RuntimeCheck(n > 0, "n is ", n);', "RuntimeError", "n is {n}"),
        ('CHECK_HOST(a <= b) << "left " << a << " right";', "RuntimeError", "left {a} right"),
        ("CHECK_HOST(a % 16 == 0);", "RuntimeError", "CHECK_HOST(a % 16 == 0)"),
        ('TVM_FFI_ICHECK_EQ(a, b) << "sizes differ";', "RuntimeError", "sizes differ"),
        ('TVM_FFI_THROW(ValueError) << "no " << what;', "ValueError", "no {what}"),
        ('Panic("unreachable: ", x);', "RuntimeError", "unreachable: {x}"),
        ('throw std::invalid_argument("no " + std::to_string(n) + " rows");', "ValueError", "no {n} rows"),
        ('throw std::runtime_error(fmt::format("{} of {:d}", a, b));', "RuntimeError", "{a} of {b}"),
        ('throw std::runtime_error(R"(raw \\ text)");', "RuntimeError", "raw \\ text"),
        ('TLLM_CHECK_WITH_INFO(ok, "got %d of %s", n, name);', "RuntimeError", "got {n} of {name}"),
        ('PyErr_SetString(PyExc_TypeError, "no tensor");', "TypeError", "no tensor"),
        ('LOG(FATAL) << "tab\\t" << x;', "RuntimeError", "tab\t{x}"),
    ],
)  # fmt: skip
def test_a_message_is_read_to_the_letter(statement: str, exception: str, message: str) -> None:
    assert found(f"void f(int n) {{\n  {statement}\n}}") == [(exception, message)]


def test_what_is_no_error_is_no_site() -> None:
    assert found('void f() { LOG(INFO) << "fine"; printf("TORCH_CHECK(x)"); throw; }') == []


def test_a_matcher_is_known_by_its_statement() -> None:
    code = """
        template <typename T> struct Kernel {
          static void run(Tensor q) {
            TensorMatcher({N, D})  // tokens
                .with_dtype<T>()
                .verify(q);
          }
        };
    """
    assert found(code) == [("RuntimeError", "TensorMatcher({N, D}).with_dtype<T>().verify(q)")]


def test_the_place_and_the_path_to_it() -> None:
    code = """
        template <int N> struct Kernel {
          static void run(Tensor q, bool packed) {
            if (packed) {
              RuntimeCheck(q.dim() == 3, "packed q must be 3D");
            } else if constexpr (N > 1) {
              RuntimeCheck(q.dim() == 2, "q must be 2D");
            }
          }
        };
    """
    first, second = cpp.scan("a.cuh", dedent(code).encode(), Macros()).sites
    assert (first.function, first.owner, first.line) == ("Kernel::run", "Kernel", 5)
    assert first.conditions == ("packed", "not (q.dim() == 3)")
    assert second.conditions == ("not (packed)", "N > 1", "not (q.dim() == 2)")


def test_more_macros_may_be_named() -> None:
    code = 'void f() { MY_CHECK(a, b, "differ by ", a - b); }'
    assert found(code) == []
    assert found(code, Macros((*MACROS, parse_macro("MY_CHECK:2")))) == [
        ("RuntimeError", "differ by {a - b}")
    ]
    with pytest.raises(ValueError, match="NAME"):
        parse_macro("my check")


def test_broken_and_binary_sources_give_what_can_be_read() -> None:
    assert found('void f() { TORCH_CHECK(ok, "kept"); } } ) class {') == [("RuntimeError", "kept")]
    scanned = cpp.scan("a.cu", b'\xff\x00 TORCH_CHECK(\xff, "\xe9t\xe9", x);', Macros())
    assert [site.exception for site in scanned.sites] == ["RuntimeError"]
