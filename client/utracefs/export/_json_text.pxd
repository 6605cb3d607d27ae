"""JSON of names and fields; see _json_text.pyx."""

from utracefs.recordings._records cimport EventDecoder, Raw
from utracefs_protocol.events._line cimport Line

cdef list json_keys(names, bint ascii, paths=*)
cdef int put_fields(Line *line, EventDecoder event, list keys, const Raw *raw, bint for_viewers) except -1
