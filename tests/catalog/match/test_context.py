"""What stands around a message: frames, launcher prefixes, chains, ranks, and what belongs to Python
itself."""

from __future__ import annotations

from dataclasses import replace

import pytest

from catalog.match import MATCH, POSSIBLE, Capture, Matcher, Site
from tests.catalog.match.conftest import entry

FILE = "/opt/venv/lib/python3.12/site-packages/sglang/jit_kernel/csrc/gemm/per_token_group_quant.cuh"
DECODE, PREFILL = "d66e149d3e38775a", "ca7c34e0ea160c45"
DTYPE_MISMATCH = "unified_kv dtype mismatch: kv=torch.bfloat16, q=torch.float16"
SCALES = "3018da578aab5d5a"
OUTPUT_S = "d88716b07b0cf3b3"


def _stack(path: str, line: int, function: str, last: str) -> str:
    return (
        "Traceback (most recent call last):\n"
        f'  File "/x/{path}", line {line}, in {function}\n    raise RuntimeError(\n{last}'
    )


# -- frames


def test_the_same_text_of_two_sites_is_one_match_with_a_sibling(matcher: Matcher) -> None:
    [match] = matcher.match(f"RuntimeError: {DTYPE_MISMATCH}").matches
    assert {match.record_id, *match.siblings} == {DECODE, PREFILL}


def test_copies_of_a_text_are_one_match_and_curated_records_one_each() -> None:
    text = "the warp of {group} has no lane left"
    copies = [
        entry(
            f"{number:016x}", text, Site(f"vendored/{number}/a.cu", None, (7,), "RuntimeError"), curated=False
        )
        for number in range(40)
    ]
    written = [entry(f"{number:016x}", text, Site(f"{number}.cu", None, (7,), "E")) for number in (90, 91)]
    copied = Matcher(copies).match("RuntimeError: the warp of 3 has no lane left")
    assert [len(match.siblings) for match in copied.matches] == [25]
    assert copied.truncated
    both = Matcher([*copies[:3], *written]).match("RuntimeError: the warp of 3 has no lane left").matches
    assert {match.record_id for match in both if match.record_id != "0" * 16} == {
        known.record_id for known in written
    }
    assert {len({match.record_id, *match.siblings}) for match in both} == {5}
    similar = Matcher([*copies, entry("f" * 16, "the warp of {group} has lost a lane", curated=False)])
    assert [found.record_id for found in similar.search("the warp of 3 has no", limit=2)][1] == "f" * 16


@pytest.mark.parametrize(
    ("path", "line", "function", "first"),
    [
        ("dsv4/unified_kv_kernels/paged_decode.py", 684, "_sparse_attn_v4_paged_decode_triton", DECODE),
        ("dsv4/unified_kv_kernels/paged_prefill.py", 237, "_sparse_attn_v4_paged_prefill_triton", PREFILL),
        ("moved/paged_prefill.py", 9, "_sparse_attn_v4_paged_prefill_triton", PREFILL),
        ("dsv4/unified_kv_kernels/paged_prefill.py", 999, "renamed", PREFILL),
        ("elsewhere/paged_decode.py", 755, "renamed", DECODE),
    ],
)
def test_a_frame_breaks_the_tie(matcher: Matcher, path: str, line: int, function: str, first: str) -> None:
    report = matcher.match(_stack(path, line, function, f"RuntimeError: {DTYPE_MISMATCH}"))
    assert report.matches[0].record_id == first
    assert {first, *report.matches[0].siblings} == {DECODE, PREFILL}
    assert report.matches[0].site is not None
    assert report.matches[0].site.path.endswith(path.rpartition("/")[2])


def test_a_logger_s_origin_is_no_frame(matcher: Matcher) -> None:
    report = matcher.match(f"ERROR 02-22 00:01:41 paged_prefill.py:237] {DTYPE_MISMATCH}")
    plain = matcher.match(f"ERROR 02-22 00:01:41 {DTYPE_MISMATCH}")
    assert report.matches[0].score == plain.matches[0].score


def test_a_shorter_text_inside_a_longer_one_s_words_is_not_found(matcher: Matcher) -> None:
    """`kv dtype mismatch: …` is a record of its own and part of `unified_kv dtype mismatch: …`."""
    [match] = matcher.match(DTYPE_MISMATCH).matches
    assert {match.record_id, *match.siblings} == {DECODE, PREFILL}
    own = matcher.match("RuntimeError: kv dtype mismatch: kv=torch.bfloat16, q=torch.float16")
    assert [match.record_id for match in own.matches] == ["03d183e694537ca1"]


