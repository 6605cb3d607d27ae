"""Errors of a filter's text: the kernel's messages, and how to mend each."""

import errno

from utracefs_protocol.errors import TraceError

MAX_NUMBER = 23
"""Characters of a number; num_buf of parse_pred()."""

MAX_TEXT = 255
"""Bytes of a text; MAX_FILTER_STR_VAL."""

FIELD_NOT_FOUND = "Field not found"
INVALID_OPERATOR = "Invalid operator"
INVALID_VALUE = "Invalid value (did you forget quotes)?"
EXPECT_STRING = "Expecting string field"
EXPECT_NUMBER = "Expecting numeric field"
ILLEGAL_OPERATION = "Illegal operation for field type"
ILLEGAL_INTEGER = "Illegal integer value"
TOO_LONG = "Operand too long"
MISSING_QUOTE = "Missing matching quote"
TOO_MANY_OPEN = "Too many '('"
TOO_FEW_OPEN = "Too few '('"
TOO_MANY_TERMS = "Too many terms in predicate expression"
MISSING_BRACE_OPEN = "Missing '{'"
MISSING_BRACE_CLOSE = "Missing '}'"
INVALID_CPULIST = "Invalid cpulist"
NO_FUNCTION = "Function not found"
MEANINGLESS = "Meaningless filter expression"
NO_FILTER = "No filter found"
BAD_SYSTEM_FILTER = "Couldn't find or set field in one of a subsystem's events"
"""The kernel's wording (ERRORS in trace_events_filter.c)."""

_ADVICE = {
    FIELD_NOT_FOUND: "the event's `format` lists its fields",
    INVALID_OPERATOR: "write one of == != < <= > >= & ~ after the field",
    INVALID_VALUE: "write a number, or a text in quotes",
    EXPECT_STRING: "the field is text: put the value into quotes",
    EXPECT_NUMBER: "the field is a number: leave the quotes out",
    ILLEGAL_OPERATION: "texts take == != ~, numbers take all but ~, CPUS{} takes == != &",
    ILLEGAL_INTEGER: "write a decimal, octal (0..) or hexadecimal (0x..) number that fits the field's sign",
    TOO_LONG: f"numbers have at most {MAX_NUMBER} characters, texts {MAX_TEXT} bytes",
    MISSING_QUOTE: "end the text with the quote that it begins with",
    TOO_MANY_OPEN: "add the `)` that is missing",
    TOO_FEW_OPEN: "remove the `)`",
    TOO_MANY_TERMS: "join two predicates by && or ||",
    MISSING_BRACE_OPEN: "write CPUS{LIST}",
    MISSING_BRACE_CLOSE: "write CPUS{LIST}",
    INVALID_CPULIST: "write numbers of cpus that there are, and ranges: CPUS{0,2-3}",
    NO_FUNCTION: "there are no kernel functions here; compare with a number",
    MEANINGLESS: "write a predicate behind the last && or ||",
    NO_FILTER: "write FIELD OPERATOR VALUE",
    BAD_SYSTEM_FILTER: "it holds for those events of the system that it fits",
    "": "write FIELD OPERATOR VALUE, joined by && and ||; 0 removes the filter",
}


class FilterError(TraceError):
    """A filter's text is refused. `message` is the kernel's, "" where it has none."""

    def __init__(self, message: str, position: int | None = None, number: int = errno.EINVAL) -> None:
        where = "" if position is None else f" at column {position}"
        super().__init__(number, f"{message or 'not a filter'}{where}: {_ADVICE[message]}")
        self.message = message
        self.position = position

    def shown(self, text: bytes) -> bytes:
        """The content of `filter` after the text was refused; append_filter_err()."""
        if not self.message:
            return text + b"\nError: (0)\n"
        column = min(self.position or 0, len(text))
        return b"%s\n%s^\nparse_error: %s\n" % (text, b" " * column, self.message.encode())
