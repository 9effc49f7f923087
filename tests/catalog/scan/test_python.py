"""Each form a Python message has, and what leads to it."""

from __future__ import annotations

from textwrap import dedent

import pytest

from catalog.scan import python
from catalog.scan.extracted import records
from catalog.scan.model import Found, template_of


def scanned(code: str) -> list[Found]:
    return list(python.scan("pkg/module.py", dedent(code).encode()).sites)


def messages(code: str) -> list[str]:
    """The messages of the records of one file, in line order."""
    return [
        record.message for record in records("o/r", [python.scan("pkg/module.py", dedent(code).encode())])
    ]


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        ("raise ValueError('plain text')", "plain text"),
        ("raise ValueError('plain {braces} text')", "plain {braces} text"),
        ("raise ValueError(f'got {x.dtype}, want {y!r}')", "got {x.dtype}, want {y!r}"),
        ("raise ValueError(f'{x:>{width}} of {y:.2f}')", "{x:>{width}} of {y:.2f}"),
        ("raise ValueError(f'{x=} is odd')", "x={x!r} is odd"),
        ("raise ValueError(f'{{literal}} {x}')", "{{literal}} {x}"),
        ("raise ValueError(f'{d[\"a:b\"]} and {x != y}')", '{d["a:b"]} and {x != y}'),
        ("raise ValueError('one ' 'two ' f'{x}')", "one two {x}"),
        ("raise ValueError('got %s of %d %%' % (x, len(y)))", "got {x} of {len(y)} %"),
        ("raise ValueError('got %(name)r' % {'name': x.name})", "got {x.name!r}"),
        ("raise ValueError('got %s' % x)", "got {x}"),
        ("raise ValueError('{} is not {kind}, {0.size}'.format(x, kind=k))", "{x} is not {k}, {x.size}"),
        ("raise ValueError('left ' + str(x) + ' right')", "left {str(x)} right"),
        ("raise ValueError('a: ' + ', '.join(names))", "a: {', '.join(names)}"),
        ("raise ValueError(' '.join(['one', f'two {x}']))", "one two {x}"),
        ("raise ValueError('two', x)", "('two', {x})"),
        ("raise OSError(errno.ENOENT, 'no file', path)", "[Errno {errno.ENOENT}] no file: '{path}'"),
        ("raise ValueError('cause') from error", "cause"),
        ("raise ValueError('noted').with_traceback(tb)", "noted"),
        ("raise HTTPException(status_code=404, detail=f'no {x}')", "no {x}"),
        ("raise pkg.CustomError(message='by keyword')", "by keyword"),
        ("raise NotImplementedError", "raise NotImplementedError"),
        ("raise NotImplementedError()", "raise NotImplementedError()"),
        ("assert x > 0, f'x is {x}'", "x is {x}"),
        ("assert x > 0", "assert x > 0"),
        ("assert (x > 0 and\n        y > 0)", "assert (x > 0 and y > 0)"),
        ("logger.error('bad %s: %r', x, y)", "bad {x}: {y!r}"),
        ("logging.warning(f'odd {x}')", "odd {x}"),
        ("self.logger.exception('failed')", "failed"),
        ("log.log(logging.ERROR, 'by level %d', n)", "by level {n}"),
        ("warnings.warn('soon gone', FutureWarning)", "soon gone"),
        ("torch._check(x > 0, lambda: f'x is {x}')", "x is {x}"),
        ("torch._check_value(x > 0, 'no x')", "no x"),
        ("torch._check_with(IndexError, x > 0, lambda: 'past the end')", "past the end"),
        ("tl.static_assert(BLOCK >= 16, 'BLOCK is too small')", "BLOCK is too small"),
        ("sys.exit(f'cannot go on: {x}')", "cannot go on: {x}"),
        ("parser.error(f'--size takes {x}')", "--size takes {x}"),
        ("logging.getLogger(__name__).error('by its maker %s', x)", "by its maker {x}"),
        ("logger.opt(exception=True).error('with options')", "with options"),
        ("warnings.warn(FutureWarning('as an object'))", "as an object"),
        ("torch._assert_async(x > 0, 'not on time')", "not on time"),
        ("raise OSError('alone')", "alone"),
        ("raise PermissionError(*args)", "[Errno {*args}] "),
        ("raise_(ValueError(f'handed {x}'))", "handed {x}"),
        ("util._reraise(pkg.Lost('on the way'))", "on the way"),
    ],
)
def test_a_message_is_read_to_the_letter(statement: str, message: str) -> None:
    assert messages(statement) == [message]