def test_the_source_line_of_a_traceback_is_not_the_message(matcher: Matcher) -> None:
    text = _stack("quanto_int8_config.py", 101, "inspect_quanto_int8_checkpoint", "").replace(
        "raise RuntimeError(\n", 'raise ValueError("Invalid Quanto quantization_map_base64") from exc\n'
    )
    both = matcher.match(text + "ValueError: Invalid Quanto quantization_map_base64")
    assert (both.matches[0].line, both.matches[0].count, both.root_cause) == (4, 1, 0)
    alone = matcher.match(text)
    assert not alone.has_match
    assert alone.matches[0].record_id == "b2b8f1712573157c"
    assert POSSIBLE <= alone.matches[0].score < MATCH


@pytest.mark.parametrize(
    "line",
    [
        '    raise RuntimeError(f"kv_scales must be fp32, got {kv_scales.dtype}")',
        '+        raise ValueError("scale_ue8m0=True requires an int32-packed output_s")',
        'assert ok, "scale_ue8m0=True requires an int32-packed output_s"',
    ],
)
def test_pasted_code_is_no_match(matcher: Matcher, line: str) -> None:
    assert not matcher.match(line).has_match


# -- the compiled launcher


@pytest.mark.parametrize("place", [f"{FILE}:506", "/any/path/x.cuh:1"])
def test_the_launcher_s_prefix_is_no_part_of_the_message(matcher: Matcher, place: str) -> None:
    text = f"RuntimeError: Failed at {place}: input base pointer must be 32B-aligned for the vectorized loads"
    report = matcher.match(text)
    assert [match.record_id for match in report.matches] == ["base-aligned"]
    assert report.has_match
    assert text[slice(*report.matches[0].span)] == report.matches[0].rendered
    assert report.unmatched == ()


def test_a_short_launcher_message_needs_its_prefix(matcher: Matcher) -> None:
    prefixed = matcher.match(f"RuntimeError: Failed at {FILE}:584: CUDA error: misaligned address")
    assert prefixed.matches[0].record_id == "launch"
    assert prefixed.matches[0].captures == (Capture("text", "misaligned address", "text"),)
    assert prefixed.has_match
    assert not matcher.match("RuntimeError: CUDA error: misaligned address").has_match


@pytest.mark.parametrize("before", ["", "(Worker pid=12) ", "[rank2]: ", "E   "])
@pytest.mark.parametrize("wrap", ["", "\n"])
def test_a_mismatch_spans_two_lines(matcher: Matcher, before: str, wrap: str) -> None:
    text = (
        "RuntimeError: Tensor match failed for Tensor<5, 256>[strides=<256, 1>, "
        f"dtype=float8_e4m3fn, {wrap}device=cuda:0] at {FILE}:488\n"
        "- Root cause: Size mismatch for shape#0('num_tokens'): expected 4 but got 5\nnext line"
    )
    report = matcher.match("\n".join(before + line for line in text.split("\n")))
    assert [match.record_id for match in report.matches] == ["sizes"]
    match = report.matches[0]
    assert match.site is not None
    assert match.site.lines == (488, 539)
    values = {capture.name: capture.value for capture in match.captures}
    assert values["shape"] == "5, 256"
    assert values["file"] == FILE
    assert (values["name"], values["expected"], values["got"]) == ("num_tokens", "4", "5")
    assert match.score > 0.95
    assert report.unmatched == ()


def test_a_mismatch_of_another_kernel_is_only_possible(matcher: Matcher) -> None:
    report = matcher.match(
        "RuntimeError: Tensor match failed for Tensor<5>[strides=<1>, dtype=int32, device=cuda:0] "
        "at /x/other.cuh:488\n- Root cause: Device mismatch: expected cpu but got cuda:0"
    )
    assert report.matches[0].record_id == "devices"
    assert POSSIBLE <= report.matches[0].score < MATCH


def test_a_message_of_several_lines_ends_with_its_last_hole(matcher: Matcher) -> None:
    text = (
        "Internal Error: ScaleStoreArgs overflow. Something wild must happened.\n"
        "More debug info:  expert_bytes=1 token_bytes=2 group_bytes=4294967296\nand more text"
    )
    match = matcher.match(text).matches[0]
    assert match.record_id == "overflow"
    assert [capture.name for capture in match.captures] == ["0", "1", "2"]
    assert [capture.value for capture in match.captures] == ["1", "2", "4294967296"]


