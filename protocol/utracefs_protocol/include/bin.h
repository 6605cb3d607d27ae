/*
 * The header of a MessagePack bin object: how an event record begins on the data socket.
 *
 *     bin 8     0xc4  size                          up to 255 bytes
 *     bin 16    0xc5  size, 2 bytes, big-endian     up to 65535
 *     bin 32    0xc6  size, 4 bytes, big-endian     up to 4294967295
 *
 * Then `size` bytes follow. A writer takes the shortest form; a reader accepts each of them for any size.
 */
#ifndef UTRACEFS_BIN_H
#define UTRACEFS_BIN_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <endian.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "data_ring.h"

#define BIN_8  0xc4
#define BIN_16 0xc5
#define BIN_32 0xc6

/* Bytes of the optional signature in front of a record, which names its writer: i32 -1 in place of the
 * write_index, u32 thread id, u16 cpu, u16 flags (DR_NAMED of data_ring.h: the name follows the payload). */
#define BIN_SIGNATURE 12

/* A write_index with this bit is a report of losses, and no record: behind it u32, little-endian, how many
 * records of the event the client had no room for. */
#define BIN_LOST 0x20000000u
/* The index of a report of losses whose event is unknown. */
#define BIN_UNKNOWN 0x1fffffffu

/* Largest object, its header included. */
#define BIN_MAX_OBJECT 65536

/* Bytes of the longest header. */
#define BIN_MAX_HEADER 5

/* Write the header in front of `size` bytes; the number of bytes that it has, at most BIN_MAX_HEADER. */
static inline unsigned bin_put_header(uint8_t *at, uint32_t size)
{
    if (size <= 0xff) {
        at[0] = BIN_8;
        at[1] = (uint8_t)size;
        return 2;
    }
    if (size <= 0xffff) {
        at[0] = BIN_16;
        at[1] = (uint8_t)(size >> 8);
        at[2] = (uint8_t)size;
        return 3;
    }
    at[0] = BIN_32;
    at[1] = (uint8_t)(size >> 24);
    at[2] = (uint8_t)(size >> 16);
    at[3] = (uint8_t)(size >> 8);
    at[4] = (uint8_t)size;
    return 5;
}

/* Write a signature and the write_index behind it; the number of bytes. flags: DR_NAMED or 0. */
static inline unsigned bin_put_signature(uint8_t *at, uint32_t write_index, uint32_t tid, uint16_t cpu,
                                         uint16_t flags)
{
    const uint32_t words[] = {UINT32_MAX, htole32(tid), htole32(cpu | (uint32_t)flags << 16),
                              htole32(write_index)};

    memcpy(at, words, sizeof(words));
    return sizeof(words);
}

/* Where the write_index of a record is, in the `size` bytes behind its header: 0, or behind the signature. */
static inline unsigned bin_index_at(const uint8_t *record, uint32_t size)
{
    return size >= BIN_SIGNATURE + 4 && memcmp(record, "\xff\xff\xff\xff", 4) == 0 ? BIN_SIGNATURE : 0;
}

/* A record behind its header; without a signature `tid` is 0, without a name `comm` NULL. */
struct bin_record {
    const uint8_t *payload, *comm;
    uint32_t size, write_index, tid; /* size: of the payload */
    uint16_t cpu;
};

/* Parse the `size` bytes of a record, at least 4. */
static inline struct bin_record bin_take_apart(const uint8_t *record, uint32_t size)
{
    struct bin_record taken = {0};
    uint32_t words[3], front = bin_index_at(record, size);

    if (front) {
        memcpy(words, record, sizeof(words));
        taken.tid = le32toh(words[1]);
        taken.cpu = (uint16_t)le32toh(words[2]);
    }
    memcpy(&taken.write_index, record + front, 4);
    taken.write_index = le32toh(taken.write_index);
    taken.payload = record + front + 4;
    taken.size = size - front - 4;
    if (front && (le32toh(words[2]) >> 16 & DR_NAMED) && taken.size >= DR_COMM) {
        taken.size -= DR_COMM;
        taken.comm = taken.payload + taken.size;
    }
    return taken;
}

/* Read the header at `at`, of which `length` bytes are there: the number of bytes that it has, and in *size
 * how many follow it, which need not be there yet. 0: no bin, or a header that is not complete. */
static inline unsigned bin_get_header(const uint8_t *at, size_t length, uint32_t *size)
{
    if (length < 2)
        return 0;
    switch (at[0]) {
    case BIN_8:
        *size = at[1];
        return 2;
    case BIN_16:
        if (length < 3)
            return 0;
        *size = (uint32_t)at[1] << 8 | at[2];
        return 3;
    case BIN_32:
        if (length < 5)
            return 0;
        *size = (uint32_t)at[1] << 24 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 8 | at[4];
        return 5;
    default:
        return 0;
    }
}

#endif
