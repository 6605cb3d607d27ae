"""JSON of fields; see _json_text.pyx."""

from utracefs._records cimport EventDecoder, Raw
from utracefs_protocol._line cimport Line

cdef list json_keys(names)
cdef int put_fields(Line *line, EventDecoder event, list keys, const Raw *raw) except -1