@pytest.mark.parametrize(
    "statement",
    [
        "raise",
        "raise error",
        "raise copy.deepcopy(error)",
        "raise copy(error) from None",
        "sys.exit(1)",
        "sys.exit(main())",
        "logger.info('hello there')",
        "print('failed')",
        "raise_(error)",
        "raised(ValueError('a list of'), 3)",
        "collect(ValueError('what may happen'))",
    ],
)
def test_what_reports_nothing_of_its_own_is_no_site(statement: str) -> None:
    assert scanned(f"try:\n    work()\nexcept ValueError as error:\n    {statement}") == []


def test_a_text_may_wait_in_a_variable_or_a_constant() -> None:
    code = """
        PREFIX = "cannot load"
        class Loader:
            HINT = "; try again"
            def load(self, x):
                message = f"no {x}"
                message += self.HINT
                if x:
                    raise ValueError(message)
                message = x.describe()
                raise ValueError(message)
        def load(x):
            raise ValueError(PREFIX + f" {x}")
    """
    assert messages(code) == ["no {x}; try again", "{message}", "cannot load {x}"]


def test_branches_leave_each_their_text() -> None:
    code = """
        def f(x, y):
            if x:
                why = "x is set"
            else:
                why = f"y is {y}"
            raise ValueError(why)
        def g(x):
            raise ValueError("even" if x else "odd number")
    """
    assert messages(code) == ["x is set", "y is {y}", "even", "odd number"]


def test_an_exception_may_wait_in_a_variable() -> None:
    assert messages("error = ValueError('kept')\nif x:\n    raise error") == ["kept"]


def test_a_function_of_the_file_may_word_the_whole_message() -> None:
    code = """
        def wording(x):
            return f"worded {x}"
        def f(x):
            if x:
                raise ValueError(wording(x))
            raise ValueError("not " + wording(x))
    """
    assert messages(code) == ["worded {x}", "not {wording(x)}"]


def test_the_path_to_a_statement_is_its_condition() -> None:
    code = """
        def f(x, y):
            if x is None:
                return 0
            if not y:
                raise ValueError("no y")
            for item in y:
                if item == x:
                    continue
                try:
                    use(item)
                except KeyError:
                    raise ValueError("unusable")
                while x < 3:
                    assert item in x
    """
    [first, second, third] = scanned(code)
    assert first.conditions == ("x is not None", "not y")
    assert second.conditions == (
        "x is not None", "for item in y", "item != x", "KeyError was caught",
    )  # fmt: skip
    assert third.conditions == ("x is not None", "for item in y", "item != x", "x < 3", "item not in x")


def test_else_and_match_are_conditions_too() -> None:
    code = """
        def f(kind):
            if kind == "a" or kind == "b":
                return 1
            elif kind == "c":
                pass
            else:
                match kind:
                    case "d":
                        raise ValueError("d")
                    case _:
                        raise ValueError("other")
    """
    first, second = scanned(code)
    assert first.conditions == (
        'not (kind == "a" or kind == "b")', 'kind != "c"', "kind matches 'd'",
    )  # fmt: skip
    assert second.conditions[-1] == "kind matches nothing else"


def test_functions_and_classes_around_it_are_named() -> None:
    code = """
        class Outer:
            def method(self):
                def inner():
                    raise ValueError("deep")
    """
    [site] = scanned(code)
    assert (site.function, site.owner, site.exception) == ("Outer.method.inner", "Outer", "ValueError")


def test_a_class_may_word_its_own_message() -> None:
    code = """
        class NoModel(ValueError):
            def __init__(self, name, *, where="here"):
                super().__init__(f"Model {name} is not known in {where}")
        class Plain(Exception):
            def __init__(self, message, code):
                super().__init__(message)
        class Told(Exception):
            def __str__(self):
                return f"Told that {self.why}"
        def f(x):
            if x: raise NoModel(x)
            if x: raise NoModel("gpt", where=f"the list {x}")
            if x: raise Plain("plain words", 7)
            raise Told(why="it rained")
    """
    assert messages(code) == [
        "Model {x} is not known in here",
        "Model gpt is not known in the list {x}",
        "plain words",
        "Told that it rained",
    ]


