/* The mapping of the current contextvars.Context, to put an earlier one back.
 *
 * A change of a variable makes a new mapping, which shares nodes with the one before, and costs as much as
 * three records. A span that ends puts the mapping of its begin back, if the context still has the one that
 * the span made: the same result as setting the variable to its value before. Mappings are immutable, so a
 * context that was copied meanwhile keeps its own.
 *
 * CPython has no function for it. The head of PyContext (Include/internal/pycore_context.h) is the same in
 * the versions below; with another Python spans set the variable.
 */
#ifndef UTRACEFS_CONTEXT_VARS_H
#define UTRACEFS_CONTEXT_VARS_H

#include <Python.h>

#if !defined(PYPY_VERSION) && !defined(Py_GIL_DISABLED) && PY_VERSION_HEX < 0x030F0000
#define UT_KNOWN_CONTEXT 1
#else
#define UT_KNOWN_CONTEXT 0
#endif

struct ut_context_head {
    PyObject_HEAD
    PyObject *previous;
    PyObject *vars;
};

/* The thread's context, to be compared only. NULL: it has none yet. */
static inline const void *ut_present_context(void)
{
    return PyThreadState_Get()->context;
}

/* Borrowed. NULL: not known, or the thread has no context yet. */
static inline PyObject *ut_context_vars(void)
{
#if UT_KNOWN_CONTEXT
    PyObject *context = PyThreadState_Get()->context;

    if (context)
        return ((struct ut_context_head *)context)->vars;
#endif
    return NULL;
}

/* In place of `own`, which the current context must have. */
static inline void ut_restore_context_vars(PyObject *own, PyObject *before)
{
#if UT_KNOWN_CONTEXT
    PyThreadState *thread = PyThreadState_Get();

    Py_INCREF(before);
    ((struct ut_context_head *)thread->context)->vars = before;
    thread->context_ver++; /* what variables remember of this context is no longer valid */
    Py_DECREF(own);
#endif
}

#endif
