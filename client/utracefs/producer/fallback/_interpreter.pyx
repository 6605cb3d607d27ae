# distutils: define_macros=CYTHON_USE_MODULE_STATE=1
# cython: subinterpreters_compatible=own_gil
"""Whether the compiled modules can be used here; checked before any other one is imported.

A module that Cython compiles belongs to the interpreter that imports it first. This module alone has its
state in each module object, so every interpreter can import it, also after the first one has ended.
"""

cdef extern from "Python.h":
    ctypedef struct PyInterpreterState:
        pass
    PyInterpreterState *PyInterpreterState_Get()
    PyInterpreterState *PyInterpreterState_Main()


def is_main() -> bool:
    return PyInterpreterState_Get() == PyInterpreterState_Main()