def test_what_is_handed_to_a_function_that_raises_it_is_worded_by_its_class() -> None:
    code = """
        class OutOf(Exception):
            def __init__(self, required, limit, name):
                self.required, self.limit, self.name = required, limit, name
            def __str__(self):
                return f"out of: {self.name}, Required: {self.required}, Hardware limit: {self.limit}."
        def f(kernel):
            def raise_(err):
                raise copy.deepcopy(err)
            if kernel.shared > most:
                raise_(OutOf(kernel.shared, most, "shared memory"))
    """
    wanted = "out of: shared memory, Required: {kernel.shared}, Hardware limit: {most}."
    assert wanted in messages(code)
    assert "OutOf" in [site.exception for site in scanned(code)]


def test_parameters_that_are_not_given_say_their_defaults() -> None:
    code = """
        LIMIT = "the limit: "
        class Full(Exception):
            HINT = "; free some"
            def __init__(self, message="no room is left"):
                super().__init__(LIMIT + message + self.HINT)
        class Over(Full):
            pass
        def f(x):
            if x: raise Full()
            if x: raise Over(f"{x} is too much")
            if x: raise Full(**x)
            raise Full(*x)
    """
    assert messages(code) == [
        "the limit: no room is left; free some",
        "the limit: {x} is too much; free some",
        "the limit: {message}; free some",
        "the limit: {*x}; free some",
    ]


def test_one_of_two_may_be_raised() -> None:
    code = "raise ValueError('odd one') if x % 2 else TypeError('even one')"
    first, second = scanned(code)
    assert [(site.exception, site.parts, site.conditions) for site in (first, second)] == [
        ("ValueError", ("odd one",), ("x % 2",)),
        ("TypeError", ("even one",), ("not (x % 2)",)),
    ]


def test_a_function_may_make_what_is_raised() -> None:
    made = """
        HINT = "set --size to more"
        class A:
            def _wrong(self, what):
                return ConfigError(f"{what} is wrong; " + HINT)
    """
    use = """
        from pkg.made import HINT
        def f(self, x):
            if x:
                raise self._wrong(f"size {x}")
            if not x:
                raise ValueError(HINT)
            raise ValueError(f"no size: {HINT}")
    """
    scans = [
        python.scan("pkg/made.py", dedent(made).encode()),
        python.scan("pkg/use.py", dedent(use).encode()),
    ]
    found = [record for record in records("o/r", scans) if record.path == "pkg/use.py"]
    assert [(record.error_class, record.message) for record in found] == [
        ("ConfigError", "size {x} is wrong; set --size to more"),
        ("ValueError", "set --size to more"),
        ("ValueError", "no size: {HINT}"),
    ]


def test_what_is_always_so_is_no_condition() -> None:
    code = "if True:\n    while True:\n        assert False, 'never here'"
    [site] = scanned(code)
    assert site.conditions == ()


def test_a_helper_says_what_its_caller_gives_it() -> None:
    helper = (
        "def raise_error_or_warn(self, strict, message):\n    if strict:\n        raise ValueError(message)\n"
    )
    caller = dedent("""
        class A:
            def f(self, x):
                self.raise_error_or_warn(x, f"not a valid {x}")
    """)
    scans = [python.scan("pkg/helpers.py", helper.encode()), python.scan("pkg/use.py", caller.encode())]
    found = {record.path: record for record in records("o/r", scans)}
    record = found["pkg/use.py"]
    assert (record.message, record.error_class) == ("not a valid {x}", "ValueError")
    assert (record.sites[0].function, record.sites[0].line) == ("A.f", 4)


def test_levels_and_types_follow_the_way_it_is_reported() -> None:
    code = """
        logger.critical("over")
        logger.warning("soon over")
        raise HTTPException(422, "no such thing")
        assert False, "never"
    """
    found = list(records("o/r", [python.scan("m.py", dedent(code).encode())]))
    assert [(item.error_type, item.level, item.http_status) for item in found] == [
        ("console", "critical", None),
        ("console", "warning", None),
        ("http", "error", 422),
    ]


def test_holes_survive_what_a_format_string_cannot_say() -> None:
    [site] = scanned("raise ValueError(f'{ {k: v for k, v in d} } has {a if b else \"}\"} left')")
    assert site.parts is not None
    template = template_of(site.parts)
    assert template.segments == ("", " has ", " left")
    assert [hole.expr for hole in template.holes] == ["{k: v for k, v in d}", 'a if b else "}"']
