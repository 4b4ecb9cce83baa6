/* SPDX-License-Identifier: Apache-2.0
 *
 * Support for an extension type whose instances can be awaited without raising StopIteration for each result
 * (PyIter_Send). Cython has no syntax for the slot am_send, so this file sets it. `await` calls am_send before Python
 * 3.12 if nothing is traced, and tp_iternext otherwise.
 */
#ifndef KCODEC_AWAITING_H
#define KCODEC_AWAITING_H

#include <Python.h>

static PyObject *awaiting_next(PyObject *self) {
    PyObject *result = NULL;
    switch (Py_TYPE(self)->tp_as_async->am_send(self, Py_None, &result)) {
    case PYGEN_NEXT:
        return result;
    case PYGEN_RETURN:
        PyErr_SetObject(PyExc_StopIteration, result); /* a Record: neither a tuple nor an exception */
        Py_DECREF(result);
        return NULL;
    case PYGEN_ERROR:
    default:
        return NULL;
    }
}

static void awaiting_set(PyTypeObject *type, sendfunc send) {
    type->tp_as_async->am_send = send;
    type->tp_iternext = awaiting_next;
}

#endif
