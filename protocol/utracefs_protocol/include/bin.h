/*
 * The header of a MessagePack bin object: how an event record begins on the data socket.
 *
 *     bin 8     0xc4  size                          up to 255 bytes
 *     bin 16    0xc5  size, 2 bytes, big-endian     up to 65535
 *     bin 32    0xc6  size, 4 bytes, big-endian     up to 4294967295
 *
 * Then `size` bytes follow. A writer takes the shortest form; a reader accepts each of them for any size, as
 * the MessagePack specification says. Beside the arrays of the messages, a bin object is the only one that
 * may stand on the data socket, so its first byte tells a record from a message.
 */
#ifndef UTRACEFS_BIN_H
#define UTRACEFS_BIN_H

#include <stddef.h>
#include <stdint.h>

#define BIN_8  0xc4
#define BIN_16 0xc5
#define BIN_32 0xc6

/* Bytes of the longest header. */
#define BIN_MAX_HEADER 5

/* Whether an object that begins with this byte is a bin. */
static inline int bin_begins(uint8_t first)
{
    return first >= BIN_8 && first <= BIN_32;
}

/* Bytes of the header in front of `size` bytes. */
static inline unsigned bin_header_size(uint32_t size)
{
    return size <= 0xff ? 2 : size <= 0xffff ? 3 : 5;
}

/* Write the header in front of `size` bytes; the number of bytes that it has. `at` has room for
 * BIN_MAX_HEADER, or for bin_header_size(size). */
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