@pytest.mark.parametrize("line", [506, 557])
@pytest.mark.parametrize("end", ["", ":", ": ", " in static void Kernel<bf16_t, fp8_e4m3_t, 128>::run(...)"])
def test_a_launcher_message_without_text_is_found_by_its_place(matcher: Matcher, line: int, end: str) -> None:
    report = matcher.match(f"RuntimeError: Failed at {FILE}:{line}{end}")
    assert [(match.record_id, match.match_type) for match in report.matches] == [("divisible", "site")]
    assert (report.has_match, report.root_cause, report.unmatched) == (True, 0, ())


def test_a_place_named_by_many_ranks_is_one_match(matcher: Matcher) -> None:
    report = matcher.match(
        "\n".join(f"[rank{rank}]: RuntimeError: Failed at {FILE}:506: " for rank in (1, 0))
    )
    assert [(match.record_id, match.count, match.ranks) for match in report.matches] == [
        ("divisible", 2, (0, 1))
    ]


def test_a_place_known_under_two_functions_is_counted_once() -> None:
    sites = [Site(FILE.rpartition("site-packages/")[2], name, (506,), "RuntimeError") for name in ("a", "b")]
    matcher = Matcher([entry("twice", "CHECK_HOST(size % 4 == 0)", *sites, textless=True)])
    report = matcher.match(f"RuntimeError: Failed at {FILE}:506: ")
    assert [(match.record_id, match.count) for match in report.matches] == [("twice", 1)]


def test_an_unknown_line_of_the_file_is_only_possible(matcher: Matcher) -> None:
    report = matcher.match(f"RuntimeError: Failed at {FILE}:999: ")
    assert {match.record_id for match in report.matches} == {"divisible", "width"}
    assert all(POSSIBLE <= match.score < MATCH for match in report.matches)


@pytest.mark.parametrize("text", [f"Failed at {FILE}:506: something else", "Failed at /x/other.cuh:506: "])
def test_a_place_with_a_text_or_in_another_file_is_not_that_site(matcher: Matcher, text: str) -> None:
    assert not matcher.match(text).matches


# -- assertions without text


def _assertion(line: int, source: str, last: str = "AssertionError") -> str:
    return (
        "Traceback (most recent call last):\n"
        '  File "/x/sglang/kernels/ops/quantization/per_token_group_quant.py"'
        f", line {line}, in _jit_module\n{source}{last}\n"
    )


SOURCE = "    assert group_size in _SUPPORTED_GROUP_SIZES\n"


@pytest.mark.parametrize(("line", "source"), [(41, SOURCE), (41, ""), (44, SOURCE)])
def test_a_bare_assertion_is_found_by_its_frame(matcher: Matcher, line: int, source: str) -> None:
    report = matcher.match(_assertion(line, source))
    assert [match.record_id for match in report.matches] == ["group-size"]
    assert report.has_match
    assert report.unmatched == ()


def test_pytest_s_form_of_a_bare_assertion(matcher: Matcher) -> None:
    report = matcher.match(
        f">   {SOURCE}E       AssertionError: assert 96 in (16, 32, 64)\n\n"
        "python/sglang/kernels/ops/quantization/per_token_group_quant.py:41: AssertionError"
    )
    assert [match.record_id for match in report.matches] == ["group-size"]


@pytest.mark.parametrize(
    "text",
    [
        SOURCE,
        "AssertionError",
        _assertion(44, ""),
        _assertion(41, SOURCE, "AssertionError: with a text"),
        _assertion(41, SOURCE, "RuntimeError"),
        _assertion(41, SOURCE).replace("per_token_group_quant.py", "other.py"),
    ],
)
def test_a_statement_alone_or_another_error_is_not_the_site(matcher: Matcher, text: str) -> None:
    assert not matcher.match(text).matches


# -- chains and secondary messages


def _chain(link: str, first: str, second: str) -> str:
    header = "Traceback (most recent call last):\n"
    return f"{header}{first}\n\n{link}\n\n{header}{second}\n"


CAUSE = "The above exception was the direct cause of the following exception:"
DURING = "During handling of the above exception, another exception occurred:"


