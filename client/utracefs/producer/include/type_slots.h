/* Slots of types that Cython fills otherwise, or cannot fill. */
#ifndef UTRACEFS_TYPE_SLOTS_H
#define UTRACEFS_TYPE_SLOTS_H

#include <Python.h>

/* Cython's `__call__` builds a tuple, and a dict, per call. offset: of the vectorcallfunc in an instance. */
static inline void ut_use_vectorcall(PyObject *made, Py_ssize_t offset, unsigned long flags)
{
    PyTypeObject *type = (PyTypeObject *)made;

    type->tp_vectorcall_offset = offset;
    type->tp_call = PyVectorcall_Call;
    type->tp_flags |= Py_TPFLAGS_HAVE_VECTORCALL | flags;
    PyType_Modified(type);
}

/* Iteration for the interpreter, without `__iter__` and `__next__` among the names. */
static inline void ut_use_iteration(PyObject *made, void *next)
{
    PyTypeObject *type = (PyTypeObject *)made;

    type->tp_iter = PyObject_SelfIter;
    type->tp_iternext = (iternextfunc)next;
    PyType_Modified(type);
}

/* A method of a type from its C function; `method` stays in use. -1: an exception. */
static inline int ut_add_method(PyObject *made, PyMethodDef *method)
{
    PyTypeObject *type = (PyTypeObject *)made;
    PyObject *descriptor = PyDescr_NewMethod(type, method);
    int done = descriptor ? PyDict_SetItemString(type->tp_dict, method->ml_name, descriptor) : -1;

    Py_XDECREF(descriptor);
    PyType_Modified(type);
    return done;
}

/* As functions do: not as objects with a `__get__` of their own. */
static inline int ut_binds_as_method(PyObject *object)
{
    return PyType_HasFeature(Py_TYPE(object), Py_TPFLAGS_METHOD_DESCRIPTOR);
}

#endif
