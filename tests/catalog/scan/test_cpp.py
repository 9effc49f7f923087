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
        ('static_assert(kN % 16 == 0, "N must be round");', "RuntimeError", "N must be round"),
        ('LOG(FATAL) << "tab\\t" << x;', "RuntimeError", "tab\t{x}"),
    ],
)  # fmt: skip
def test_a_message_is_read_to_the_letter(statement: str, exception: str, message: str) -> None:
    assert found(f"void f(int n) {{\n  {statement}\n}}") == [(exception, message)]


def test_static_assertions_of_template_libraries_are_no_sites() -> None:
    code = b'static_assert(kN % 16 == 0, "N must be round");'
    assert len(cpp.scan("a.cuh", code, Macros()).sites) == 1
    assert cpp.scan("a.hpp", code, Macros()).sites == ()


def test_what_is_no_error_is_no_site() -> None:
    assert found('void f() { LOG(INFO) << "fine"; printf("TORCH_CHECK(x)"); static_assert(x); throw; }') == []


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


def conditions(code: str) -> list[tuple[str, ...]]:
    return [site.conditions for site in cpp.scan("a.cuh", dedent(code).encode(), Macros()).sites]


def test_what_leaves_before_a_check_is_a_condition_of_it() -> None:
    code = """
        void f(int n, bool packed) {
          if (n == 0) return;
          if (n < 0) { throw std::runtime_error("negative"); }
          if (packed) {
            log(n);
            return;
          }
          for (int i = 0; i < n; ++i) {
            if (skipped(i)) continue;
            TORCH_CHECK(ok(i), "item ", i, " is broken");
          }
          while (true) { TORCH_CHECK(n, "no end"); }
        }
    """
    assert conditions(code) == [
        ("not (n == 0)", "n < 0"),
        ("not (n == 0)", "not (packed)", "i < n", "not (skipped(i))", "not (ok(i))"),
        ("not (n == 0)", "not (packed)", "not (n)"),
    ]


def test_cases_handlers_and_builds_are_conditions() -> None:
    code = """
        #ifdef USE_ROCM
        void g() { TORCH_CHECK(false, "not on this GPU"); }
        #endif
        #if defined(A) && B > 2
        void h(int kind) {
          try {
            switch (kind) {
              case 1: TORCH_CHECK(a, "one"); break;
              default: throw std::runtime_error("kind");
            }
          } catch (const std::exception& e) {
            for (auto& x : xs) { TORCH_CHECK(false, "failed: ", e.what()); }
          }
        }
        #endif
    """
    assert conditions(code) == [
        ("#ifdef USE_ROCM",),
        ("#if defined(A) && B > 2", "kind == 1", "not (a)"),
        ("#if defined(A) && B > 2", "kind is none of the cases"),
        ("#if defined(A) && B > 2", "const std::exception& e was caught", "for each of xs"),
    ]


def test_a_text_may_wait_in_a_string_or_a_stream() -> None:
    code = """
        void f(int n) {
          std::string why = "no room for " + std::to_string(n);
          if (n > 3) { why += " rows"; throw std::runtime_error(why); }
          std::ostringstream err;
          err << "unsupported head_dim " << n;
          err << " here";
          FLASHINFER_ERROR(err.str());
          std::string given = name();
          TORCH_CHECK(n, given);
          throw std::runtime_error(other);
        }
    """
    assert [message for _, message in found(code)] == [
        "no room for {n} rows",
        "unsupported head_dim {n} here",
        "TORCH_CHECK(n, given)",
        "throw std::runtime_error(other)",
    ]


def test_a_macro_of_the_packages_own_says_what_it_is_given() -> None:
    header = r"""
        #define CHECK_CUDA(x) TORCH_CHECK(x.is_cuda(), #x " must be a CUDA tensor")
        #define CHECK_CONTIGUOUS(x) \
          TVM_FFI_ICHECK(x.is_contiguous()) << #x " must be contiguous"
        #define CHECK_INPUT(x) \
          CHECK_CUDA(x); \
          CHECK_CONTIGUOUS(x)
        #define CHECK_DIM(d, x) TORCH_CHECK(x.dim() == d, #x, " must be ", #d, "D, got ", x.dim())
        #define HOST_CHECK(cond, ...) TORCH_CHECK(cond, "host: ", ##__VA_ARGS__)
        #define DISPATCH_TILE(n) if (n == 1) { run(); } else { TORCH_CHECK(false, "Unsupported tile size"); }
    """
    use = """
        #include "utils.h"
        void f(Tensor q, bool b) {
          if (b) return;
          CHECK_INPUT(q);
          CHECK_DIM(3, k.value());
          HOST_CHECK(n > 0, "n is ", n);
          DISPATCH_TILE(n);
          CHECK_NOTHING_KNOWN(q);
        }
    """
    scans = [
        cpp.scan("csrc/utils.h", dedent(header).encode(), Macros()),
        cpp.scan("csrc/a.cu", dedent(use).encode(), Macros()),
        cpp.scan("other/utils.h", b'#define CHECK_CUDA(x) TORCH_CHECK(x, #x " is not ours")', Macros()),
    ]
    scans.append(cpp.scan("csrc/far.cu", b"void g() { CHECK_CUDA(status); }", Macros()))
    made = list(records("o/r", scans))
    assert not [record for record in made if record.path == "csrc/far.cu"], "another macro of that name"
    used = [record for record in made if record.path == "csrc/a.cu"]
    assert [record.message for record in used] == [
        "q must be a CUDA tensor",
        "q must be contiguous",
        "k.value() must be 3D, got {k.value().dim()}",
        "host: n is {n}",
    ]
    assert [record.sites[0].line for record in used] == [5, 5, 6, 7]
    assert used[0].sites[0].condition == "not (b) and not (q.is_cuda())"
    defined = [record.message for record in made if record.path == "csrc/utils.h"]
    assert defined == [
        "{#x} must be a CUDA tensor",
        "{#x} must be contiguous",
        "Unsupported tile size",
    ]


def test_what_is_only_said_is_a_line_of_a_log() -> None:
    code = 'void f() { TORCH_WARN("slow path for ", n); TLLM_LOG_ERROR("failed with %d", code); }'
    scanned = cpp.scan("a.cu", code.encode(), Macros())
    assert [(item.error_type, item.level, item.message) for item in records("o/r", [scanned])] == [
        ("console", "warning", "slow path for {n}"),
        ("console", "error", "failed with {code}"),
    ]


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
    scanned = cpp.scan("a.cu", b'\xff\x00; TORCH_CHECK(\xff, "\xe9t\xe9", x);', Macros())
    assert [site.exception for site in scanned.sites] == ["RuntimeError"]
