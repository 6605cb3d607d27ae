/* The ring buffer of one cpu: see _ring_buffer.pxd for what is built on it. */
#ifndef UTRACEFS_RING_BUFFER_H
#define UTRACEFS_RING_BUFFER_H

typedef struct rb_cpu rb_cpu;
typedef struct rb_iter rb_iter;

#endif
