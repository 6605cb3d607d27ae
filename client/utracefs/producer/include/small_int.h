/* Python's ints as C integers. */
#ifndef UTRACEFS_SMALL_INT_H
#define UTRACEFS_SMALL_INT_H

#include <Python.h>
#include <stdint.h>

/* Without a call, for most emitted numbers. 1, and the number in `*value`. 0: not an int, or one of several
 * digits (from 2^30 on). */
static inline int ut_small_int(PyObject *given, int64_t *value)
{
#if PY_VERSION_HEX >= 0x030C0000
    if (!PyLong_Check(given) || !PyUnstable_Long_IsCompact((const PyLongObject *)given))
        return 0;
    *value = PyUnstable_Long_CompactValue((const PyLongObject *)given);
    return 1;
#else
    Py_ssize_t digits; /* negative for a negative number */

    if (!PyLong_Check(given))
        return 0;
    digits = Py_SIZE(given);
    if (digits == 1 || digits == -1) {
        *value = digits * (int64_t)((PyLongObject *)given)->ob_digit[0];
        return 1;
    }
    *value = 0;
    return digits == 0;
#endif
}

/* 0: the int does not fit 64 bits, signed or unsigned; no exception is set. */
static inline int ut_large_int(PyObject *given, int is_signed, uint64_t *value)
{
    *value = is_signed ? (uint64_t)PyLong_AsLongLong(given) : PyLong_AsUnsignedLongLong(given);
    if (*value != UINT64_MAX || !PyErr_Occurred())
        return 1;
    PyErr_Clear();
    return 0;
}

#endif