@pytest.mark.parametrize("link", [CAUSE, DURING])
def test_the_first_block_of_a_chain_is_the_cause(matcher: Matcher, link: str) -> None:
    report = matcher.match(
        _chain(
            link,
            "ValueError: Quanto checkpoint is missing quantization_map_base64",
            "ValueError: convrot_int8 backend jit is unavailable: no compiler",
        )
    )
    assert [match.role for match in report.matches] == ["root-cause", "wrapper"]
    assert report.matches[0].record_id == "1da24917cc84dd93"
    assert report.root_cause == 0


def test_a_cause_of_python_s_own_leaves_the_later_block_the_root(matcher: Matcher) -> None:
    later = "ValueError: Invalid Quanto quantization_map_base64"
    report = matcher.match(_chain(CAUSE, "binascii.Error: Incorrect padding", later))
    assert report.root_cause == 0
    assert [missed.exception for missed in report.unmatched] == ["binascii.Error"]


def test_a_failed_build_s_useful_block_is_the_second(matcher: Matcher) -> None:
    report = matcher.match(
        _chain(
            CAUSE,
            "subprocess.CalledProcessError: Command '['ninja']' returned non-zero exit status 1.",
            "RuntimeError: convrot_int8 backend jit is unavailable: ninja failed",
        )
    )
    assert (report.root_cause, report.matches[0].role) == (0, "root-cause")


def test_a_message_that_quotes_an_unknown_cause_wraps_it(matcher: Matcher) -> None:
    said = "CUDA driver version is insufficient"
    report = matcher.match(
        _chain(DURING, f"OSError: {said}", f"RuntimeError: convrot_int8 backend jit is unavailable: {said}")
    )
    assert report.matches[0].role == "wrapper"
    assert report.root_cause is None


def test_a_message_inside_another_s_value_is_the_cause(matcher: Matcher) -> None:
    report = matcher.match(
        "ValueError: convrot_int8 backend jit is unavailable: Unsupported output_s dtype torch.uint8"
    )
    assert [(match.record_id, match.role) for match in report.matches] == [
        (OUTPUT_S, "root-cause"),
        ("4f10be437ff97aa4", "wrapper"),
    ]
    assert report.root_cause == 0


@pytest.mark.parametrize(
    "words",
    [CAUSE, DURING, CAUSE.replace(" cause", "\ncause"), "Traceback (most recent call last):"],
)
def test_what_python_prints_around_exceptions_is_no_message(words: str) -> None:
    """Nor is it like one, nor has it a part of one."""
    site = Site("a/b.py", "f", (3,), "ValueError")
    near = [
        entry("exception", "following exception: {e}", site),
        entry("cause", "{module} was the direct cause of the failure: {e}", site),
        entry("during", "During handling of the above request an exception occurred: {e}", site),
    ]
    report = Matcher(near).match(f"{words}\n")
    assert (report.matches, report.unmatched) == ((), ())


def test_a_message_that_goes_on_behind_such_words_is_one() -> None:
    site = Site("a/b.py", "f", (3,), "ValueError")
    known = entry(
        "failed", "The above exception was the direct cause of the following exception: no {what}", site
    )
    assert Matcher([known]).match(f"{CAUSE} no memory").has_match


@pytest.mark.parametrize("wrapper", ["convrot_int8 backend jit is unavailable: ", "my engine failed: "])
def test_a_cause_that_its_wrapper_quotes_is_counted_once(matcher: Matcher, wrapper: str) -> None:
    cause = "Unsupported output_s dtype torch.uint8"
    text = _chain(CAUSE, f"ValueError: {cause}", f"RuntimeError: {wrapper}{cause}")
    [found] = [match for match in matcher.match(text).matches if match.record_id == OUTPUT_S]
    assert (found.count, found.role) == (1, "root-cause")
    ranks = "".join(f"[rank{rank}]: {line}\n" for rank in (0, 1) for line in text.splitlines())
    [found] = [match for match in matcher.match(ranks).matches if match.record_id == OUTPUT_S]
    assert (found.count, found.ranks) == (2, (0, 1))
    [found] = [match for match in matcher.match(text * 3).matches if match.record_id == OUTPUT_S]
    assert found.count == 3


