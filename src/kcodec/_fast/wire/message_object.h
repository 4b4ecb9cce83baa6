// SPDX-License-Identifier: Apache-2.0
// Messages as Python objects: the offsets of their slots, and access to the slots without Python's attribute lookup.
// A message class has `__slots__` and nothing else, so a field is one pointer at a fixed offset of every instance.
#ifndef KCODEC_MESSAGE_OBJECT_H
#define KCODEC_MESSAGE_OBJECT_H

#include <Python.h>
#include <stdint.h>
#include <string.h>
#include <structmember.h>

#ifndef Py_T_OBJECT_EX
#define Py_T_OBJECT_EX T_OBJECT_EX
#endif

// The offset of a slot, by its member descriptor; -1 when the object is not a plain `__slots__` entry.
static inline Py_ssize_t message_slot_offset(PyObject *descriptor) {
    if (!Py_IS_TYPE(descriptor, &PyMemberDescr_Type)) return -1;
    PyMemberDef *member = ((PyMemberDescrObject *)descriptor)->d_member;
    return member->type == Py_T_OBJECT_EX ? member->offset : -1;
}

static inline PyObject **message_slot(PyObject *message, Py_ssize_t offset) {
    return (PyObject **)((char *)message + offset);
}

// A new instance with empty slots, without running its __init__.
static inline PyObject *message_allocate(PyObject *type) {
    return ((PyTypeObject *)type)->tp_alloc((PyTypeObject *)type, 0);
}

// Takes over the reference to value.
static inline void message_fill(PyObject *message, Py_ssize_t offset, PyObject *value) {
    PyObject **slot = message_slot(message, offset);
    PyObject *before = *slot;
    *slot = value;
    Py_XDECREF(before);
}

// A new reference, or NULL (without an exception) when the slot is empty. Without the GIL another thread may put
// something else there meanwhile, so there the interpreter's own attribute access is used.
static inline PyObject *message_value(PyObject *message, Py_ssize_t offset, PyObject *name) {
#ifdef Py_GIL_DISABLED
    (void)offset;
    PyObject *value = PyObject_GetAttr(message, name);
    if (!value) PyErr_Clear();
    return value;
#else
    (void)name;
    PyObject *value = *message_slot(message, offset);
    Py_XINCREF(value);
    return value;
#endif
}

static inline PyObject *message_long(long long value) { return PyLong_FromLongLong(value); }
static inline PyObject *message_bool(int value) { return PyBool_FromLong(value); }
static inline PyObject *message_float(double value) { return PyFloat_FromDouble(value); }
static inline PyObject *message_list(Py_ssize_t size) { return PyList_New(size); }
// Into a new list; takes over the reference.
static inline void message_list_set(PyObject *list, Py_ssize_t index, PyObject *value) {
    PyList_SET_ITEM(list, index, value);
}

// NULL without an exception where the bytes are not UTF-8.
static inline PyObject *message_text(const char *data, Py_ssize_t size) {
    PyObject *text = PyUnicode_DecodeUTF8(data, size, NULL);
    if (!text && PyErr_ExceptionMatches(PyExc_UnicodeDecodeError)) PyErr_Clear();
    return text;
}

// Up to Python 3.11 every allocation may start the cycle collector, which walks what a large message has made so far
// again and again (half the time of 7,000 partitions); nothing made here can be garbage yet. Later ones collect between
// instructions, so never in here. The caller holds the GIL until message_collector_on. Whether it was on:
static inline int message_collector_off(void) {
#if PY_VERSION_HEX < 0x030C0000
    return PyGC_Disable();
#else
    return 0;
#endif
}

static inline void message_collector_on(int was_on) {
#if PY_VERSION_HEX < 0x030C0000
    if (was_on) PyGC_Enable();
#else
    (void)was_on;
#endif
}

static inline double message_double(uint64_t bits) {
    double value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline uint64_t message_double_bits(double value) {
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

#endif
