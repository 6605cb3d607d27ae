# distutils: define_macros=CYTHON_PEP489_MULTI_PHASE_INIT=0
# cython: binding=True
"""Whether the compiled modules can be used here; checked before any other one is imported.

A module that Cython compiles belongs to the interpreter that imports it first. This module alone is
initialised in one phase, so every interpreter that shares its GIL can import it; in the others the import
fails with ImportError, which has the same meaning. Its function is compiled with `binding`: with a builtin
one Python 3.12 crashes in the second interpreter that imports it.
"""

cdef extern from "Python.h":
    ctypedef struct PyInterpreterState:
        pass
    PyInterpreterState *PyInterpreterState_Get()
    PyInterpreterState *PyInterpreterState_Main()


def is_main():
    return PyInterpreterState_Get() == PyInterpreterState_Main()