def test_what_is_raised_again_is_counted_once(matcher: Matcher) -> None:
    """A process pool prints what its worker raised, and raises it itself."""
    error = "ValueError: Unsupported output_s dtype torch.uint8"
    again = _chain(CAUSE, error, error)
    [found] = matcher.match(again).matches
    assert (found.count, found.role) == (1, "root-cause")
    [found] = matcher.match(f"{again}\n{again}").matches
    assert found.count == 2
    [found] = matcher.match(_chain("And another one:", error, error)).matches
    assert found.count == 2


def _announced(message: str, *between: str) -> tuple[Matcher, str]:
    site = Site("a/spawn.py", "join", (3,), "SpawnError")
    inner = entry("inner", "Unsupported output_s dtype {output_s.dtype}", site)
    trace = _stack("b.py", 3, "f", "ValueError: Unsupported output_s dtype torch.uint8")
    text = "\n".join([f"a.SpawnError: {message.replace('{n}', '3')}", *between, trace])
    return Matcher([inner, entry("outer", f"{message}{{trace}}", site)]), text


def test_a_message_that_announces_a_traceback_wraps_it() -> None:
    matcher, text = _announced("-- Process {n} terminated with the following error:\n")
    report = matcher.match(text)
    assert [(match.record_id, match.role) for match in report.matches] == [
        ("inner", "root-cause"),
        ("outer", "wrapper"),
    ]
    assert report.root_cause == 0


def test_a_launcher_s_traceback_behind_a_message_is_none_of_its(matcher: Matcher) -> None:
    launcher = _stack("launch.py", 3, "main", "subprocess.CalledProcessError: Command failed")
    report = matcher.match(f"ValueError: Unsupported output_s dtype torch.uint8\n{launcher}")
    assert [(match.record_id, match.role) for match in report.matches] == [(OUTPUT_S, "root-cause")]


@pytest.mark.parametrize("tag", ["", "(EngineCore_0 pid=1179302) ERROR 12-02 09:14:05 [core.py:708] "])
def test_a_log_line_above_a_traceback_is_about_that(tag: str) -> None:
    site = Site("a/core.py", "main", (3,), "logging")
    logged = replace(entry("logged", "The engine core failed to start.", site, curated=False), logged=True)
    trace = _stack("b.py", 3, "f", "ValueError: nobody knows")
    text = "".join(f"{tag}{line}\n" for line in ["The engine core failed to start.", *trace.split("\n")])
    report = Matcher([logged]).match(text)
    assert not report.has_match
    assert report.matches[0].evidence[-1] == "a log line about another error"


def test_a_cause_that_only_its_wrapper_tells_counts(matcher: Matcher) -> None:
    said = "RuntimeError: my engine failed: ValueError: Unsupported output_s dtype torch.uint8"
    assert matcher.match(said).matches[0].count == 1
    ranks = "\n".join(f"[rank{rank}]: {said}" for rank in range(4))
    assert matcher.match(ranks).matches[0].count == 4


def test_what_ended_a_c_plus_plus_program_is_an_exception(matcher: Matcher) -> None:
    ended = "terminate called after throwing an instance of 'c10::Error'\n  what():  "
    [missed] = matcher.match(f"start\n{ended}Trying to do what nobody knows\nframe #0: c10::Error").unmatched
    assert (missed.exception, missed.message, missed.line) == (
        "c10::Error",
        "Trying to do what nobody knows",
        2,
    )
    assert missed.package == "torch"
    report = matcher.match(f"{ended}kv_scales must be fp32, got torch.bfloat16")
    assert [match.record_id for match in report.matches] == ["3018da578aab5d5a"]
    assert report.unmatched == ()


@pytest.mark.parametrize(
    ("error", "package"),
    [
        ("vllm.v1.engine.exceptions.SomeError: no", "vllm"),
        (
            '  File "/opt/lib/site-packages/torchao/ops.py", line 3, in f\n    g()\nValueError: no',
            "torchao",
        ),
        ('  File "/home/me/train.py", line 3, in f\n    g()\nacme.SomeError: no', None),
        ("json.decoder.JSONDecodeError: no", None),
        ("ValueError: no", None),
        ("acme.Thing.SomeError: 'NoneType' object", "acme"),
    ],
)
def test_whose_an_exception_without_a_record_is(matcher: Matcher, error: str, package: str | None) -> None:
    [missed] = matcher.match(f"Traceback (most recent call last):\n{error}").unmatched
    assert missed.package == package


