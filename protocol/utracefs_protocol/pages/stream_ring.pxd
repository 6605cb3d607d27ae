"""The Cython face of include/stream_ring.h."""

from libc.stdint cimport int32_t, uint8_t, uint16_t, uint32_t, uint64_t

cdef extern from "stream_ring.h" nogil:
    const uint32_t SS_MAGIC
    const uint32_t SS_VERSION
    enum:
        SS_DATA_OFFSET
        SS_RECORD
        SS_LOST
        SS_FORMAT
        SS_COMM
        SS_PAD
        SS_PAGE
        SS_RECORD_HEADER
        SS_COMMON
        SS_COMM_SIZE

    ctypedef struct ss_header "struct ss_header":
        uint32_t magic
        uint32_t version
        uint32_t data_offset
        uint32_t size
        uint64_t head
        uint64_t tail
        uint64_t lost
        uint64_t written

    ctypedef struct ss_record "struct ss_record":
        uint32_t size
        uint16_t kind
        uint16_t cpu
        uint64_t time_ns
        int32_t pid
        uint32_t length
        uint8_t entry[]

    uint64_t ss_load(uint64_t *word)
    void ss_store(uint64_t *word, uint64_t value)
