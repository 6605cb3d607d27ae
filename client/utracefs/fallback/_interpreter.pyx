# distutils: define_macros=CYTHON_PEP489_MULTI_PHASE_INIT=0
# cython: binding=True
"""Whether the compiled modules can be used here; checked before any other one is imported.

A module that Cython compiles belongs to the interpreter that imports it first. With initialisation in one
phase this module alone can be imported by every interpreter that shares its GIL; the others get an
ImportError for it, which is the same answer. Its function is one of Python's kind (binding): with a builtin
one Python 3.12 crashes in the second interpreter that imports it.
"""

cdef extern from "Python.h":
    ctypedef struct PyInterpreterState:
        pass
    PyInterpreterState *PyInterpreterState_Get()
    PyInterpreterState *PyInterpreterState_Main()


def is_main():
    return PyInterpreterState_Get() == PyInterpreterState_Main()