def test_of_separate_errors_the_first_in_the_log_is_the_cause(matcher: Matcher) -> None:
    report = matcher.match(
        "ERROR: Unsupported output_s dtype torch.uint8\nINFO: shutting down\n"
        "ValueError: MXFP8 fused prologue requires contiguous interleaved SFK/SFV.\n"
    )
    assert report.root_cause is not None
    assert report.matches[report.root_cause].record_id == OUTPUT_S


def test_what_only_says_that_another_process_failed_is_secondary() -> None:
    said = "Received sigquit from a child process. It usually means the child failed."
    site = Site("python/sglang/srt/entrypoints/engine.py", "handler", (9,), "RuntimeError")
    matcher = Matcher(
        [entry("sigquit", said, site), entry("real", "kv heads must be a multiple of {tp}", site)]
    )
    both = matcher.match(f"[2026-05-22 09:14:03 TP1] kv heads must be a multiple of 8\n{said}")
    assert [(match.record_id, match.role) for match in both.matches] == [
        ("real", "root-cause"),
        ("sigquit", "secondary"),
    ]
    assert both.root_cause == 0
    alone = matcher.match(said)
    assert (alone.has_match, alone.root_cause) == (True, None)


# -- ranks


def test_the_same_error_of_many_ranks_is_one_match(matcher: Matcher) -> None:
    error = _stack("a.py", 3, "f", "RuntimeError: kv_scales must be fp32, got torch.bfloat16")
    text = "\n".join(
        f"[2026-05-22 09:14:0{rank} TP{rank}] Scheduler hit an exception: {error}" for rank in range(8)
    )
    report = matcher.match(text)
    assert len(report.matches) == 1
    match = report.matches[0]
    assert (match.count, match.ranks, match.first_seen) == (8, tuple(range(8)), "2026-05-22 09:14:00")
    assert report.unmatched == ()


@pytest.mark.parametrize(
    ("prefix", "ranks"),
    [
        ("[rank{}]: ", (0, 1)),
        ("[default{}]:", (0, 1)),
        ("[1,{}]<stderr>:", (0, 1)),
        ("{}: ", (0, 1)),
        ("(Worker_TP{} pid=7) ", (0, 1)),
        ("[2026-05-22 09:14:03 DP0 TP{} EP{}] ", ("DP0 TP0 EP0", "DP0 TP1 EP1")),
        ("(WorkerDict pid=8{}) ", ()),
    ],
)
def test_ranks_are_read_from_the_prefix(matcher: Matcher, prefix: str, ranks: tuple[int | str, ...]) -> None:
    lines = [
        prefix.replace("{}", str(rank)) + "ValueError: Unsupported output_s dtype torch.uint8"
        for rank in (0, 1)
    ]
    match = matcher.match("\n".join(lines)).matches[0]
    assert (match.count, match.ranks) == (2, ranks)


def test_ray_s_repetition_counts(matcher: Matcher) -> None:
    text = "(W pid=1) ValueError: Unsupported output_s dtype torch.uint8 [repeated 7x across cluster]"
    assert matcher.match(text).matches[0].count == 8


def test_different_values_are_different_matches(matcher: Matcher) -> None:
    report = matcher.match(
        "ValueError: Unsupported output_s dtype torch.uint8\n"
        "ValueError: Unsupported output_s dtype torch.int8"
    )
    assert sorted(match.captures[0].value for match in report.matches) == ["torch.int8", "torch.uint8"]


# -- exception classes


def test_the_class_of_the_record_scores_above_another(matcher: Matcher) -> None:
    own = matcher.match("RuntimeError: kv_scales must be fp32, got torch.bfloat16").matches[0]
    other = matcher.match("pkg.errors.LoadError: kv_scales must be fp32, got torch.bfloat16").matches[0]
    assert own.record_id == other.record_id == SCALES
    assert own.score > other.score >= MATCH


def test_what_is_in_the_text_and_no_record_is_listed(matcher: Matcher) -> None:
    report = matcher.match(
        "x\nTypeError: f() takes 2 positional arguments but 3 were given\n"
        "ValueError: Unsupported output_s dtype torch.uint8\nvllm.errors.EngineDeadError: see above\n"
        "caught OSError('disk full') and OSError('disk full')"
    )
    assert [(missed.line, missed.exception, missed.message) for missed in report.unmatched] == [
        (2, "TypeError", "f() takes 2 positional arguments but 3 were given"),
        (4, "vllm.errors.EngineDeadError", "see above"),
        (5, "OSError", "disk full"),
    ]
