"""The Cython face of include/data_ring.h and of its consumer, data_ring_consumer.h."""

from libc.stdint cimport int64_t, uint16_t, uint32_t, uint64_t

cdef extern from "data_ring.h" nogil:
    const uint32_t DR_MAGIC
    const uint32_t DR_VERSION
    const uint32_t DR_HEADER_BYTES
    const uint32_t DR_RECORD_HEADER
    const uint32_t DR_LOST_COUNTERS
    const uint32_t DR_LOST_BYTES
    const uint32_t DR_MAX_PAYLOAD
    const uint32_t DR_REFUSED
    const uint32_t DR_MAX_WHY
    const uint32_t DR_CLOCK_MONOTONIC
    const uint32_t DR_CLOCK_TSC
    const uint32_t DR_NO_NAMES
    const uint32_t DR_TSC
    const uint32_t DR_NAMED
    const uint32_t DR_COMM
    const uint32_t DR_LOW

    ctypedef struct dr_header "struct dr_header":
        uint32_t magic
        uint32_t version
        uint32_t size
        uint32_t record_header

    ctypedef struct dr_record "struct dr_record":
        uint32_t write_index
        uint64_t time
        uint32_t tid
        uint16_t cpu
        uint16_t flags
        unsigned char payload[]

    ctypedef struct data_ring "struct data_ring":
        dr_header *header
        unsigned char *data
        uint32_t size
        size_t map_bytes

    bint dr_valid_size(uint64_t size)
    uint32_t dr_much(const data_ring *r)
    size_t dr_file_bytes(uint32_t size)
    int dr_map(data_ring *r, int fd, uint32_t size)
    void dr_unmap(data_ring *r)

cdef extern from "data_ring_consumer.h" nogil:
    void dr_set_wait(dr_consumer *c, uint32_t wait_us)
    void dr_set_behind(dr_consumer *c, int is_behind)
    const int DR_RECORD
    const int DR_CORRUPT

    ctypedef struct dr_consumer "struct dr_consumer":
        data_ring ring
        uint64_t tail
        uint64_t published
        uint64_t withheld
        uint64_t head

    ctypedef struct dr_taken "struct dr_taken":
        uint32_t length
        uint32_t write_index
        uint64_t time
        uint32_t tid
        uint16_t cpu
        uint16_t flags
        uint32_t bytes
        unsigned char comm[16]

    int dr_look(dr_consumer *c)
    int dr_consumer_start(dr_consumer *c)
    int dr_next(
        dr_consumer *c, dr_taken *out, unsigned char *payload, uint32_t room, int dead, uint64_t *holes
    )
    void dr_advance(dr_consumer *c, uint32_t bytes)
    void dr_publish(dr_consumer *c)
    uint32_t dr_skip_bytes(const dr_consumer *c, uint64_t position)
    bint dr_skip(dr_consumer *c, uint32_t bytes)
    uint64_t dr_skipped(const dr_consumer *c, uint64_t from_)
    void dr_close(dr_consumer *c, bint closed)
    void dr_want_wakeup(dr_consumer *c, int wanted)
    void dr_set_clock(dr_consumer *c, uint32_t clock, uint64_t tsc_rate)
    void dr_ask_names(dr_consumer *c, uint32_t names)
    uint64_t dr_head(dr_consumer *c)
    bint dr_has_lost(const dr_consumer *c)
    uint64_t dr_take_lost(dr_consumer *c)
    uint32_t dr_lost_of(const dr_consumer *c, uint32_t write_index)
    void dr_forget_lost_of(dr_consumer *c, uint32_t write_index, uint32_t n)
    uint32_t dr_counted_of(const dr_consumer *c, uint32_t write_index)
    void dr_set_counted(dr_consumer *c, uint32_t write_index, uint32_t n)
